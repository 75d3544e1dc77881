// A plot over time, drawn by uPlot, with a line at the target and marks for decisions; and the same in words.

import { el, figure, fill, moment } from "./dom.js";

const HEIGHT = 190;
const NEAR_PX = 9;
const MOST_LINES = 30; // with more decisions, only their marks at the top are drawn, because lines would hide the plot
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = new Set();

/** A colour of the style sheet, in the present colour scheme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

dark.addEventListener("change", () => {
  for (const chart of charts) chart.draw();
});

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const width = Math.floor(entry.contentRect.width);
    for (const chart of charts) if (chart.place === entry.target) chart.resize(width);
  }
});

/**
 * A figure with a plot. `lines`: [{label, colour, dash, step, width, fill}] in the order of the data's columns.
 * `onMark(mark)` is called when the user clicks a decision. Data: [times, ...columns], null where nothing was measured.
 */
export class Chart {
  constructor(title, unit, lines, onMark = null) {
    Object.assign(this, { title, unit, lines, onMark, marks: [], data: [[], ...lines.map(() => [])], plot: null, shown_s: null });
    this.place = el("div", { class: "plot", role: "img" });
    this.now = el("span", { class: "now" });
    this.tip = el("div", { class: "tip", "aria-hidden": "true" });
    this.numbers = el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `${title}: numbers` });
    const details = el("details", {}, el("summary", { text: "Numbers" }), this.numbers);
    details.addEventListener("toggle", () => details.open && this.tell());
    this.details = details;
    const keys = lines.map((line) => el("span", { class: "dim" }, swatch(line), ` ${line.label}`));
    this.figure = el("figure", {}, el("figcaption", {}, el("strong", { text: title }), this.now, el("span", { class: "keys" }, ...keys)), this.place, this.tip, details);
    charts.add(this);
    sizes.observe(this.place);
  }

  /** Shows these values. `marks`: [{at_s, label, tone}]. */
  set(data, marks = []) {
    this.data = data;
    this.marks = marks;
    if (this.plot === null) this.draw();
    else this.plot.setData(data);
    this.describe();
  }

  /** Draws a line at the replayed moment; null removes it. */
  point(at_s) {
    this.shown_s = at_s;
    this.plot?.redraw(false);
  }

  resize(width) {
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
    else if (!this.plot && width > 0) this.draw();
  }

  remove() {
    charts.delete(this);
    sizes.unobserve(this.place);
    this.plot?.destroy();
  }

  draw() {
    const width = Math.floor(this.place.clientWidth);
    this.plot?.destroy();
    this.plot = null;
    if (width === 0) return;
    const ink = colour("dim");
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif" };
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), nice(high)] } },
      axes: [
        { ...axis, space: 80, values: (_, at) => times(at) },
        { ...axis, size: 58, values: (_, at) => at.map((value) => `${trim(value)}${this.unit === "x" ? "×" : ""}`) },
      ],
      series: [{}, ...this.lines.map((line) => series(line))],
      hooks: { draw: [(plot) => this.drawMarks(plot)], setCursor: [(plot) => this.hover(plot)] },
    };
    this.plot = new window.uPlot(options, this.data, this.place);
    this.plot.over.addEventListener("click", () => {
      const mark = this.near(this.plot);
      if (mark && this.onMark) this.onMark(mark);
    });
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.setLineDash([]);
    for (const mark of this.marks) {
      const x = plot.valToPos(mark.at_s, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.tone);
      if (this.marks.length <= MOST_LINES) {
        ctx.globalAlpha = 0.55;
        ctx.lineWidth = ratio;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.moveTo(x - 5 * ratio, bbox.top);
      ctx.lineTo(x + 5 * ratio, bbox.top);
      ctx.lineTo(x, bbox.top + 8 * ratio);
      ctx.fill();
    }
    if (this.shown_s !== null) {
      const x = plot.valToPos(this.shown_s, "x", true);
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  near(plot) {
    const left = plot.cursor.left;
    let best = null;
    let distance = NEAR_PX;
    for (const mark of this.marks) {
      const away = Math.abs(plot.valToPos(mark.at_s, "x") - left);
      if (away <= distance) [best, distance] = [mark, away];
    }
    return best;
  }

  hover(plot) {
    const i = plot.cursor.idx;
    if (i === null || i === undefined || plot.cursor.left < 0) {
      this.tip.textContent = "";
      return;
    }
    const mark = this.near(plot);
    plot.over.style.cursor = mark && this.onMark ? "pointer" : "";
    const values = this.lines.map((line, n) => `${line.label} ${this.amount(this.data[n + 1][i])}`);
    this.tip.textContent = `${moment(this.data[0][i], true)}  ${values.join(", ")}${mark ? `  ▼ ${mark.label}` : ""}`;
  }

  amount(value) {
    return value === null || value === undefined ? "not measured" : `${figure(value)}${this.unit ? ` ${this.unit}` : ""}`;
  }

  /** Shows the newest value beside the title, and describes the plot in a sentence for screen readers. */
  describe() {
    const [times_s, first] = this.data;
    const known = first.filter((value) => value !== null && value !== undefined);
    const last = known.at(-1);
    this.now.textContent = known.length ? this.amount(last) : "nothing was measured";
    const over = known.length
      ? `${this.lines[0].label} between ${this.amount(Math.min(...known))} and ${this.amount(Math.max(...known))}, last ${this.amount(last)}`
      : "nothing was measured";
    const rest = this.lines.slice(1).flatMap((line, n) => {
      const value = this.data[n + 2].findLast((item) => item !== null && item !== undefined);
      return value === undefined ? [] : [`${line.label} ${this.amount(value)}`];
    });
    const marks = this.marks.length ? [`${this.marks.length} decisions`] : [];
    const when = times_s.length ? `from ${moment(times_s[0], true)} to ${moment(times_s.at(-1), true)}` : "";
    this.place.setAttribute("aria-label", [`${this.title} ${when}: ${over}`, ...rest, ...marks].join("; "));
    if (this.details.open) this.tell();
  }

  /** Shows the plot as a table of about two dozen rows. */
  tell() {
    const [times_s, ...columns] = this.data;
    const step = Math.max(1, Math.floor(times_s.length / 24));
    const rows = [];
    for (let i = times_s.length - 1; i >= 0; i -= step)
      rows.push(el("tr", {}, el("th", { scope: "row", text: moment(times_s[i], true) }), ...columns.map((column) => el("td", { class: "n", text: this.amount(column[i]) }))));
    const heads = this.lines.map((line) => el("th", { scope: "col", class: "n", text: line.label }));
    fill(this.numbers, el("table", {}, el("caption", { text: `${this.title}, newest first` }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Time" }), ...heads)), el("tbody", {}, ...rows)));
  }
}

function series(line) {
  const made = { label: line.label, stroke: () => colour(line.colour), width: line.width ?? 1.6, dash: line.dash, spanGaps: false, points: { show: false } };
  if (line.step) made.paths = window.uPlot.paths.stepped({ align: 1 });
  if (line.fill) made.fill = () => `${colour(line.colour)}${line.fill}`;
  return made;
}

function swatch(line) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({ width: 18, height: 8, "aria-hidden": "true", class: `swatch ${line.colour}` })) svg.setAttribute(key, value);
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", "M0 4h18");
  if (line.dash) path.setAttribute("stroke-dasharray", line.dash.join(" "));
  svg.append(path);
  return svg;
}

/** The upper end of the axis, slightly above the greatest value. */
function nice(high) {
  return high > 0 ? high * 1.08 : 1;
}

function trim(value) {
  return Math.abs(value) >= 1000 ? `${(value / 1000).toFixed(1).replace(/\.0$/, "")}k` : String(Number(value.toPrecision(3)));
}

/** The texts of ticks, in this browser's time zone; the first tick of each day also shows the date. */
function times(ticks) {
  const two = (number) => String(number).padStart(2, "0");
  let day = null;
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const date = `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const isNew = date !== day;
    day = date;
    const time = ticks.length > 1 && ticks[1] - ticks[0] < 60 ? moment(tick) : `${two(at.getHours())}:${two(at.getMinutes())}`;
    if (ticks.length > 1 && ticks[1] - ticks[0] >= 86400) return date;
    return isNew ? `${time}\n${date}` : time;
  });
}
