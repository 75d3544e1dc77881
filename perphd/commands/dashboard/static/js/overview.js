// The overview: draws the live stream, or a moment of the past.

import { el, find, moment, say } from "./dom.js";
import "./forms.js";
import { draw, news } from "./live.js";
import { offer } from "./models.js";
import { follow } from "./net.js";
import { explain } from "./panel.js";
import { Plots } from "./plots.js";
import { Replay } from "./replay.js";

const MAX_EVENTS = 200;
let last = null;

const plots = new Plots(explain, () => replay.span());
const replay = new Replay(plots, (picture) => {
  link("replay", "the past");
  draw(picture, why);
}, () => {
  link("live", "live");
  if (last !== null) draw(last, why);
});

/** Explains a workload at the shown moment. */
function why(name) {
  explain(name, replay.at_s);
}

function link(kind, text) {
  const place = find("link");
  place.className = `link ${kind}`;
  say(place, text);
}

function announced(event) {
  const list = find("events");
  const at = el("time", { datetime: new Date(event.at_s * 1000).toISOString(), text: moment(event.at_s) });
  const who = event.workload ? `${event.workload}: ` : "";
  const by = event.by ? ` (by ${event.by})` : "";
  list.prepend(el("li", {}, at, el("span", { class: "text" }, el("span", { class: "dim", text: `${event.kind} ` }), `${who}${event.text}${by}`)));
  while (list.children.length > MAX_EVENTS) list.lastChild.remove();
}

const names = (picture) => picture.lras.map((item) => item.name);

find("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
follow({
  picture(picture) {
    const told = news(last, picture);
    if (told) say(find("said"), told);
    const isOther = last === null || names(last).join("\n") !== names(picture).join("\n");
    last = picture;
    offer(names(picture));
    if (isOther) plots.load();
    else plots.add(picture);
    if (plots.data !== null) replay.span();
    if (replay.active) return;
    link("live", "live");
    draw(picture, why);
  },
  event(event) {
    announced(event);
    plots.mark(event);
  },
  offline({ why: reason }) {
    link("offline", `no connection: ${reason}`);
  },
});
