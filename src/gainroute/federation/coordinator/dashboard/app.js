// Polls the coordinator every two seconds and shows its status. Nothing is stored; the admin token is a variable.

import { Bytes, Curve, LiveRate, atBudget } from "./charts.js";
import { Decisions } from "./decisions.js";
import { showFormation } from "./formation.js";
import { Watching, alarmBanners } from "./watching.js";
import { $, ENOUGH, attributes, bytes, clock, count, duration, el, keyed, many, milliseconds, percent, points, short, text, visible, withUnit } from "./dom.js";

const EVERY = 2000;
const PATIENCE = 6000;

const curve = new Curve($("curve"));
const live = new LiveRate($("live"));
const traffic = new Bytes($("bytes"), $("bytes-legend"));
const decisions = new Decisions(get);
const slider = $("budget");
const watching = new Watching({ get, post, look, locked });

const page = {
  token: "",
  status: null,
  curve: null, // {points, samples, recommended}
  curveOf: "",
  seconds: 600, // window of the charts over time
  preview: null, // a budget being chosen
  lost: null, // since when the coordinator does not answer, by the browser's clock
  reason: "",
};

// ---- requests ----------------------------------------------------------------------------------

async function get(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(PATIENCE), headers: { Accept: "application/json" } });
  if (!reply.ok) throw Object.assign(new Error(await said(reply)), { status: reply.status });
  return reply.json();
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (page.token) headers.Authorization = `Bearer ${page.token}`;
  // Without "omit", a wrong token would make the browser ask for a password.
  const reply = await fetch(path, {
    method: "POST", headers, body: JSON.stringify(body), credentials: "omit", signal: AbortSignal.timeout(PATIENCE),
  });
  if (!reply.ok) throw Object.assign(new Error(await said(reply)), { status: reply.status });
  return reply.json();
}

async function said(reply) {
  try {
    return (await reply.json()).error;
  } catch {
    return `the coordinator answered ${reply.status}`;
  }
}

async function look() {
  try {
    const [status, latest, rates] = await Promise.all(
      [get("/api/status"), get("/api/decisions?limit=15"), get(`/api/rate?seconds=${page.seconds}`)]);
    if (page.curveOf !== status.router.hash) {
      page.curve = await get("/api/curve");
      page.curveOf = status.router.hash;
    }
    page.status = status;
    page.lost = null;
    show(status);
    const known = status.time - (rates.points[0]?.time ?? status.time);
    live.show({ history: rates.points, end: status.time, seconds: Math.min(page.seconds, Math.max(60, 60 * Math.ceil(known / 60))) });
    decisions.show(latest);
    await watching.show(status, page.seconds);
    await showFormation(get, status.time);
  } catch (error) {
    page.lost ??= Date.now();
    page.reason = error.status ? error.message : "";
  }
  alerts();
}

async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, EVERY);
}

const few = (samples) => `too few to say: ${count(samples)} of ${ENOUGH} samples`;

function verdict({ samples, rate }, { operating_point: point, controller, protection }) {
  if (samples < 50) return "too few samples to compare with calibration";
  if (protection !== null) return "▼ held down: collaboration hurts";
  if (controller.on) return "✓ the controller keeps it there";
  const p = Math.min(Math.max(point.expected_rate, 1 / samples), 1 - 1 / samples);
  const noise = 2.6 * Math.sqrt((p * (1 - p)) / samples);
  if (rate > point.expected_rate_high + noise) return "▲ more than expected from calibration: has the data changed?";
  if (rate < point.expected_rate_low - noise) return "▼ fewer than expected from calibration: has the data changed?";
  return "✓ as expected from calibration";
}

// ---- display -----------------------------------------------------------------------------------

function show(status) {
  const point = status.operating_point, now = status.escalation.now;
  text($("model"), `· model ${status.model}`);
  text($("infer-path"), `/v2/models/${status.model}/infer`);
  text($("rate"), now.samples < ENOUGH ? "–" : percent(now.rate));
  text($("rate-budget"), point.budget === null ? `set by a threshold of ${points(point.threshold)}` : `budget: at most ${short(point.budget)}${point.budget_of === "bytes" ? " of the bytes of Round 2" : ""}`);
  text($("rate-verdict"), now.samples < ENOUGH ? few(now.samples) : verdict(now, status));
  const which = now.changed ? "since the budget was changed" : "the last ones";
  text($("live-about"), `Solid: ${point.budget_of === "bytes" ? "bytes of Round 2, as a share of asking every party for all" : "escalated"} of ${many(now.samples, "sample")} (${which}). Dashed: the budget.`);
  showBytes(status.bytes);
  showLatency(status.latency_ms);
  showAccuracy(status.feedback, point);
  showParties(status);
  showBudget(status);
  const marked = [
    `${many(status.escalation.samples, "sample")} since ${clock(status.since)}`,
    many(status.degraded.samples, "degraded answer"),
    many(status.degraded.unknown, "unknown id"),
    `version ${status.version}`,
    `${status.router.kind}, embeddings: ${status.router.codec || "none"}`,
    `decision log ${status.log.ok ? "ok" : `failing: ${status.log.error}`}`,
  ];
  text($("foot"), marked.join(" · "));
  text($("updated"), `as of ${clock(status.time)}, every 2 s`);
}

function showBytes(found) {
  text($("saved"), found.always ? percent(found.saved_share, 0) : "–");
  text($("saved-about"), found.always ? `${bytes(found.sent)} sent instead of ${bytes(found.always)}` : "nothing sent yet");
  text($("bytes-about"), found.always
    ? `${bytes(found.sent)} sent so far; escalating every sample would have sent ${bytes(found.always)}.`
    : "Nothing sent yet.");
  traffic.show(found);
}

function showLatency(found) {
  const whole = found.request;
  text($("time"), whole.p50 === null ? "–" : withUnit(whole.p50));
  text($("time-about"), whole.p50 === null ? "no requests yet" : whole.count < 100 ? `median of ${count(whole.count)}` : `median; 99 of 100 within ${withUnit(whole.p99)}`);
  const rows = [["Round 1", found.round1], ["Round 2", found.round2], ["Whole request", whole]];
  keyed($("latency").tBodies[0], rows, (r) => r[0], (r) => el("tr", {}, el("th", { scope: "row" }, r[0]), el("td"), el("td"), el("td")),
    (node, [, values]) => {
      text(node.children[1], milliseconds(values.p50));
      text(node.children[2], values.count < 100 ? "–" : milliseconds(values.p99));
      text(node.children[3], count(values.count));
    });
}

function showAccuracy(found, point) {
  const labels = found.labels ?? 0;
  text($("accuracy"), labels < ENOUGH ? "–" : percent(found.accuracy));
  const expected = `${percent(point.expected_accuracy)} expected from calibration`;
  text($("accuracy-about"), !labels ? `no true labels yet; ${expected}`
    : labels < ENOUGH ? `too few to say: ${count(labels)} of ${ENOUGH} labels` : `on ${count(labels)} labelled samples; ${expected}`);
  const left = found.unanswered ? ` Not counted: ${many(found.unanswered, "sample")} that no party has.` : "";
  text($("feedback-about"), labels
    ? `“Weak” is the accuracy of Round 1 alone on the same samples.${left}`
    : `No labels yet. Send true labels to POST /feedback by decision_id to see the accuracy here.${left}`);
  const table = $("feedback");
  visible(table, labels > 0);
  const rows = [
    ["All answers", labels, found.weak_accuracy, found.accuracy],
    ["Escalated", found.escalated_labels, found.escalated_weak_accuracy, found.escalated_accuracy],
  ];
  keyed(table.tBodies[0], rows, (r) => r[0], (r) => el("tr", {}, el("th", { scope: "row" }, r[0]), el("td"), el("td"), el("td")),
    (node, [, n, weak, given]) => {
      text(node.children[1], count(n));
      text(node.children[2], n < ENOUGH ? "–" : percent(weak));
      text(node.children[3], n < ENOUGH ? "too few to say" : percent(given));
    });
}

const STATES = {
  ok: ["✓", "ok"],
  connecting: ["…", "connecting"],
  unavailable: ["✕", "not reachable"],
  refused: ["✕", "refuses"],
  mismatch: ["✕", "does not fit"],
};

const plain = (party) => (party.error || "no answer yet").replace(`party '${party.name}': `, "").replace("unavailable: ", "");

const validity = (days) => (days < 14 ? `▲ certificate ends in ${duration(86400 * days)}` : `certificate: ${Math.floor(days)} days left`);

function showParties(status) {
  const well = status.parties.filter((p) => p.state === "ok").length;
  const own = ["coordinator", "front door"].filter((name) => name in status.certificates).map((name) => ` Here, ${name}: ${validity(status.certificates[name])}.`);
  text($("parties-about"), `${well} of ${status.parties.length} ok. Raw data never leaves a party.${own.join("")}`);
  const make = () => el("li", {}, el("span", { class: "sign", "aria-hidden": "true" }), el("span", { class: "name" }), el("span", { class: "word" }), el("span", { class: "more" }));
  keyed($("parties"), status.parties, (p) => p.name, make, (node, party) => {
    const [sign, word] = STATES[party.state] ?? ["✕", party.state];
    attributes(node, { class: party.state === "ok" ? "ok" : "bad", "data-party": party.name, "data-state": party.state });
    text(node.children[0], sign);
    text(node.children[1], party.name);
    text(node.children[2], word);
    const days = status.certificates[`party ${party.name}`];
    const kept = days === undefined ? "" : `\n${validity(days)}`;
    const since = duration(status.time - party.since);
    const paused = party.circuit.round2 === "closed" ? "" : "\n▲ not asked in Round 2 until it answers in time";
    text(node.children[3], party.state === "ok" ? `${party.address} · answers in ${withUnit(party.latency_ms)}${kept}${paused}` : `for ${since}: ${plain(party)}`);
  });
}

// ---- the budget --------------------------------------------------------------------------------

function showBudget(status) {
  const point = status.operating_point;
  const chosen = page.preview;
  const held = point.budget ?? point.expected_rate;
  slider.disabled = page.curve === null || page.lost !== null;
  if (chosen === null && document.activeElement !== slider) slider.value = String(Math.round(100 * held));
  const shown = chosen ?? point.budget;
  text($("budget-value"), shown === null ? "set by a threshold" : short(shown));
  attributes(slider, { "aria-valuetext": `${short(chosen ?? held)} of samples` });
  const preview = chosen === null ? null : atBudget(page.curve.points, chosen);
  const now = { rate: point.expected_rate, accuracy: point.expected_accuracy };
  const { samples, rate } = status.escalation.now;
  curve.show({ ...page.curve, now, budget: point.budget, live: samples < ENOUGH ? null : rate, preview });
  text($("advice"), advice(page.curve));
  if (chosen !== null || $("budget-says").dataset.error) return;
  text($("budget-says"), `Now: ${percent(point.expected_rate)} escalated and an accuracy of ${percent(point.expected_accuracy)} are expected.` +
    (point.guarantee ? ` Guaranteed at this threshold: ${point.guarantee.text}` : ""));
}

function advice({ samples, recommended }) {
  return recommended === null
    ? `Too few to say: ${count(samples)} calibration samples do not show that any budget is more accurate than 0 %.`
    : `${short(Math.ceil(100 * recommended) / 100)} is the smallest budget within one standard error of the best (${count(samples)} calibration samples).`;
}

function choose() {
  page.preview = Number(slider.value) / 100;
  delete $("budget-says").dataset.error;
  const there = atBudget(page.curve.points, page.preview);
  text($("budget-says"), `${short(page.preview)} would escalate about ${percent(there.rate)}, with an expected accuracy of ` +
    `${percent(there.accuracy)} (${short(there.low)} to ${short(there.high)}).`);
  if (page.status) showBudget(page.status);
}

let waiting = 0;
let asked = 0;

async function apply(budget) {
  const mine = ++asked;
  try {
    const reply = await post("/admin/budget", { budget });
    if (mine !== asked) return;
    page.status.operating_point = reply.operating_point;
    delete $("budget-says").dataset.error;
  } catch (error) {
    if (mine !== asked) return;
    const why = error.status ? error.message : "the coordinator cannot be reached";
    $("budget-says").dataset.error = "yes";
    text($("budget-says"), `▲ The budget was not changed: ${why}.`);
    if (error.status === 401 || error.status === 403) locked();
  }
  page.preview = null;
  slider.value = String(Math.round(100 * (page.status.operating_point.budget ?? page.status.operating_point.expected_rate)));
  showBudget(page.status);
  look();
}

function locked() {
  $("token-box").hidden = false;
  $("token-box").open = true;
  $("token").focus();
}

slider.addEventListener("input", choose);
slider.addEventListener("change", () => {
  clearTimeout(waiting); // arrow keys arrive one by one: only the last one counts
  waiting = setTimeout(apply, 350, Number(slider.value) / 100);
});
$("window").addEventListener("change", (event) => {
  page.seconds = Number(event.target.value);
  look();
});
// The link that `gainroute up` prints has the token behind "#", which browsers do not send; it does not stay in the history.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("admin");
  if (!given) return;
  page.token = given;
  history.replaceState(null, "", location.pathname + location.search);
  $("token-box").hidden = true;
}

$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("token").addEventListener("input", (event) => (page.token = event.target.value.trim()));
takeToken();
addEventListener("hashchange", takeToken);

// ---- banners -------------------------------------------------------------------------------------

const REMEDIES = {
  unavailable: "start it again (gainroute party --config …; under gainroute up, restart that command), or check address and network",
  connecting: "wait a moment; if it stays so, check that its process runs",
  refused: "read its answer below: certificate, deny list or quota",
  mismatch: "give it the models and classes that the router was calibrated with; below is what differs",
};

const remedy = (down) => down.map((p) => `${p.name}: ${REMEDIES[p.state] ?? "see below"}.`).join(" ");

function alerts() {
  const found = [];
  const status = page.status;
  const down = status ? status.parties.filter((p) => p.state !== "ok") : [];
  if (page.lost !== null) {
    const since = duration((Date.now() - page.lost) / 1000);
    const old = status ? ` What you see below is from ${clock(status.time)}.` : "";
    const what = page.reason ? `The coordinator refused the status: ${page.reason}.` : `The coordinator cannot be reached (for ${since}).`;
    const todo = page.reason ? "reload the page and give a valid token; any user name will do." : "check that its process runs and start it again if not (gainroute coordinator, or gainroute up).";
    found.push(["lost", `${what}${old}`, "Trying again every 2 s.", `What to do: ${todo}`]);
  } else if (status && !status.ready) {
    const named = down.map((p) => `${p.name} (${(STATES[p.state] ?? ["", p.state])[1]})`);
    const why = down.length ? `An answer needs every party; not ok: ${named.join(", ")}.` : `${status.not_ready}.`;
    const log = "free space on its disk, or correct [log] path; it recovers by itself.";
    found.push(["ready", "Requests are refused now.", why, `What to do: ${down.length ? remedy(down) : status.log.ok ? "wait, or ask another coordinator." : log}`]);
  } else if (down.length) {
    found.push(["some", "A party is missing.", "Answers come from the parties present: routed where the router is calibrated for them, else pooled, without escalation, and marked as degraded.", `What to do: ${remedy(down)}`]);
  }
  if (status && page.lost === null) found.push(...alarmBanners(status));
  const make = () => el("p", { class: "banner bad" }, el("strong"), " ", el("span"), el("span", { class: "todo" }));
  keyed($("alerts"), found, (f) => f[0], make, (node, [, head, more, todo]) => {
    text(node.children[0], head);
    text(node.children[1], more);
    text(node.children[2], todo ?? "");
  });
  document.body.classList.toggle("stale", page.lost !== null);
  slider.disabled = page.curve === null || page.lost !== null;
  const well = page.lost === null && status?.ready;
  text($("state"), page.lost !== null ? "✕ not reachable" : well ? "✓ answering" : status ? "✕ not answering" : "…");
  attributes($("state"), { class: well ? "pill" : "pill bad" });
  document.title = `${well ? "" : "▲ "}${status ? `${status.model} · ` : ""}gainroute`;
}

document.addEventListener("visibilitychange", () => document.hidden || look());
keepLooking();
