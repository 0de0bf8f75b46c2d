// Labels the step that has the focus, else the first one, by the keys + and -.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const label = { "+": 1, "=": 1, "-": -1 }[event.key];
  const step = event.target.closest(".unsure") ?? document.querySelector(".unsure");
  if (label) step?.querySelector(`button[value="${label}"]`).click();
});
