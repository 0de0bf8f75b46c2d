// Values of the curves under the pointer or by arrow keys, and a curve as a PNG. Without it the newest values stand below each.
"use strict";

const part = (within, kind) => [...within.querySelectorAll(kind)];

function places(line) {
  const across = line.getAttribute("points").split(" ").map((point) => Number(point.split(",")[0]));
  const steps = line.dataset.steps.split(" "), values = line.dataset.values.split(" ");
  return across.map((x, n) => ({ x, step: steps[n], value: values[n] }));
}

function show(figure, x) {
  const svg = figure.querySelector("svg"), lines = part(svg, ".series polyline").map(places);
  const near = (points) => points.reduce((best, point) => (Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best));
  const at = near(lines.flat());
  let rule = svg.querySelector(".at");
  if (!rule) {
    rule = svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
    rule.setAttribute("class", "at");
    rule.setAttribute("y1", 0);
    rule.setAttribute("y2", svg.viewBox.baseVal.height);
  }
  rule.setAttribute("x1", at.x);
  rule.setAttribute("x2", at.x);
  const texts = [];
  figure.querySelectorAll(".legend li").forEach((entry, n) => {
    const value = entry.querySelector("b"), point = near(lines[n]);
    entry.querySelector("small").hidden = true; // the interval of the newest value
    value.dataset.newest ??= value.textContent;
    value.textContent = point.step === at.step ? point.value : "–";
    texts.push(entry.firstChild.textContent.trim() + " " + value.textContent);
  });
  figure.querySelector(".now").textContent = `step ${at.step}`;
  figure.querySelector("[role=status]").textContent = `step ${at.step}: ${texts.join(", ")}`;
  figure.dataset.x = at.x;
}

function leave(figure) {
  figure.querySelector(".at")?.remove();
  for (const value of figure.querySelectorAll("[data-newest]")) value.textContent = value.dataset.newest;
  for (const interval of figure.querySelectorAll(".legend small")) interval.hidden = false;
  figure.querySelector(".now").textContent = "";
  delete figure.dataset.x;
}

function step(figure, way) {
  const all = [...new Set(part(figure, ".series polyline").flatMap((line) => places(line).map((point) => point.x)))].sort((a, b) => a - b);
  const at = figure.dataset.x === undefined ? all.length - (way < 0 ? 0 : 1) : all.indexOf(Number(figure.dataset.x));
  show(figure, all[Math.min(Math.max(at + way, 0), all.length - 1)]);
}

function save(figure) {
  const svg = figure.querySelector("svg"), copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
  const all = [svg, ...part(svg, "*")], copies = [copy, ...part(copy, "*")];
  const names = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-size", "font-family", "text-anchor", "opacity"];
  all.forEach((one, n) => {
    const look = getComputedStyle(one); // as attributes: the page's policy takes no inline styles
    for (const name of names) copies[n].setAttribute(name, look.getPropertyValue(name));
  });
  copy.setAttribute("width", box.width * 3);
  copy.setAttribute("height", box.height * 3);
  const picture = new Image();
  picture.onload = () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: box.width * 3, height: box.height * 3 });
    const brush = canvas.getContext("2d");
    brush.fillStyle = getComputedStyle(document.body).backgroundColor;
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(picture, 0, 0);
    canvas.toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${figure.dataset.name}.png` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  };
  picture.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}

const of = (event) => event.target.closest?.("figure.curve");

document.addEventListener("pointermove", (event) => {
  const figure = of(event), svg = event.target.closest?.("svg");
  if (!figure || !svg) return;
  const box = svg.getBoundingClientRect();
  show(figure, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
});
document.addEventListener("pointerout", (event) => {
  const figure = of(event);
  if (figure && !figure.contains(event.relatedTarget)) leave(figure);
});
document.addEventListener("focusout", (event) => of(event) && leave(of(event)));
document.addEventListener("keydown", (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way || !event.target.matches("figure.curve")) return;
  event.preventDefault();
  step(event.target, way);
});
document.addEventListener("click", (event) => event.target.matches(".png") && save(of(event)));
