// Draws the mermaid blocks of a page with the copy of mermaid that lies beside this script. Where it cannot be loaded
// (pages opened as files, which may import no modules), the text of the diagram stays.
const besideThisScript = new URL("mermaid/index.js", document.currentScript.src);

async function draw() {
  const blocks = [...document.querySelectorAll("pre.diagram")];
  if (!blocks.length || location.protocol === "file:") return;
  const { mermaid } = await import(besideThisScript);
  const dark = document.body.dataset.mdColorScheme === "slate";
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral" });
  for (const [number, block] of blocks.entries()) {
    const { svg } = await mermaid.render(`diagram-${number}`, block.textContent);
    const drawing = document.createElement("div");
    drawing.className = "diagram-drawing";
    drawing.innerHTML = svg;
    block.replaceWith(drawing);
  }
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw);
else draw();
