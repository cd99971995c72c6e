// The curves of the report page: readout under the pointer, zoom by dragging, the whole range by a double click.
// Without this script the page shows the same curves, drawn on the server. It reads only what the page holds.
// The one place to put another drawing library: `draw` gets the points and the range of steps that are shown.
"use strict";
const WIDTH = 1000, HEIGHT = 100;
const figures = [...document.querySelectorAll("[data-curve]")].map(figure => ({
  figure, svg: figure.querySelector("svg"), readout: figure.closest("section").querySelector(".readout"),
  ...JSON.parse(figure.dataset.curve),
}));
const whole = [Math.min(...figures.map(one => one.steps[0])), Math.max(...figures.map(one => one.steps.at(-1)))];
let shown = whole;

const short = value => Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(3) : String(Number(value.toPrecision(5)));

function vertical(one, from, to) {
  let low = Infinity, high = -Infinity;
  for (let at = from; at <= to; at++) { low = Math.min(low, one.low[at]); high = Math.max(high, one.high[at]); }
  if (!(high > low)) { const pad = Math.abs(low) * 0.05 || 1; low -= pad; high += pad; }
  const scale = one.log && low > 0 ? Math.log : value => value;
  const [bottom, top] = [scale(low), scale(high)];
  return { low, high, y: value => HEIGHT - HEIGHT * 0.96 * (scale(value) - bottom) / (top - bottom) - HEIGHT * 0.02 };
}

function draw(one) {
  const [begin, end] = shown;
  let from = one.steps.findIndex(step => step >= begin), to = one.steps.findLastIndex(step => step <= end);
  if (from < 0 || to < from) return;
  from = Math.max(0, from - 1); to = Math.min(one.steps.length - 1, to + 1);
  const x = step => WIDTH * (step - begin) / (end - begin || 1), { low, high, y } = vertical(one, from, to);
  const points = (values, order) => order.map(at => `${x(one.steps[at]).toFixed(2)},${y(values[at]).toFixed(2)}`);
  const order = Array.from({ length: to - from + 1 }, (_, at) => from + at);
  one.svg.querySelector(".loss").setAttribute("points", points(one.mean, order).join(" "));
  one.svg.querySelector(".band").setAttribute(
    "points", [...points(one.high, order), ...points(one.low, order.toReversed())].join(" "));
  for (const mark of one.svg.querySelectorAll(".restart")) {
    const at = x(Number(mark.dataset.step));
    mark.setAttribute("x1", at); mark.setAttribute("x2", at);
  }
  for (const line of one.svg.querySelectorAll(".gridline")) line.style.display = shown === whole ? "" : "none";
  const axes = one.figure.parentElement;
  for (const axis of axes.querySelectorAll(".x:not(.zoomed), .y:not(.zoomed)")) axis.hidden = shown !== whole;
  const labels = { x: [[begin, 0], [end, 100]], y: [[low, 2], [high, 98]] };
  for (const [name, ticks] of Object.entries(labels)) {
    const axis = axes.querySelector(`.${name}.zoomed`);
    axis.hidden = shown === whole;
    axis.replaceChildren(...ticks.map(([value, at]) => {
      const label = document.createElement("span");
      label.textContent = name === "x" ? Math.round(value).toLocaleString("en") : short(value);
      label.className = at ? "last" : "first";
      label.style[name === "x" ? "left" : "bottom"] = `${at}%`;
      return label;
    }));
  }
}

function zoom(begin, end) {
  const isPart = begin > whole[0] || end < whole[1];
  shown = isPart && end - begin >= 1 ? [begin, end] : whole;
  figures.forEach(draw);
}

function nearest(one, step) {
  let best = 0;
  for (let at = 1; at < one.steps.length; at++)
    if (Math.abs(one.steps[at] - step) < Math.abs(one.steps[best] - step)) best = at;
  return best;
}

function read(step) {
  for (const one of figures) {
    if (step === null) { one.readout.textContent = ""; one.cursor.style.display = "none"; continue; }
    const at = nearest(one, step), spread = one.high[at] > one.low[at];
    const range = spread ? ` (${short(one.low[at])} to ${short(one.high[at])})` : "";
    one.readout.textContent = `${one.unit} ${one.steps[at].toLocaleString("en")}: ${short(one.mean[at])}${range}`;
    one.cursor.style.display = "";
    one.cursor.style.left = `${100 * (one.steps[at] - shown[0]) / (shown[1] - shown[0] || 1)}%`;
  }
}

for (const one of figures) {
  one.cursor = document.createElement("i");
  one.cursor.className = "cursor";
  one.cursor.style.display = "none";
  const choice = document.createElement("i");
  choice.className = "choice";
  choice.style.display = "none";
  one.figure.append(one.cursor, choice);
  let start = null;
  const share = event => {
    const box = one.figure.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const step = at => shown[0] + at * (shown[1] - shown[0]);
  one.figure.addEventListener("pointerdown", event => {
    start = share(event);
    one.figure.setPointerCapture(event.pointerId);
  });
  one.figure.addEventListener("pointermove", event => {
    const at = share(event);
    read(step(at));
    if (start === null) return;
    choice.style.display = "";
    choice.style.left = `${100 * Math.min(start, at)}%`;
    choice.style.width = `${100 * Math.abs(at - start)}%`;
  });
  one.figure.addEventListener("pointerup", event => {
    const at = share(event), from = start;
    start = null;
    choice.style.display = "none";
    if (from !== null && Math.abs(at - from) > 0.01) zoom(step(Math.min(from, at)), step(Math.max(from, at)));
  });
  one.figure.addEventListener("pointerleave", () => { if (start === null) read(null); });
  one.figure.addEventListener("dblclick", () => zoom(...whole));
}
