// Replay: a slider through the stored past, and steps from decision to decision.

import { find, moment, say } from "./dom.js";
import { ask } from "./net.js";

const WAIT_MS = 120;

export class Replay {
  /** `show(picture)` draws a moment of the past, `back()` the present. `plots`: the plots, whose period it covers. */
  constructor(plots, show, back) {
    Object.assign(this, { plots, show, back, at_s: null, asked: 0, timer: null });
    this.slider = find("moment");
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    find("back").addEventListener("click", () => this.step(-1));
    find("on").addEventListener("click", () => this.step(1));
    find("live").addEventListener("click", () => this.end());
  }

  get active() {
    return this.at_s !== null;
  }

  /** Sets the slider to the period of the plots. */
  span() {
    const { since_s, until_s, bucket_s, at_s } = this.plots.data;
    this.slider.min = at_s[0] ?? since_s;
    this.slider.max = at_s.at(-1) ?? until_s;
    this.slider.step = bucket_s;
    for (const id of ["moment", "back", "on"]) find(id).disabled = false;
    if (!this.active) this.slider.value = this.slider.max;
    this.say();
  }

  /** Shows this moment; the newest one means the present. */
  choose(at_s) {
    if (at_s >= Number(this.slider.max)) {
      this.end();
      return;
    }
    this.at_s = at_s;
    this.say();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), WAIT_MS);
  }

  async load() {
    const mine = ++this.asked;
    const at_s = this.at_s;
    this.plots.point(at_s);
    try {
      const picture = await ask("past", { at: at_s });
      if (mine === this.asked && this.active) this.show(picture);
    } catch (error) {
      if (mine === this.asked) say(find("plots-note"), error.message);
    }
  }

  step(way) {
    const now_s = this.at_s ?? Number(this.slider.max);
    const marks = this.plots.marks();
    // Show one second after the decision, so that the decision itself is included.
    const next = way < 0 ? marks.findLast((at_s) => at_s + 1 < now_s - 0.5) : marks.find((at_s) => at_s + 1 > now_s + 0.5);
    if (next === undefined) {
      if (way > 0) this.end();
      return;
    }
    this.at_s = next + 1;
    this.slider.value = this.at_s;
    this.say();
    this.load();
  }

  end() {
    if (!this.active) return;
    this.at_s = null;
    this.asked++;
    clearTimeout(this.timer);
    this.slider.value = this.slider.max;
    this.plots.point(null);
    this.say();
    this.back();
  }

  say() {
    const text = this.active ? moment(this.at_s, true) : "now";
    say(find("moment-text"), text);
    this.slider.setAttribute("aria-valuetext", text);
    find("live").disabled = !this.active;
    document.body.classList.toggle("past", this.active);
  }
}
