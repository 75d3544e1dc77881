// The overview: follows the live stream and draws it.

import { el, find, moment, say } from "./dom.js";
import { draw, news } from "./live.js";
import { follow } from "./net.js";
import { explain } from "./panel.js";
import { Plots } from "./plots.js";

const MAX_EVENTS = 200;
let last = null;

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
  list.prepend(el("li", {}, at, el("span", { class: "text", text: `${event.kind}  ${who}${event.text}${by}` })));
  while (list.children.length > MAX_EVENTS) list.lastChild.remove();
}

const plots = new Plots(explain, () => {});

follow({
  picture(picture) {
    link("live", "live");
    if (last === null || last.lras.map((item) => item.name).join() !== picture.lras.map((item) => item.name).join()) plots.load();
    else plots.add(picture);
    const told = news(last, picture);
    if (told) say(find("said"), told);
    draw(picture, explain);
    last = picture;
  },
  event(event) {
    announced(event);
    plots.mark(event);
  },
  offline({ why }) {
    link("offline", `no connection: ${why}`);
  },
});
