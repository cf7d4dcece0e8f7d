// Keeps the keyboard focus when a page removes, hides or disables what has it. A browser moves it to <body>, so that a
// reader with a keyboard or a screen reader starts again at the top. Here it goes to the next row of the table, or to
// what has replaced the element, or else to the nearest part of the page that is still there: never to another control,
// which a key that is pressed at this moment would trigger.
(() => {
  let last = null; // what has the focus in the page
  let above = null; // what has it now in a dialog, a menu or a message; then it goes back to `last`
  let rows = []; // of its table: its own, the later ones, the earlier ones
  let parts = []; // of the page, from the smallest that it is in

  const isUsable = (element) => element.isConnected && !element.disabled && element.checkVisibility();
  const nameOf = (element) =>
    element.getAttribute("href") ?? element.getAttribute("aria-label") ?? element.textContent;

  function remember() {
    const row = last.closest("tbody tr");
    const all = row ? [...row.parentNode.children] : [];
    const at = all.indexOf(row);
    rows = row ? [...all.slice(at), ...all.slice(0, at).reverse()] : [];
    parts = [];
    for (let part = last.parentElement; part && part !== document.body; part = part.parentElement) parts.push(part);
  }

  function replacement() {
    const row = rows.find(isUsable);
    if (row) return row;
    const part = parts.find((each) => each.isConnected);
    const name = nameOf(last);
    const alike = [...(part?.querySelectorAll(last.tagName) ?? [])];
    const same = alike.find((each) => nameOf(each) === name && isUsable(each));
    return same ?? parts.find((each) => isUsable(each) && each.offsetHeight > 0);
  }

  function check() {
    if (last === null) return;
    const isThere = isUsable(last);
    if (isThere) remember();
    if (above ? isUsable(above) : isThere) return;
    const found = isThere ? last : replacement();
    if (!found) return;
    found.focus({ preventScroll: true });
    if (document.activeElement === found) return;
    found.setAttribute("tabindex", "-1");
    found.addEventListener("blur", () => found.removeAttribute("tabindex"), { once: true });
    found.focus({ preventScroll: true });
  }

  document.addEventListener("focusin", ({ target }) => {
    above = target.closest(".q-dialog, .q-menu, .q-notification") && target;
    if (above) return;
    last = target.closest(".q-btn") ?? target; // a click leaves the focus on a part of the button without a name
    remember();
  });
  document.addEventListener("focusout", () =>
    setTimeout(() => {
      const left = above ?? last;
      // the reader has left it: it is still there
      if (document.activeElement === document.body && left && isUsable(left)) last = above = null;
    }),
  );
  new MutationObserver(check).observe(document.documentElement, {
    subtree: true,
    childList: true,
    attributes: true,
    attributeFilter: ["class", "disabled"],
  });
  window.lastFocus = () => last;
})();
