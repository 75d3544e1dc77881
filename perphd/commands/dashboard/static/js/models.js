// A model's predictions: curves with the bounds that the policy uses, and tables.

import { colour } from "./chart.js";
import { el, fill, find, parts } from "./dom.js";
import { ask } from "./net.js";

const COLOURS = ["lra", "batch", "undeclared"];
let drawn = [];
let shown = null;

/** Offers these names of LRAs for selection. */
export function offer(names) {
  const place = find("model-lra");
  if ([...place.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  fill(place, ...names.map((name) => el("option", { value: name, text: name })));
}

find("model-load").addEventListener("click", async () => {
  try {
    shown = await ask("model", { lra: find("model-lra").value });
    draw();
  } catch (error) {
    fill(find("model"), el("p", { class: "bad", text: error.message }));
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw());
addEventListener("resize", () => shown && draw());

function draw() {
  drawn.forEach((plot) => plot.destroy());
  drawn = [];
  const place = find("model");
  const figures = shown.charts.map((chart) => {
    const plot = el("div", { class: "plot", role: "img", "aria-label": words(chart) });
    const keys = chart.lines.map((line, i) => el("span", { class: "dim" }, el("span", { class: `dot ${COLOURS[i]}` }), ` ${line.label}`));
    return { chart, plot, figure: el("figure", {}, el("figcaption", {}, el("strong", { text: chart.title }), el("span", { class: "keys" }, ...keys)), plot) };
  });
  const details = el("details", {}, el("summary", { text: "All predictions as tables" }), ...parts(shown.parts));
  fill(place, el("div", { class: "plots" }, ...figures.map((item) => item.figure)), details);
  for (const { chart, plot } of figures) drawn.push(curve(chart, plot));
}

function curve(chart, place) {
  const xs = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const column = (line, key) => xs.map((x) => (line.x.includes(x) ? line[key][line.x.indexOf(x)] ?? null : null));
  const data = [xs];
  const series = [{}];
  const bands = [];
  chart.lines.forEach((line, i) => {
    const stroke = colour(COLOURS[i]);
    data.push(column(line, "y"), column(line, "high"), column(line, "low"));
    series.push({ stroke, width: 2, spanGaps: true, points: { show: true, size: 6, fill: stroke } });
    for (let n = 0; n < 2; n++) series.push({ stroke, width: 0.6, dash: [2, 3], spanGaps: true, points: { show: false } });
    bands.push({ series: [3 * i + 2, 3 * i + 3], fill: `${stroke}26` });
  });
  const grid = { stroke: colour("grid"), width: 1 };
  const axis = { stroke: colour("dim"), grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 22 };
  return new window.uPlot({
    width: Math.max(200, Math.floor(place.clientWidth)), height: 260, legend: { show: false }, bands, series,
    cursor: { show: false },
    scales: { x: { time: false, range: (_, low, high) => [low - 0.2, high + 0.2] }, y: { range: (_, low, high) => [0, high * 1.05] } },
    axes: [{ ...axis, label: chart.x_label, incrs: [1, 2, 4, 8, 16] }, { ...axis, label: chart.y_label, size: 46 }],
  }, data, place);
}

function words(chart) {
  const each = chart.lines.map((line) => {
    const points = line.x.map((x, i) => `${x}: ${line.y[i].toFixed(2)} (${line.low[i].toFixed(2)} to ${line.high[i].toFixed(2)})`);
    return `${line.label}: ${points.join(", ")}`;
  });
  return `${chart.title}. ${each.join(". ")}`;
}
