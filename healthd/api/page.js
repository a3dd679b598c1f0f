// -- making and patching elements ------------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  for (const child of children.flat(9))
    if (child !== null && child !== undefined && child !== false)
      made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return made;
}

// Patches `old` to equal `fresh` and touches only the differences: focus, selection, scrolling and open <details> stay.
function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  patchChildren(old, [...fresh.childNodes]);
}

// Children with a data-key are matched by it, so that a new line on top does not rewrite all lines below it.
function patchChildren(old, fresh) {
  const keyed = new Map([...old.childNodes].filter((n) => n.dataset && n.dataset.key).map((n) => [n.dataset.key, n]));
  fresh.forEach((node, place) => {
    const key = node.dataset && node.dataset.key, now = old.childNodes[place] || null;
    const mine = key ? keyed.get(key) : now && !(now.dataset && now.dataset.key) ? now : null;
    keyed.delete(key); // of two with one key, the second is made again
    if (!mine) { old.insertBefore(node, now); return; }
    if (mine !== now) old.insertBefore(mine, now);
    patch(mine, node);
  });
  while (old.childNodes.length > fresh.length) old.lastChild.remove();
}

function show(id, ...children) { patchChildren(document.getElementById(id), children.flat(9).filter(Boolean)); }

// -- times ----------------------------------------------------------------------------------------------------------

function ago(seconds) {
  const s = Math.max(0, Math.round(seconds));
  return s < 90 ? `${s} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
function clock(date) { return date.toISOString().slice(11, 19); }
