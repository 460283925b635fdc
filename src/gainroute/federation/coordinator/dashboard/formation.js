// A run of `gainroute federate`: its stages, and each party's pace and traffic. Hidden unless one is in progress or stopped.

import { $, attributes, bytes, clock, count, el, keyed, text, visible } from "./dom.js";

const SIGNS = { done: "✓", running: "…", stopped: "▲", open: "·" };
const QUIET = 300; // seconds without news, after which a run is called interrupted

export async function showFormation(get, now) {
  const { run } = await get("/api/federation");
  const stages = Object.entries(run?.stages ?? {});
  const going = stages.some(([, state]) => state !== "done");
  visible($("formation"), going);
  if (!going) return;
  const late = now - run.time > QUIET;
  const stopped = stages.find(([, state]) => state === "stopped");
  const { stage, done, total, note } = run.progress ?? {};
  const doing = stage ? ` ${stage}: ${count(done)} of ${count(total)}${note ? `, ${note}` : ""}.` : "";
  const away = run.waiting_for ? ` ${stopped ? "Stopped" : "Waiting"}: party ${run.waiting_for} is away.` : "";
  const resume = stopped || late ? " The same command resumes it." : "";
  text($("formation-about"), `Version ${run.version} of ${run.federation}, as of ${clock(run.time)}.${doing}${away}${resume}`);
  keyed($("formation-stages"), stages, ([name]) => name, () => el("li", {}, el("span", { "aria-hidden": "true" }), el("span")), (node, [name, state]) => {
    attributes(node, { class: state, "data-stage": name, "data-state": state });
    text(node.children[0], SIGNS[state] ?? "·");
    text(node.children[1], `${name} ${state === "running" && late ? "interrupted" : state}`);
  });
  const make = () => el("tr", {}, el("th", { scope: "row" }), el("td"), el("td"), el("td"), el("td"));
  keyed($("formation-parties").tBodies[0], Object.entries(run.parties), ([name]) => name, make, (node, [name, party]) => {
    const works = party.stage ? `${party.stage} ${count(party.done)}/${count(party.total)} ${party.note ?? ""}` : "–";
    const pace = party.samples_per_second ? `${count(Math.round(party.samples_per_second))}/s` : "–";
    [name, works, pace, bytes(party.bytes_up), bytes(party.bytes_down)].forEach((value, i) => text(node.children[i], value));
  });
}
