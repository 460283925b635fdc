// Alarms and remedies, the drift monitor, the budget controller, and the shadow router.

import { Control } from "./charts.js";
import { $, ENOUGH, attributes, clock, count, el, keyed, many, percent, points, short, text, visible } from "./dom.js";

// A short form of docs/operating.md.
const ALARMS = {
  collaboration: [
    "Collaboration has begun to hurt.",
    "Find what broke the strong route: an embedding, a new model at one party, a codec. Fix it, then reset the alarm below. " +
      "With [drift] protect = true, escalations need a larger gain until then.",
  ],
  calibration: [
    "The weak answers are better or worse than calibration says.",
    "The expected gains are wrong as well. Recalibrate from the log, load the result as shadow router, and swap it in.",
  ],
  parties: [
    "A party answers differently from calibration.",
    "Ask the party that is named what has changed: its data, its model, or someone who tampers with it. Until then, treat answers with caution; " +
      "remove it from the route table, or recalibrate if the change is meant to stay. Then reset the alarm below. With two parties, it can be either.",
  ],
  scores: [
    "The samples differ from those of calibration.",
    "Find out what changed: a sensor, a customer, a season. Collect labels; recalibrate if the change persists. The alarm ends by itself.",
  ],
};

const LOOSE = 0.1; // a bound on the rate above this says nothing

const number = (value, digits = 3) => (typeof value === "number" ? String(Number(value.toPrecision(digits))) : value === "inf" ? "∞" : "–");

export const alarmBanners = (status) =>
  status.alarms.map(({ name, since, text: says }) => {
    const [head, todo] = ALARMS[name] ?? [`Alarm: ${name}.`, ""];
    const evidence = says.replace(/^collaboration has begun to hurt: /, "");
    return [`alarm-${name}`, `▲ ${head}`, `Since ${clock(since)}: ${evidence}.`, `What to do: ${todo}`];
  });

function facts(list, rows) {
  const make = () => el("div", {}, el("dt"), el("dd"), el("dd", { class: "verdict" }));
  keyed(list, rows, (r) => r[0], make, (node, [name, value, verdict, bad]) => {
    text(node.children[0], name);
    text(node.children[1], value);
    text(node.children[2], verdict ?? "");
    attributes(node, { class: bad ? "bad" : null });
  });
}

export class Watching {
  // get, post: requests to the coordinator; look: refresh the status; locked: called when there is no token
  constructor({ get, post, look, locked }) {
    Object.assign(this, { get, post, look, locked });
    this.chart = new Control($("control"));
    $("drift-reset").addEventListener("click", () => this.act("drift-says", "/admin/drift", { reset: true }, "Reset the alarms and the drift monitor?"));
    $("shadow-swap").addEventListener("click", () => this.act("shadow-says", "/admin/shadow", { swap: true }, "Put the shadow router into use?"));
    $("shadow-drop").addEventListener("click", () => this.act("shadow-says", "/admin/shadow", { drop: true }, "Drop the shadow router?"));
    $("rollback").addEventListener("click", () => this.act("shadow-says", "/admin/router", { rollback: true }, "Roll back to the previous router?"));
    $("shadow-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const artifact = $("shadow-path").value.trim();
      if (artifact) this.act("shadow-says", "/admin/shadow", { artifact });
    });
  }

  async act(place, path, body, question) {
    if (question && !confirm(question)) return;
    try {
      await this.post(path, body);
      text($(place), "");
    } catch (error) {
      text($(place), `▲ Nothing was changed: ${error.status ? error.message : "the coordinator cannot be reached"}.`);
      if (error.status === 401 || error.status === 403) this.locked();
    }
    this.look();
  }

  async show(status, seconds) {
    this.drift(status.drift, status.feedback.escalated_labels ?? 0);
    this.shadow(status);
    await this.control(status, seconds);
  }

  // ---- the controller ---------------------------------------------------------------------------

  async control(status, seconds) {
    const found = status.controller, point = status.operating_point;
    visible($("control"), found.on);
    if (!found.on) {
      text($("control-about"), `The threshold is fixed at ${points(point.threshold)}. With a [controller] section in the settings it adapts, so that the rate stays at the budget.`);
      return;
    }
    const { samples, bound } = found.window;
    const cap = found.cap ? `; ${count(found.capped)} stopped by the cap` : "";
    // A cap or a floor under the threshold is meant to hold the rate down.
    const side = found.cap || found.min_gain !== null || found.protection !== null ? "above" : "from";
    const close = bound > LOOSE
      ? `too few samples (${count(samples)}) to say how close to it the rate is`
      : `over the last ${count(samples)}, the rate is at most ${(100 * bound).toFixed(1)} points ${side} the budget`;
    text($("control-about"), `The threshold adapts so that the rate stays at the budget; ${close}. ${count(found.explored)} explored${cap}.`);
    const { points: all, budget } = await this.get("/api/history");
    const recent = all.filter((p) => p.time > status.time - seconds);
    this.chart.show({ points: recent.length > 1 ? recent : all.slice(-2), budget });
  }

  // ---- drift ------------------------------------------------------------------------------------

  drift(found, escalated) {
    if (!found.enabled) {
      text($("drift-about"), "Drift is not monitored: drift.enabled is false in the settings.");
      return facts($("drift-list"), []);
    }
    const { scores, collaboration: helps, labels } = found;
    text($("drift-about"), labels
      ? `Monitored since ${clock(found.since)}, with ${many(labels, "true label")}. Probability of a false alarm: at most ${percent(found.false_alarm, 0)} over ${count(found.horizon)}.`
      : `Monitored since ${clock(found.since)}. Without true labels (POST /feedback), only the scores and the parties are monitored.`);
    const rows = [];
    if (scores) {
      rows.push(["Scores", `distance ${number(scores.distance)} of ${number(scores.limit)} allowed`, scores.drifted ? "▲ differ from calibration" : "✓ as in calibration", scores.drifted]);
      rows.push(["Fixed threshold", `${percent(scores.fixed_rate)} would be escalated, ${percent(scores.calibration_rate)} in calibration`, `stability index ${number(scores.stability_index, 2)}`]);
    } else rows.push(["Scores", `compared after every ${count(found.window)} samples`, "not yet"]);
    for (const [name, party] of Object.entries(found.parties ?? {})) {
      const bad = party.changed.length > 0;
      const was = `agreement with the others ${number(party.agreement, 2)} (calibration: ${number(party.reference_agreement, 2)}), confidence ${number(party.confidence, 2)} (${number(party.reference_confidence, 2)})`;
      rows.push([`Party ${name}`, was, bad ? `▲ ${party.changed.join(" and ")} changed` : "✓ as in calibration", bad]);
    }
    if (labels) {
      const off = found.alarms.calibration !== undefined;
      const near = Math.abs(found.confidence_gap) <= 0.05;
      if (found.confidence_gap === null) rows.push(["Weak answers", "not compared: needs posteriors in the log ([log] posteriors = true)"]);
      else if (labels < ENOUGH) rows.push(["Weak answers", `too few to say: ${count(labels)} of ${ENOUGH} labels`]);
      else rows.push(["Weak answers", `accuracy minus calibrated confidence: ${points(found.confidence_gap)}`,
        off ? "▲ calibration is off" : near ? "✓ within 5 pts" : "more than 5 pts, possibly by chance", off]);
    }
    if (helps && helps.answers) {
      const [strong, weak] = [helps.strong_right, helps.weak_right].map((right) => percent(right / helps.answers, 0));
      // The evidence starts anew while there is none: the last few answers say nothing then.
      rows.push(["Collaboration", !helps.harmful && escalated < ENOUGH ? `too few to say: ${count(escalated)} of ${ENOUGH} escalated and labelled`
        : !helps.harmful && helps.answers < ENOUGH ? `no sign of harm in ${count(escalated)} escalated and labelled`
        : `of the last ${count(helps.answers)} escalated and labelled: ${strong} correct, weak answers ${weak}`,
        `evidence of harm ${helps.harmful ? "was " : ""}${number(helps.e_value)} of ${number(helps.limit)}`, helps.harmful]);
    }
    for (const [name, why] of Object.entries(found.withheld ?? {})) rows.push(["Withheld", why, `the ${name} alarm depends on one holder`, true]);
    if (found.changed_classes?.length)
      rows.push(["Hint", `Round 2 has changed on the classes ${found.changed_classes.slice(0, 8).join(", ")}`, "no alarm"]);
    if (found.protection !== null) rows.push(["Protection", `every escalation must gain more than ${points(found.protection)}`, "until the reset", true]);
    facts($("drift-list"), rows);
    visible($("drift-reset"), Object.keys({ ...found.alarms, ...found.withheld }).some((name) => name !== "scores"));
  }

  // ---- the shadow -------------------------------------------------------------------------------

  shadow(status) {
    const found = status.shadow, previous = status.router.previous;
    visible($("shadow-swap"), found !== null);
    visible($("shadow-drop"), found !== null);
    visible($("shadow-form"), found === null);
    visible($("rollback"), previous !== null);
    if (previous !== null) text($("rollback"), `Roll back to ${previous.slice(0, 12)}`);
    if (found === null) {
      text($("shadow-about"), `Version ${status.version} answers. A new router, for example from gainroute recalibrate, can score the same samples without answering.`);
      return facts($("shadow-list"), []);
    }
    text($("shadow-about"), `Version ${found.version} scores beside ${status.version} since ${clock(found.since)}, and does not answer.`);
    const rows = [["Samples", count(found.samples), !found.samples ? "none yet" : found.samples < ENOUGH ? "too few to say" : `${percent(found.agreement)} decided the same way`]];
    if (found.samples >= ENOUGH) rows.push(["Would escalate", short(found.new_rate), `in use: ${short(found.old_rate)}`]);
    const c = found.comparison;
    if (c) {
      rows.push(["Accuracy", `${percent(c.new)}, in use ${percent(c.old)}`, `both at ${short(c.rate)} escalated; ${count(c.labels)} labels, ${count(c.explored)} explored`]);
      rows.push(["Difference", `${points(c.difference)} (${points(c.low)} to ${points(c.high)})`,
        { better: "✓ better", worse: "▲ worse", undecided: "undecided: wait for labels" }[c.verdict], c.verdict === "worse"]);
    } else rows.push(["Accuracy", "not compared yet", found.no_comparison]);
    facts($("shadow-list"), rows);
  }
}
