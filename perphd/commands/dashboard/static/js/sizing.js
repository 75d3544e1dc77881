// The sizing page: tables, and a bar for each workload, scaled to the greatest of its amounts.

import { el, fill, find, moment, parts, say, table } from "./dom.js";
import { ask } from "./net.js";

const SPACE = "http://www.w3.org/2000/svg";
const KEYS = [
  ["p50", "median of use"], ["p99", "99th percentile of use"], ["max", "greatest use"],
  ["next", "forecast of the next minute"], ["reserved", "reserved"], ["recommended", "recommended"],
];

function shape(name, attributes) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function bar(item) {
  const most = Math.max(...[item.greatest, item.reserved, item.recommended, item.next?.high].filter((value) => value !== null && value !== undefined), 0);
  const said = Object.entries({ reserved: "reserved", now: "now", p50: "p50", p95: "p95", p99: "p99", greatest: "greatest", recommended: "recommended" })
    .filter(([key]) => item.texts[key] !== undefined).map(([key, name]) => `${name} ${item.texts[key]}`);
  if (item.next_text) said.push(`next minute ${item.next_text}`);
  const words = said.join(", ") || "not measured";
  const head = el("p", {}, el("strong", { text: item.workload }), el("span", { class: "dim", text: `  ${item.missing || item.reason}` }));
  if (most === 0) return el("div", {}, head, el("p", { class: "dim", text: words }));
  const at = (value) => (100 * value) / (most * 1.02);
  const svg = shape("svg", { role: "img", "aria-label": `${item.workload}: ${words}`, viewBox: "0 0 100 34", preserveAspectRatio: "none" });
  svg.append(shape("rect", { class: "b-track", x: 0, y: 6, width: 100, height: 16 }));
  for (const [key, kind] of [["greatest", "b-max"], ["p99", "b-p99"], ["p50", "b-p50"]])
    if (item[key] !== null) svg.append(shape("rect", { class: kind, x: 0, y: 6, width: at(item[key]), height: 16 }));
  if (item.next) svg.append(shape("rect", { class: "b-next", x: at(item.next.low), y: 25, width: Math.max(0.4, at(item.next.high) - at(item.next.low)), height: 5 }));
  for (const key of ["reserved", "recommended"])
    if (item[key] !== null) svg.append(shape("rect", { class: `b-${key}`, x: at(item[key]) - 0.2, y: 2, width: 0.4, height: 24 }));
  return el("div", {}, head, svg);
}

function section(resource, number) {
  const id = `resource-${number}`;
  const keys = KEYS.map(([key, name]) => el("li", {}, el("span", { class: `key ${key}` }), name));
  return el("section", { "aria-labelledby": id }, el("h2", { id, text: resource.title }),
    el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `${resource.title}: sizes` }, table(resource.table)),
    el("div", { class: "bars" }, ...resource.bars.map(bar)), el("ul", { class: "legend plain" }, ...keys));
}

try {
  const data = await ask("sizing");
  fill(find("resources"), ...data.resources.map(section));
  fill(find("headroom"), ...parts(data.headroom));
  find("headroom-section").hidden = false;
  say(find("notes"), data.notes.join(" "));
  find("notes").hidden = data.notes.length === 0;
  find("state").className = "link live";
  say(find("state"), `samples until ${moment(data.newest_s, true)}`);
} catch (error) {
  say(find("notes"), error.message);
  find("state").className = "link offline";
  say(find("state"), "no sizes");
}
