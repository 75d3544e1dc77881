// The fleet page: the extender's nodes and calls, updated every few seconds, and the placement of a pod.

import { el, fill, find, moment, parts, say } from "./dom.js";
import { ask } from "./net.js";

const PERIOD_MS = 5000;

function state(kind, text) {
  find("state").className = `link ${kind}`;
  say(find("state"), text);
}

function note(text) {
  say(find("notes"), text);
  find("notes").hidden = text === "";
}

async function look() {
  try {
    const data = await ask("fleet");
    if (data.extender === "") {
      note("No extender is named. Start the dashboard with perphctl dashboard --extender URL.");
      return state("offline", "no extender");
    }
    fill(find("fleet"), ...parts(data.parts));
    for (const id of ["nodes-section", "pod-section"]) find(id).hidden = false;
    note("");
    state("live", `${data.extender}, ${moment(Date.now() / 1000)}`);
  } catch (error) {
    note(error.message);
    state("offline", "no answer");
  }
  setTimeout(look, PERIOD_MS);
}

find("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const place = find("placement");
  try {
    fill(place, ...parts((await ask("placement", { pod: find("pod").value.trim() })).parts));
  } catch (error) {
    fill(place, el("p", { class: "bad", text: error.message }));
  }
});

look();
