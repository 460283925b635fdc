// The latest decisions, and the explanation of one.

import { $, attributes, clock, count, el, keyed, percent, points, svg, text, visible, withUnit } from "./dom.js";

const MOST_CLASSES = 10;

function route(decision) {
  if (decision.route === "round1") return ["kept", "route"];
  if (decision.route === "round2") return [decision.explored ? "explored" : "escalated", "route two"];
  if (decision.route === "unknown") return ["no party has it", "route odd"];
  const [round, ...why] = decision.route.split(":");
  if (round === "round1" || round === "round2") {
    const [says, kind] = route({ ...decision, route: round });
    return [`${says} (${why.join(": ").replaceAll("+", ", ")})`, kind];
  }
  return [decision.route.replace("degraded:", "degraded: ").replaceAll("+", ", "), "route odd"];
}

function row(decision) {
  const button = el("button", { type: "button", "aria-haspopup": "dialog" });
  const cell = (kind) => el("td", kind ? { class: kind } : {});
  return el("tr", {}, el("td", {}, button), cell(), el("td", {}, el("span")), cell("wide-only"), cell("wide-only"), cell("wide-only"), cell("wide-only"));
}

function update(node, decision) {
  const [sample, answer, way, score, needed, truth, time] = node.children;
  const label = decision.class ?? "–";
  text(attributes(sample.firstChild, { title: decision.sample_id, "data-decision": decision.decision_id }), decision.sample_id);
  const changed = decision.strong_prediction !== null && decision.strong_prediction !== decision.weak_prediction;
  text(answer, changed ? `${label} (first ${decision.weak_class})` : label);
  const [says, kind] = route(decision);
  text(attributes(way.firstChild, { class: kind }), says);
  text(score, points(decision.score));
  text(needed, decision.threshold === null ? "–" : points(decision.threshold));
  const known = decision.truth === null ? "–" : decision.right === null ? `not answered; it is ${decision.true_class}` : decision.right ? "✓ correct" : `✕ it is ${decision.true_class}`;
  text(attributes(truth, { class: `wide-only${decision.right === null ? "" : decision.right ? " good" : " bad-text"}` }), known);
  text(time, clock(decision.time));
}

export class Decisions {
  constructor(get) {
    this.get = get;
    this.table = $("decisions");
    this.body = this.table.tBodies[0];
    this.dialog = $("why");
    this.byPointer = false;
    this.table.addEventListener("pointerdown", () => (this.byPointer = true));
    this.table.addEventListener("keydown", () => (this.byPointer = false));
    this.table.addEventListener("click", (event) => {
      const chosen = event.target.closest("tbody tr")?.querySelector("button");
      if (chosen) this.open(chosen.dataset.decision, chosen.textContent);
    });
    $("why-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    // Focus returns to the row, which is right for the keyboard; after a tap it would pause the list for ever.
    this.dialog.addEventListener("close", () => this.byPointer && document.activeElement?.blur());
  }

  get held() {
    const hovers = matchMedia("(hover: hover)").matches && this.body.matches(":hover");
    return this.dialog.open || hovers || this.body.contains(document.activeElement);
  }

  show({ decisions }) {
    visible($("held"), this.held && decisions.length > 0);
    if (this.held) return;
    visible($("no-decisions"), !decisions.length);
    visible(this.table, decisions.length > 0);
    keyed(this.body, decisions, (d) => d.decision_id, row, update);
  }

  async open(id, sample) {
    const body = $("why-body");
    text($("why-title"), `Sample ${sample}`);
    body.replaceChildren(el("p", { class: "small" }, "Loading …"));
    if (!this.dialog.open) this.dialog.showModal();
    try {
      body.replaceChildren(...explained(await this.get(`/api/decisions/${id}/explanation`)));
    } catch (error) {
      body.replaceChildren(el("p", { class: "banner bad" }, `There is no explanation: ${error.message}.`));
    }
  }
}

// ---- one decision, explained -------------------------------------------------------------------

const bold = (says) => el("strong", {}, says);

function explained(d) {
  const steps = el("ol", { class: "steps" });
  const add = (...parts) => steps.append(el("li", {}, ...parts));
  if (d.weak_prediction !== null && d.weak_prediction >= 0)
    add("Round 1: the pooled answer is ", bold(d.weak_class), ` (${percent(d.classes[d.weak_prediction].pooled, 0)}).`);
  if (d.classes.some((c) => c.contribution !== null)) {
    add("Round 2 was expected to change the probability of a correct answer by ", bold(points(d.score)),
      `; the threshold was ${points(d.threshold)}.`);
    const limit = { inf: Infinity, "-inf": -Infinity }[d.threshold] ?? d.threshold;
    if (d.explored) add("It was escalated at random (explored), to measure the strong route below the threshold.");
    else if (d.capped) add("It was kept because the cap on bursts was reached.");
    else add(d.score > limit ? "So it was escalated." : "So the weak answer was kept.");
  }
  if (d.route !== "round1" && d.route !== "round2") add(bold(`Marked: ${route(d)[0]}.`));
  if (d.offers.length) {
    const [best] = d.offers, limit = { inf: Infinity, "-inf": -Infinity }[d.threshold] ?? d.threshold;
    const each = d.offers.slice(0, 4).map((o) => `${o.parties.join(", ")}: ${points(o.gain)} for ${percent(o.bytes_share, 0)} of the bytes`);
    add(`Whom to ask, at ${points(limit)} for all bytes: `, each.join("; "), best.net > 0 ? ". Best net of the price: " : ". None was worth its bytes.", best.net > 0 ? bold(best.parties.join(", ")) : "");
  }
  if (d.strong_prediction !== null) {
    const same = d.strong_prediction === d.weak_prediction ? ", the same" : ", another answer";
    const sure = d.classes[d.strong_prediction]?.strong;
    add("Round 2: the strong answer is ", bold(d.strong_class), `${sure === null || sure === undefined ? "" : ` (${percent(sure, 0)})`}${same}.`);
  }
  add("Answer given: ", bold(d.class ?? "–"), d.truth === null ? "." : d.right ? "; correct ✓" : d.right === null ? `; the true label is ${d.true_class}` : `; the true label is ${d.true_class} ✕`);
  const parts = [steps];
  if (d.note) parts.push(el("p", { class: "banner" }, `Note: ${d.note}.`));
  if (d.classes.some((c) => c.pooled !== null)) parts.push(el("h3", {}, "Class by class"), bill(d));
  parts.push(said(d));
  const facts = `${clock(d.time)} · ${count(d.bytes)} bytes · ${withUnit(d.latency_ms)} · decision ${d.decision_id}`;
  parts.push(el("p", { class: "small" }, facts));
  return parts;
}

function bill(d) {
  const scored = d.classes.some((c) => c.contribution !== null);
  // Most probable classes first; those that the explanation mentions are always shown.
  const named = [d.weak_prediction, d.strong_prediction, d.truth];
  const weight = (c) => (c.calibrated ?? c.pooled ?? 0) + Math.abs(c.contribution ?? 0) + (named.includes(c.label) ? 2 : 0);
  const likely = (c) => c.calibrated ?? c.pooled ?? 0;
  const ranked = [...d.classes].sort((a, b) => weight(b) - weight(a));
  const shown = ranked.slice(0, MOST_CLASSES).sort((a, b) => likely(b) - likely(a)), rest = ranked.slice(MOST_CLASSES);
  const largest = Math.max(1e-9, ...shown.map((c) => Math.abs(c.contribution ?? 0)));
  const number = (value, digits = 1) => el("td", {}, percent(value, digits).replace(" %", ""));
  const added = (value) => el("td", {}, points(value).replace(" pts", ""));
  const line = (name, c, chosen) =>
    el("tr", { class: chosen ? "chosen" : null }, el("th", { scope: "row" }, name), number(c.pooled), number(c.calibrated), number(c.reliability, 0),
      el("td", { class: "bar", "aria-hidden": "true" }, c.label === undefined || c.contribution === null ? null : bar(c.contribution / largest)),
      added(c.contribution), number(c.strong));
  const body = el("tbody", {}, ...shown.map((c) => line(c.label === d.weak_prediction ? `${c.name} (weak)` : c.name, c, c.label === d.label)));
  const sum = (key) => (rest.some((c) => c[key] !== null) ? rest.reduce((total, c) => total + (c[key] ?? 0), 0) : null);
  if (rest.length) {
    const others = { pooled: sum("pooled"), calibrated: sum("calibrated"), reliability: null, contribution: sum("contribution"), strong: sum("strong") };
    body.append(line(`${rest.length} others`, others, false));
  }
  const head = ["If it is …", "Round 1", "calibrated", "Round 2 right", "", "adds", "Round 2"].map((says) =>
    el("th", says ? { scope: "col" } : { class: "bar", "aria-hidden": "true" }, says));
  const foot = (name, text, value) =>
    el("tr", { class: name }, el("td", { colspan: 4 }, text), el("td", { class: "bar" }), added(value), el("td"));
  const total = [d.correction ? foot("correction", "How sure Round 1 is", d.correction) : null, foot("total", "Expected gain", d.score)];
  const table = el("table", { class: "bill" }, el("thead", {}, el("tr", {}, ...head)), body, scored ? el("tfoot", {}, ...total) : null);
  const about =
    "In percent. “Round 1” and “Round 2” are the posteriors. “Calibrated” is the probability of each class after Round 1, " +
    "“Round 2 right” the reliability of Round 2 on that class: their product is what a class adds to the expected gain. The weak " +
    "answer's own class can only reduce it. How sure Round 1 is, and whether the parties agree, corrects the sum where that was found to help.";
  return el("div", {}, el("div", { class: "scroll" }, table), scored ? el("p", { class: "small" }, about) : null);
}

function bar(share) {
  const wide = 48 * Math.abs(share);
  return svg("svg", { viewBox: "0 0 104 14", "aria-hidden": "true" },
    svg("line", { class: "axis", x1: 52, x2: 52, y1: 0, y2: 14 }),
    svg("rect", { class: share < 0 ? "minus" : "plus", x: share < 0 ? 52 - wide : 52, y: 2, width: wide, height: 10, rx: Math.min(2, wide / 2) }));
}

function said(d) {
  const parties = Object.keys(d.classes[0]?.local ?? {});
  const list = el("ul", { class: "said" });
  for (const party of parties) {
    const ranked = d.classes.filter((c) => c.local[party] !== null).sort((a, b) => b.local[party] - a.local[party]);
    const says = ranked.slice(0, 3).map((c) => `${c.name} ${percent(c.local[party], 0)}`).join(" · ");
    list.append(el("li", {}, el("span", {}, party), el("span", {}, says || "does not have this sample")));
  }
  return parties.length ? el("div", {}, el("h3", {}, "Local posteriors"), list) : "";
}
