// The theme makes one navigation for each block of code, all without a name: a screen reader tells them apart by these.
// A block or a table that is wider than the screen can be scrolled by keys.
function named() {
  document.querySelectorAll(".md-code__nav").forEach((nav, number) => {
    if (!nav.hasAttribute("aria-label")) nav.setAttribute("aria-label", `Code block ${number + 1}`);
  });
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((wide) => (wide.tabIndex = 0));
}
document.addEventListener("DOMContentLoaded", () => {
  named();
  new MutationObserver(named).observe(document.body, { childList: true, subtree: true });
});
