// The forms: the prediction for new batch work and, if this server allows it, the buttons that control perphd.

import { el, fill, find, parts, say } from "./dom.js";
import { ask, change, rights } from "./net.js";

find("whatif").addEventListener("submit", async (event) => {
  event.preventDefault();
  const place = find("whatif-answer");
  try {
    const answer = await ask("whatif", { cpu: find("whatif-cpu").value, mem: find("whatif-mem").value });
    fill(place, ...parts(answer.parts));
  } catch (error) {
    fill(place, el("p", { class: "bad", text: error.message }));
  }
});

const ACTIONS = {
  "admin-pause": ["pause", { for_s: 3600, reason: "from the dashboard" }, "Pause perphd for an hour? It restores everything that it has changed."],
  "admin-resume": ["resume", {}, "Resume perphd?"],
  "admin-observe": ["mode", { mode: "observe" }, "Observe only? perphd restores everything that it has changed."],
  "admin-enforce": ["mode", { mode: "enforce" }, "Enforce? perphd then changes settings of the declared workloads."],
};

for (const [id, [path, body, question]] of Object.entries(ACTIONS))
  find(id).addEventListener("click", async () => {
    if (!confirm(question)) return;
    try {
      await change(path, body);
      say(find("admin-answer"), "Done.");
    } catch (error) {
      say(find("admin-answer"), error.message);
    }
  });

rights().then(
  ({ admin }) => (find("admin").hidden = !admin),
  () => {}
);
