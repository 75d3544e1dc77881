// Draws one moment: workloads, the host, changes, and conditions that need an operator.

import { el, fill, find, moment, say, table, toned } from "./dom.js";
import { drawMaps } from "./maps.js";

const PARTS = ["lras", "batch", "undeclared", "kernel", "steal", "idle"];
const NAMES = { lras: "applications", undeclared: "undeclared work" };

/** Draws a picture. `explain(name)` opens the explanation of a workload. */
export function draw(picture, explain) {
  say(find("headline"), picture.headline.text);
  document.body.dataset.tick = picture.tick;
  document.body.dataset.at = picture.at_s;
  rows(find("lras"), "Applications and their settings", picture.lra_heads, picture.lras, [2, 3, 4, 5, 6], explain);
  rows(find("batch"), "Batch and its settings", picture.batch_heads, picture.batch, [2, 3, 4], explain);
  host(picture);
  drawMaps(find("maps"), picture);
  changes(picture);
  needs(picture);
}

/** A table of workloads. While the workloads are the same, its elements are kept and only their texts change. */
function rows(place, caption, heads, items, right, explain) {
  if (items.length === 0) {
    fill(place, el("p", { class: "dim", text: "None is declared." }));
    delete place.dataset.names;
    return;
  }
  const names = items.map((item) => item.name).join("\n");
  if (place.dataset.names !== names) {
    place.dataset.names = names;
    const data = { caption, columns: heads, right, rows: items.map((item) => item.cells) };
    const made = table(data, (number) => {
      const name = items[number].name;
      return el("button", { type: "button", onclick: () => explain(name), "aria-label": `Explain ${name}`, text: "Explain" });
    });
    fill(place, made, el("div", { class: "why" }));
  }
  items.forEach((item, number) => {
    const row = place.querySelector("tbody").rows[number];
    item.cells.forEach((cell, i) => {
      say(row.cells[i], cell.text);
      const tone = i === 1 ? cell.tone || item.tone : cell.tone;
      row.cells[i].className = [right.includes(i) ? "n" : "", tone].filter(Boolean).join(" ");
    });
  });
  const lines = items.flatMap((item) => item.why ?? []);
  const why = place.querySelector(".why");
  const words = JSON.stringify(lines);
  if (why.dataset.words !== words) {
    why.dataset.words = words;
    fill(why, ...lines.map((line) => toned(line, "p")));
  }
}

function host(picture) {
  const cpu = picture.host.cpu;
  const place = find("host-bar");
  if (cpu === null) {
    fill(place, el("p", { class: "dim", text: "Not measured yet." }));
  } else {
    const words = PARTS.map((part) => `${NAMES[part] ?? part} ${cpu[part].toFixed(1)}`);
    fill(place, stack(cpu, `CPUs, of ${cpu.capacity}: ${words.join(", ")}`), el("ul", { class: "legend plain" },
      ...PARTS.map((part) => el("li", {}, el("span", { class: `key ${part}` }), `${NAMES[part] ?? part} ${cpu[part].toFixed(2)} CPUs`))));
  }
  const lines = picture.host.lines.slice(1).map((line) => line.trim());
  const at = find("host-lines");
  if (at.dataset.words !== lines.join("\n")) {
    at.dataset.words = lines.join("\n");
    fill(at, ...lines.map((line) => el("p", { text: line })));
  }
}

function stack(cpu, words) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${cpu.capacity} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", words);
  let from = 0;
  for (const part of PARTS) {
    const bar = document.createElementNS(space, "rect");
    for (const [key, value] of Object.entries({ x: from, y: 0, width: Math.max(0, cpu[part]), height: 1, class: `fill-${part}` }))
      bar.setAttribute(key, value);
    from += Math.max(0, cpu[part]);
    svg.append(bar);
  }
  return el("div", { class: "stack" }, svg);
}

function changes(picture) {
  const place = find("changes");
  const key = JSON.stringify(picture.changes);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  if (picture.changes.length === 0) {
    fill(place, el("li", {}, el("span", { class: "dim", text: "None yet." })));
    return;
  }
  fill(place, ...picture.changes.map((item) =>
    el("li", { class: "with-date" }, el("time", { datetime: new Date(item.at_s * 1000).toISOString(), text: moment(item.at_s, true) }),
      el("span", { class: "text", text: item.text }))));
}

function needs(picture) {
  const place = find("needs-list");
  find("needs").hidden = picture.needs.length === 0;
  const key = JSON.stringify(picture.needs);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  fill(place, ...picture.needs.map((line) => toned(line, "li")));
}

/** The text that a screen reader reads aloud after a new picture; empty if nothing important has changed. */
export function news(before, now) {
  if (before === null) return "";
  const told = [];
  const old = new Map([...before.lras, ...before.batch].map((item) => [item.name, item]));
  for (const item of now.lras) {
    const was = old.get(item.name);
    if (was && was.tone !== item.tone && (was.tone === "bad" || item.tone === "bad")) told.push(`${item.name}: ${item.cells[1].text}`);
  }
  const known = new Set(before.needs.map((line) => line.text));
  told.push(...now.needs.filter((line) => !known.has(line.text)).map((line) => line.text));
  return told.join(". ");
}
