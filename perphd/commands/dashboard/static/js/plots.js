// The plots of the applications and the host over the selected period, updated live.

import { Chart } from "./chart.js";
import { el, fill, find, moment, say } from "./dom.js";
import { ask } from "./net.js";

const NAMES = { 3600: "1 hour", 21600: "6 hours", 86400: "1 day", 604800: "7 days" };
const TONES = { grow: "accent", shrink: "good", release: "good", explore: "undeclared", rollback: "batch" };
const SOURCES = { sli: "requests", mips: "instructions", cpu: "CPU time" };
const HOST = [["lras", "applications", "lra"], ["batch", "batch", "batch"], ["undeclared", "undeclared work", "undeclared"]];

export class Plots {
  /** `explain(name, at_s)` opens an explanation. `changed()` is called when another period is shown. */
  constructor(explain, changed) {
    Object.assign(this, { explain, changed, data: null, cards: new Map(), last_s: 3600, asked: 0, open: new Map() });
    this.buttons = Object.entries(NAMES).map(([seconds, text]) =>
      el("button", { type: "button", "aria-pressed": String(Number(seconds) === this.last_s), onclick: () => this.range(Number(seconds)), text })
    );
    fill(find("ranges"), ...this.buttons);
    this.host = new Chart("Host: who used the CPUs", "CPUs", HOST.map(([, label, colour]) => ({ label, colour })));
    fill(find("host-plot"), this.host.figure);
  }

  range(seconds) {
    this.last_s = seconds;
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(Number(Object.keys(NAMES)[i]) === seconds)));
    return this.load();
  }

  async load() {
    const mine = ++this.asked;
    say(find("plots-note"), "Loading the past");
    try {
      const data = await ask("history", { last_s: this.last_s });
      if (mine !== this.asked) return;
      this.data = data;
      this.open.clear();
      say(find("plots-note"), "");
      this.show();
      this.changed();
    } catch (error) {
      if (mine === this.asked) say(find("plots-note"), error.message);
    }
  }

  show() {
    const names = Object.keys(this.data.lras);
    if ([...this.cards.keys()].join("\n") !== names.join("\n")) {
      for (const card of this.cards.values()) card.charts.forEach((chart) => chart.remove());
      this.cards = new Map(names.map((name) => [name, this.card(name, this.data.lras[name])]));
      fill(find("plots"), ...[...this.cards.values()].map((card) => card.place));
    }
    for (const name of names) this.draw(name);
    this.drawHost();
  }

  drawHost() {
    this.host.set([this.data.at_s, ...HOST.map(([part]) => this.data.host[part])]);
  }

  card(name, lra) {
    const chosen = (mark) => this.explain(name, mark.at_s);
    const percentile = /^latency_p(\d+)_ms$/.exec(lra.delay_source);
    const what = percentile ? `p${percentile[1]} latency` : "waiting for CPUs";
    const delay = new Chart(`${name}: ${what}`, lra.delay_unit, [
      { label: what, colour: "lra", fill: "22" },
      { label: "at most", colour: "target", dash: [6, 4], step: true },
    ], chosen);
    const rate = new Chart(`${name}: ${SOURCES[lra.work_source] ?? "work"}`, lra.work_unit, [
      { label: "rate", colour: "lra", fill: "22" },
      { label: "target", colour: "target", dash: [6, 4], step: true },
    ], chosen);
    const cpu = new Chart(`${name}: CPU time`, "CPUs", [{ label: "used", colour: "lra", fill: "22" }], chosen);
    const list = el("ol", { class: "log plain", tabindex: "0", "aria-label": `Decisions about ${name}` });
    const count = el("summary", { text: "Decisions" });
    const decisions = el("details", { class: "decisions" }, count, list);
    const place = el("div", { class: "card" }, el("div", { class: "plots" }, delay.figure, rate.figure, cpu.figure), decisions);
    return { place, charts: [delay, rate, cpu], list, count };
  }

  draw(name) {
    const { at_s, lras } = this.data;
    const lra = lras[name];
    const card = this.cards.get(name);
    const marks = lra.marks.map((mark) => ({ ...mark, tone: TONES[mark.action] ?? "dim", label: `${mark.action}: ${mark.reason}` }));
    const [delay, rate, cpu] = card.charts;
    delay.set([at_s, lra.delay, lra.target_delay], marks);
    rate.set([at_s, lra.work, lra.target_work], marks);
    cpu.set([at_s, lra.cpu], marks);
    const key = `${marks.length} ${marks.at(-1)?.at_s}`;
    if (card.list.dataset.key === key) return;
    card.list.dataset.key = key;
    card.count.textContent = `${marks.length} decision${marks.length === 1 ? "" : "s"} about ${name} in this period`;
    fill(card.list, ...marks.toReversed().map((mark) =>
      el("li", { class: "with-date" }, el("time", { datetime: new Date(mark.at_s * 1000).toISOString(), text: moment(mark.at_s, true) }),
        el("button", { type: "button", class: "quiet", onclick: () => this.explain(name, mark.at_s), text: mark.label }))));
  }

  /** Adds the newest numbers: they are averaged into the last bucket, or begin the next one. */
  add(picture) {
    if (this.data === null) return;
    const { bucket_s, at_s, lras } = this.data;
    const middle = (Math.floor((picture.at_s - this.data.since_s) / bucket_s) + 0.5) * bucket_s + this.data.since_s;
    const isNew = middle > at_s.at(-1) + bucket_s / 2;
    if (isNew) {
      at_s.push(middle);
      at_s.shift();
      for (const lra of Object.values(lras))
        for (const key of ["work", "delay", "cpu", "target_work", "target_delay"]) {
          lra[key].push(null);
          lra[key].shift();
        }
      for (const [part] of HOST) {
        this.data.host[part].push(null);
        this.data.host[part].shift();
      }
      this.open.clear();
    }
    for (const item of picture.lras) {
      const lra = lras[item.name];
      if (!lra || item.live === null) continue;
      const now = item.live;
      this.average(item.name, lra, "work", now.work_source === lra.work_source || !lra.work_source ? now.work : null);
      this.average(item.name, lra, "delay", now.delay_source === lra.delay_source || !lra.delay_source ? now.delay : null);
      this.average(item.name, lra, "cpu", now.cpu);
      lra.target_work[lra.target_work.length - 1] = now.target_work;
      lra.target_delay[lra.target_delay.length - 1] = now.target_delay;
    }
    if (picture.host.cpu !== null)
      for (const [part] of HOST) this.average("", this.data.host, part, picture.host.cpu[part]);
    for (const name of this.cards.keys()) this.draw(name);
    this.drawHost();
  }

  average(name, lra, key, value) {
    if (value === null) return;
    const last = lra[key].length - 1;
    const id = `${name} ${key}`;
    const [mean, count] = this.open.get(id) ?? [lra[key][last] ?? 0, lra[key][last] === null ? 0 : this.held()];
    const made = (mean * count + value) / (count + 1);
    this.open.set(id, [made, count + 1]);
    lra[key][last] = made;
  }

  /** Assumed number of values, one a second, in the store's mean of the last bucket: half a bucket's. */
  held() {
    return Math.max(1, Math.round(this.data.bucket_s / 2));
  }

  /** Marks a decision that was just made. */
  mark(event) {
    const lra = this.data?.lras[event.workload];
    if (!lra || !event.action) return;
    lra.marks.push({ at_s: event.at_s, action: event.action, reason: event.text });
    this.draw(event.workload);
  }

  /** Draws a line at a moment in all plots; null removes it. */
  point(at_s) {
    for (const card of this.cards.values()) for (const chart of card.charts) chart.point(at_s);
    this.host.point(at_s);
  }

  /** The times of all decisions shown, oldest first. */
  marks() {
    return Object.values(this.data?.lras ?? {}).flatMap((lra) => lra.marks.map((mark) => mark.at_s)).sort((a, b) => a - b);
  }
}
