// What a page gets wrong for people who see badly, use a keyboard or a screen reader; as a list of sentences.
// It follows rules of WCAG 2.1 AA that a program can check. Names of controls are checked elsewhere, in the browser's
// own accessibility tree.
() => {
  const wrong = [];
  const shown = (element) => {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    return style.visibility !== "hidden" && style.display !== "none" && box.width > 1 && box.height > 1;
  };
  const where = (element) => element.outerHTML.slice(0, 120);

  // --- structure -----------------------------------------------------------------------------------
  if (!document.documentElement.lang) wrong.push("the page has no language");
  if (!document.title) wrong.push("the page has no title");
  const mains = [...document.querySelectorAll("main, [role=main]")].filter((each) => each.getAttribute("role") !== "presentation");
  if (mains.length !== 1) wrong.push(`${mains.length} main landmarks`);
  const levels = [...document.querySelectorAll("h1,h2,h3,h4,[role=heading]")]
    .filter(shown)
    .map((each) => Number(each.getAttribute("aria-level") || each.tagName.slice(1)));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push(`headings of level 1: ${levels}`);
  levels.forEach((level, at) => {
    if (at && level > levels[at - 1] + 1) wrong.push(`a heading of level ${level} after one of level ${levels[at - 1]}`);
  });
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  for (const id of new Set(ids.filter((each, at) => ids.indexOf(each) !== at))) wrong.push(`two elements have the id ${id}`);
  for (const each of document.querySelectorAll("[tabindex]"))
    if (Number(each.getAttribute("tabindex")) > 0) wrong.push(`tabindex above 0: ${where(each)}`);
  for (const each of document.querySelectorAll("[aria-labelledby], [aria-describedby], [aria-controls]"))
    for (const name of ["aria-labelledby", "aria-describedby"])
      for (const id of (each.getAttribute(name) || "").split(/\s+/).filter(Boolean))
        if (!document.getElementById(id)) wrong.push(`${name} names no element: ${where(each)}`);
  for (const each of document.querySelectorAll("img"))
    if (!each.hasAttribute("alt")) wrong.push(`an image without alt: ${where(each)}`);

  // --- contrast ------------------------------------------------------------------------------------
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g);
    return parts ? [+parts[0], +parts[1], +parts[2], parts[3] === undefined ? 1 : +parts[3]] : [0, 0, 0, 0];
  };
  const over = (top, below) => top.slice(0, 3).map((each, at) => each * top[3] + below[at] * (1 - top[3]));
  const light = (color) => {
    const [r, g, b] = color.map((each) => {
      const share = each / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color[3] > 0) layers.push(color);
      if (color[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !shown(element) || element.closest("script,style,[aria-hidden=true],[disabled],svg")) continue;
    const style = getComputedStyle(element);
    if (Number(style.opacity) < 0.1) continue;
    const behind = ground(element);
    const color = over(parse(style.color), behind);
    const [high, low] = [light(color), light(behind)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${where(element)}`);
  }
  return [...new Set(wrong)];
};
