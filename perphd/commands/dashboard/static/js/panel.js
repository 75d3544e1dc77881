// The panel in front of the page: perphd's decisions about a workload, with their reasons.

import { el, fill, find, parts } from "./dom.js";
import { ask } from "./net.js";

const panel = find("panel");
let opened = 0;

find("panel-close").addEventListener("click", () => panel.close());
panel.addEventListener("click", (event) => {
  if (event.target === panel) panel.close();
});

/** Explains a workload: its newest decisions, or those up to a moment. */
export async function explain(name, at_s = null) {
  const mine = ++opened;
  find("panel-title").textContent = `Why ${name} has its settings`;
  fill(find("panel-body"), el("p", { class: "dim", text: "Loading" }));
  if (!panel.open) panel.showModal();
  try {
    const answer = await ask("explain", { workload: name, at: at_s });
    if (mine !== opened) return;
    const made = parts(answer.parts);
    fill(find("panel-body"), ...(made.length ? made : [el("p", { text: "No decision about it is stored." })]));
  } catch (error) {
    if (mine === opened) fill(find("panel-body"), el("p", { class: "bad", text: error.message }));
  }
}
