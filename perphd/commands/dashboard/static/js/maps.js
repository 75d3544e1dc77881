// Maps of the cores and the cache ways, with the workloads that may use them.

import { el, fill } from "./dom.js";

/** Draws the cores and ways with their owners, and a legend. */
export function drawMaps(place, picture) {
  const key = JSON.stringify([picture.owners, picture.cores, picture.ways]);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const blocks = [cores(picture), ...picture.ways.map((strip) => ways(strip, picture))];
  fill(place, ...blocks, legend(picture));
}

function cores(picture) {
  const sockets = new Map();
  for (const core of picture.cores) {
    if (!sockets.has(core.socket)) sockets.set(core.socket, []);
    sockets.get(core.socket).push(core);
  }
  const rows = [...sockets].map(([socket, list]) =>
    el(
      "div",
      { class: "strip", role: "img", "aria-label": `Socket ${socket}: ${inWords(list, picture)}` },
      ...list.map((core) => el("span", { class: "core" }, ...core.cpus.map((cpu, i) => unit(picture.owners[core.owners[i]], cpu))))
    )
  );
  return el("div", { class: "map" }, el("h3", { text: "Cores" }), ...rows);
}

function ways(strip, picture) {
  const words = byOwner(strip.owners.map((owner, way) => [owner, way]), picture, "ways");
  const cells = strip.owners.map((owner, way) => unit(picture.owners[owner], way, strip.shareable[way]));
  return el(
    "div",
    { class: "map" },
    el("h3", { text: `Cache ways of L3 ${strip.domain}` }),
    el("div", { class: "strip", role: "img", "aria-label": words }, el("span", { class: "core" }, ...cells))
  );
}

function unit(owner, number, shareable = false) {
  const title = `${number === "" ? "" : `${number}: `}${owner.name}${shareable ? ", filled by devices, too" : ""}`;
  return el("span", { class: `unit ${owner.share}`, title, text: owner.letter });
}

function inWords(list, picture) {
  return byOwner(list.flatMap((core) => core.cpus.map((cpu, i) => [core.owners[i], cpu])), picture, "CPUs");
}

function byOwner(pairs, picture, noun) {
  const numbers = new Map();
  for (const [owner, number] of pairs) numbers.set(owner, [...(numbers.get(owner) ?? []), number]);
  return [...numbers].map(([owner, list]) => `${picture.owners[owner].name} has ${noun} ${ranges(list)}`).join("; ");
}

/** Numbers as ranges: "0-2, 5" for 0, 1, 2, 5. */
export function ranges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(", ");
}

const SHARES = {
  lra: "applications only",
  batch: "batch only",
  shared: "applications and batch",
  free: "no declared workload",
  isolated: "reserved by the kernel's command line",
  offline: "offline",
};

function legend(picture) {
  const items = picture.owners.map((owner) =>
    el("li", {}, unit(owner, ""), ` ${owner.name === owner.share ? "" : `${owner.name}: `}${SHARES[owner.share]}`)
  );
  return el("ul", { class: "legend plain" }, ...items);
}
