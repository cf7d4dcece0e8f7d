// The search runs in a worker, and browsers start none for pages that are opened as files. Then a hidden frame is the
// worker: it loads the same script, and the two call each other's `onmessage`.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(script) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.onmessage?.({ data });
      const loaded = this.inside.document.createElement("script");
      loaded.src = script;
      loaded.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      loaded.onerror = (event) => this.onerror?.(event);
      this.inside.document.body.append(loaded);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else setTimeout(() => this.inside.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
