// Polls the coordinator every two seconds and shows its status. Nothing is stored; the admin token is a variable.

import { Bytes, Curve, LiveRate, atBudget } from "./charts.js";
import { Decisions } from "./decisions.js";
import { Watching, alarmBanners } from "./watching.js";
import { $, attributes, bytes, clock, count, duration, el, keyed, milliseconds, percent, points, short, text, visible, withUnit } from "./dom.js";

const EVERY = 2000;
const PATIENCE = 6000;
const SHOWN_SECONDS = 300;
const ENOUGH = 20; // samples needed before a rate is drawn
const WINDOW = 1000; // samples behind the live rate

const curve = new Curve($("curve"));
const live = new LiveRate($("live"));
const traffic = new Bytes($("bytes"), $("bytes-legend"));
const decisions = new Decisions(get);
const slider = $("budget");
const watching = new Watching({ get, post, look, locked });

const page = {
  token: document.querySelector('meta[name="admin-token"]').content,
  status: null,
  curve: null,
  curveOf: "",
  history: [], // {time, samples, escalated, point}, for the live rate
  drawn: [], // {time, rate, budget}, for its picture
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
    const [status, latest] = await Promise.all([get("/api/status"), get("/api/decisions?limit=15")]);
    if (page.curveOf !== status.router.hash) {
      page.curve = (await get("/api/curve")).points;
      page.curveOf = status.router.hash;
    }
    page.status = status;
    page.lost = null;
    if (!page.history.length) recall(status, (await get("/api/decisions?limit=500")).decisions);
    remember(status);
    show(status);
    decisions.show(latest);
    await watching.show(status);
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

// ---- the live rate: since the operating point changed, of at most the last thousand ----------------

function remember(status) {
  const history = page.history, before = history[history.length - 1];
  const known = status.escalation.samples - status.degraded.unknown;
  if (before && known < before.samples) history.length = page.drawn.length = 0; // the coordinator was restarted
  const point = pointOf(status);
  history.push({ time: status.time, samples: known, escalated: status.escalation.escalated, point });
  const found = rateNow(status);
  page.drawn.push({ time: status.time, rate: found.samples < ENOUGH ? null : found.rate, budget: status.operating_point.budget });
  while (page.drawn[0].time < status.time - SHOWN_SECONDS) page.drawn.shift();
  while (history.length > 2 && history[1].time < status.time - 3600) history.shift();
}

// A new page reads from the log what was decided at the current operating point, and when.
function recall(status, latest) {
  const point = status.operating_point, hash = status.router.hash;
  const known = latest.filter((d) => d.route !== "unknown");
  // A controller moves the threshold with every sample, and counts since when it has kept this budget.
  const moved = (d, i) => (status.controller.on ? i >= status.controller.samples : d.threshold !== point.threshold);
  const before = known.findIndex((d, i) => moved(d, i) || d.router !== hash);
  const since = (before < 0 ? known : known.slice(0, before)).reverse();
  let escalated = 0;
  since.forEach((d, i) => {
    escalated += d.escalated ? 1 : 0;
    const last = page.drawn[page.drawn.length - 1];
    if (i + 1 >= ENOUGH && d.time > status.time - SHOWN_SECONDS && d.time >= (last?.time ?? 0) + EVERY / 1000)
      page.drawn.push({ time: d.time, rate: escalated / (i + 1), budget: point.budget });
  });
  if (before < 0) return;
  const counted = { samples: status.escalation.samples - status.degraded.unknown - since.length, escalated: status.escalation.escalated - escalated };
  page.history.push({ time: 0, ...counted, point: "earlier" }, { time: status.time, ...counted, point: pointOf(status) });
}

const pointOf = (status) => `${status.router.hash} ${status.operating_point.threshold}`;

function rateNow(status) {
  const history = page.history, last = history[history.length - 1];
  let first = history.length - 1;
  while (first > 0 && history[first - 1].point === last.point) first -= 1;
  if (first === 0) {
    const { samples, rate } = status.escalation.last_1000;
    return { samples, rate, changed: false };
  }
  // Most of what was counted when the change was first seen belongs to the time before it.
  while (first < history.length - 1 && last.samples - history[first].samples > WINDOW) first += 1;
  const samples = last.samples - history[first].samples;
  return { samples, rate: samples ? (last.escalated - history[first].escalated) / samples : null, changed: true };
}

function verdict({ samples, rate }, { operating_point: point, controller, protection }) {
  if (rate === null) return "";
  if (samples < 50) return "too few samples to judge yet";
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
  const point = status.operating_point, now = rateNow(status);
  text($("model"), `· model ${status.model}`);
  text($("infer-path"), `/v2/models/${status.model}/infer`);
  text($("rate"), percent(now.rate));
  text($("rate-budget"), point.budget === null ? `set by a threshold of ${points(point.threshold)}` : `budget: at most ${short(point.budget)}`);
  text($("rate-verdict"), now.rate === null ? (now.changed ? "waiting for samples" : "no samples yet") : verdict(now, status));
  const which = now.changed ? "since the budget was changed" : "the last ones";
  text($("live-about"), `Solid: escalated of ${count(now.samples)} samples (${which}). Dashed: the budget.`);
  showBytes(status.bytes);
  showLatency(status.latency_ms);
  showAccuracy(status.feedback, point);
  showParties(status);
  showBudget(status);
  const span = status.time - page.drawn[0].time;
  live.show({ history: page.drawn, seconds: Math.min(SHOWN_SECONDS, Math.max(60, 60 * Math.ceil(span / 60))) });
  const marked = [
    `${count(status.escalation.samples)} samples since ${clock(status.since)}`,
    `${count(status.degraded.samples)} degraded answers`,
    `${count(status.degraded.unknown)} unknown ids`,
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
  text($("time-about"), whole.p50 === null ? "no requests yet" : `median; 99 of 100 within ${withUnit(whole.p99)}`);
  const rows = [["Round 1", found.round1], ["Round 2", found.round2], ["Whole request", whole]];
  keyed($("latency").tBodies[0], rows, (r) => r[0], (r) => el("tr", {}, el("th", { scope: "row" }, r[0]), el("td"), el("td"), el("td")),
    (node, [, values]) => {
      text(node.children[1], milliseconds(values.p50));
      text(node.children[2], milliseconds(values.p99));
      text(node.children[3], count(values.count));
    });
}

function showAccuracy(found, point) {
  const labels = found.labels ?? 0;
  text($("accuracy"), labels ? percent(found.accuracy) : "–");
  const expected = `${percent(point.expected_accuracy)} expected from calibration`;
  text($("accuracy-about"), labels ? `on ${count(labels)} labelled samples; ${expected}` : `no true labels yet; ${expected}`);
  text($("feedback-about"), labels
    ? `“Weak” is the accuracy of Round 1 alone on the same samples.${found.unanswered ? ` Not counted: ${count(found.unanswered)} samples that no party has.` : ""}`
    : "No labels yet. Send true labels to POST /feedback by decision_id to see the accuracy here.");
  const table = $("feedback");
  visible(table, labels > 0);
  const rows = [
    ["All answers", labels, found.weak_accuracy, found.accuracy],
    ["Escalated", found.escalated_labels, found.escalated_weak_accuracy, found.escalated_accuracy],
  ];
  keyed(table.tBodies[0], rows, (r) => r[0], (r) => el("tr", {}, el("th", { scope: "row" }, r[0]), el("td"), el("td"), el("td")),
    (node, [, n, weak, given]) => {
      text(node.children[1], count(n));
      text(node.children[2], percent(weak));
      text(node.children[3], percent(given));
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
    text(node.children[3], party.state === "ok" ? `${party.address} · answers in ${withUnit(party.latency_ms)}${kept}` : `for ${since}: ${plain(party)}`);
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
  const preview = chosen === null ? null : atBudget(page.curve, chosen);
  const now = { rate: point.expected_rate, accuracy: point.expected_accuracy };
  const rate = rateNow(status).rate;
  curve.show({ points: page.curve, now, budget: point.budget, live: rate, preview });
  if (chosen !== null) return;
  const words = `Now: ${percent(point.expected_rate)} escalated and an accuracy of ${percent(point.expected_accuracy)} are expected. `;
  if (!$("budget-says").dataset.error)
    text($("budget-says"), `${words}The triangle on the axis is the live rate${rate === null ? ", once there are samples" : ""}.`);
}

function choose() {
  page.preview = Number(slider.value) / 100;
  delete $("budget-says").dataset.error;
  const there = atBudget(page.curve, page.preview);
  text($("budget-says"), `${short(page.preview)} would escalate about ${percent(there.rate)}, with an expected accuracy of ${percent(there.accuracy)}.`);
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
$("token-form").addEventListener("submit", (event) => event.preventDefault());
$("token").addEventListener("input", (event) => (page.token = event.target.value.trim()));
if (page.token) $("token-box").hidden = true; // `gainroute up` puts the token into the page, on loopback only

// ---- banners -------------------------------------------------------------------------------------

function alerts() {
  const found = [];
  const status = page.status;
  if (page.lost !== null) {
    const since = duration((Date.now() - page.lost) / 1000);
    const old = status ? ` What you see below is from ${clock(status.time)}.` : "";
    const what = page.reason ? `The coordinator refused the status: ${page.reason}.` : `The coordinator cannot be reached (for ${since}).`;
    found.push(["lost", `${what}${old}`, "Trying again every 2 s."]);
  } else if (status && !status.ready) {
    const down = status.parties.filter((p) => p.state !== "ok").map((p) => `${p.name} (${(STATES[p.state] ?? ["", p.state])[1]})`);
    const why = down.length ? `An answer needs every party; not ok: ${down.join(", ")}.` : `${status.not_ready}.`;
    found.push(["ready", "Requests are refused now.", why]);
  } else if (status && status.parties.some((p) => p.state !== "ok")) {
    found.push(["some", "A party is missing.", "Answers are pooled over the parties present, without escalation, and marked as degraded."]);
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
