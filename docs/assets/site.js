// A table that scrolls sideways can be scrolled by the keyboard too, and says what it is.
window.addEventListener("load", () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "region");
    wrap.setAttribute("aria-label", "Table");
  }
});
