// Charts, drawn as SVG at their actual width: the trade-off curve, the live rate, the threshold, and the bytes.

import { ENOUGH, attributes, bytes, duration, el, percent, points, short, svg, text } from "./dom.js";

// A drawing is created once and then updated: each part is a named node.
class Drawing {
  constructor(holder, height) {
    this.height = height;
    this.holder = holder;
    this.root = svg("svg", { role: "img", height });
    this.parts = new Map();
    holder.append(this.root);
    new ResizeObserver(() => this.redraw()).observe(holder);
  }

  get width() {
    return Math.max(240, this.holder.clientWidth);
  }

  part(name, tag, values) {
    let node = this.parts.get(name);
    if (node === undefined) {
      node = svg(tag);
      this.parts.set(name, node);
      this.root.append(node);
    }
    this.used.add(name);
    return attributes(node, { visibility: null, ...values });
  }

  words(name, says, values) {
    return text(this.part(name, "text", values), says);
  }

  begin(label) {
    attributes(this.root, { viewBox: `0 0 ${this.width} ${this.height}`, "aria-label": label });
  }

  redraw() {
    if (this.data !== undefined) this.show(this.data);
  }

  show(data) {
    this.data = data;
    this.used = new Set();
    this.draw(data);
    for (const [name, node] of this.parts) if (!this.used.has(name)) attributes(node, { visibility: "hidden" });
  }
}

const path = (spots) => spots.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// Round steps for an axis: 1, 2 or 5 times a power of ten.
function steps(low, high, most) {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) found.push(value);
  return found;
}

// The point of the curve at a budget: the last one whose rate does not exceed it.
export function atBudget(curve, budget) {
  let found = curve[0];
  for (const point of curve) if (point.rate <= budget + 1e-9) found = point;
  return found;
}

// Whether a box, with some room around it, is crossed by the line through the spots.
function crossed({ left, right, top, bottom }, spots) {
  return spots.slice(1).some(([x2, y2], i) => {
    const [x1, y1] = spots[i];
    if (x2 < left || x1 > right) return false;
    const at = (x) => (x2 === x1 ? y1 : y1 + ((y2 - y1) * (x - x1)) / (x2 - x1));
    const ends = [at(Math.max(left, x1)), at(Math.min(right, x2))];
    return Math.max(...ends) > top && Math.min(...ends) < bottom;
  });
}

export class Curve extends Drawing {
  constructor(holder) {
    super(holder, 300);
  }

  // data: points [{rate, accuracy, low, high}], recommended, now {rate, accuracy}, budget, live, preview (a point) or null
  draw({ points, recommended, now, budget, live, preview }) {
    const left = 46, right = this.width - 14, top = 30, bottom = this.height - 40; // style.css puts the slider at left and right
    const lowest = Math.min(...points.map((p) => p.low)), highest = Math.max(...points.map((p) => p.high));
    const span = Math.max(highest - lowest, 0.01);
    const low = Math.max(0, lowest - 0.06 * span), high = Math.min(1, highest + 0.06 * span);
    const x = (rate) => left + rate * (right - left);
    const y = (accuracy) => bottom - ((accuracy - low) / (high - low)) * (bottom - top);
    const first = points[0], last = points[points.length - 1];
    const spots = points.map((p) => [x(p.rate), y(p.accuracy)]);
    this.begin(
      `Accuracy against the share of samples escalated. Escalating none: ${percent(first.accuracy)}; all: ` +
        `${percent(last.accuracy)}; now: ${percent(now.accuracy)} at ${percent(now.rate)} escalated.`,
    );
    const ends = [...points].reverse().map((p) => [x(p.rate), y(p.low)]);
    this.part("band", "path", { class: "band", d: `${path([...points.map((p) => [x(p.rate), y(p.high)]), ...ends])}Z` });
    for (const [i, tick] of steps(low, high, 5).entries()) {
      this.part(`gy${i}`, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
      this.words(`ty${i}`, short(tick), { x: left - 8, y: y(tick) + 4, "text-anchor": "end" });
    }
    for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
      this.part(`mx${tick}`, "line", { class: "axis", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 });
      this.words(`tx${tick}`, short(tick), { x: Math.min(x(tick), right - 6), y: bottom + 18, "text-anchor": "middle" });
    }
    this.words("tx", "share of samples escalated", { x: (left + right) / 2, y: bottom + 35, "text-anchor": "middle" });
    this.part("axis", "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    this.part("weak", "line", { class: "level", x1: left, x2: right, y1: y(first.accuracy), y2: y(first.accuracy) });
    if (budget !== null) this.part("budget", "line", { class: "dash", x1: x(budget), x2: x(budget), y1: top - 8, y2: bottom });
    this.part("line", "path", { class: "line", d: path(spots) });
    // Above the plot, where no curve is: the budget, and on its other side the recommendation.
    const side = (share) => (share > 0.7 ? "end" : share < 0.1 ? "start" : "middle");
    if (budget !== null) this.words("budget-text", `budget ${short(budget)}`, { class: "over-plot", x: x(budget), y: top - 14, "text-anchor": side(budget) });
    if (recommended !== null) {
      const at = x(recommended);
      this.part("best", "path", { class: "best", id: "recommended", d: `M${at},${bottom - 6}l6,6l-6,6l-6,-6z`, "data-rate": recommended });
    }
    if (live !== null)
      this.part("live", "path", { class: "mark", d: `M${x(live)},${bottom - 7}l6,11h-12z`, id: "live-mark", "data-rate": live });
    if (preview !== null) {
      this.part("drop", "line", { class: "drop", x1: x(preview.rate), x2: x(preview.rate), y1: y(preview.accuracy), y2: bottom });
      this.part("preview", "circle", { class: "ring", cx: x(preview.rate), cy: y(preview.accuracy), r: 7 });
    }
    const [cx, cy] = [x(now.rate), y(now.accuracy)];
    this.part("now", "circle", {
      class: "mark", id: "operating-point", cx, cy, r: 7, "data-rate": now.rate, "data-accuracy": now.accuracy,
    });
    const says = `now ${percent(now.accuracy)}`, wide = 7.4 * says.length;
    const level = [[left, y(first.accuracy)], [right, y(first.accuracy)]];
    const places = [[14, 24], [14, -12], [-14 - wide, 24], [-14 - wide, -12], [14, 48], [-14 - wide, 48], [14, -36], [-14 - wide, -36]];
    const free = places.map(([dx, dy]) => ({ left: cx + dx, right: cx + dx + wide, top: cy + dy - 13, bottom: cy + dy + 5 })).find(
      (box) => box.left > left && box.right < right && box.top > top && box.bottom < bottom - 8 && !crossed(box, spots) && !crossed(box, level) &&
        (budget === null || x(budget) < box.left - 3 || x(budget) > box.right + 3));
    if (free) this.words("now-text", says, { class: "now halo", x: free.left, y: free.bottom - 5 });
  }
}

export class LiveRate extends Drawing {
  constructor(holder) {
    super(holder, 250);
  }

  // data: history [{time, rate, samples, budget}], oldest first; the window's end and length in seconds
  draw({ history, end, seconds }) {
    const left = 46, right = this.width - 84, top = 12, bottom = this.height - 30;
    const known = history.filter((h) => h.samples >= ENOUGH);
    const rates = [...known.map((h) => h.rate), ...history.map((h) => h.budget)].filter((v) => v !== null);
    const high = Math.min(1, Math.max(0.1, 1.25 * Math.max(0, ...rates)));
    const x = (time) => right - (Math.max(0, Math.min(end - time, seconds)) / seconds) * (right - left);
    const y = (rate) => bottom - (rate / high) * (bottom - top);
    const last = known[known.length - 1], budget = history[history.length - 1]?.budget ?? null;
    this.begin(`Share of samples escalated over the last ${duration(seconds)}; now ${last ? percent(last.rate) : "too few samples to say"}.`);
    for (const [i, tick] of steps(0, high, 4).entries()) {
      this.part(`gy${i}`, "line", { class: tick ? "grid" : "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) });
      this.words(`ty${i}`, short(tick), { x: left - 8, y: y(tick) + 4, "text-anchor": "end" });
    }
    for (const part of [1, 0.5])
      this.words(`from${part}`, `${duration(part * seconds)} ago`, { x: x(end - part * seconds), y: bottom + 20, "text-anchor": part === 1 ? "start" : "middle" });
    this.words("to", "now", { x: right, y: bottom + 20, "text-anchor": "end" });
    if (!known.length) this.words("none", "too few samples to draw a rate", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" });
    const budgets = history.filter((h) => h.budget !== null);
    const stairs = budgets.flatMap((h, i) => (i ? [[x(h.time), y(budgets[i - 1].budget)], [x(h.time), y(h.budget)]] : [[x(h.time), y(h.budget)]]));
    this.part("budget", "path", { class: "dash", d: path(stairs) });
    if (last) {
      // A pause, or a change of the budget, breaks the line.
      const runs = [];
      known.forEach((h, i) => {
        const before = known[i - 1];
        const apart = !before || h.samples < before.samples || h.time - before.time > Math.max(60, seconds / 30);
        if (apart) runs.push([]);
        runs[runs.length - 1].push([x(h.time), y(h.rate)]);
      });
      const area = (run) => `${path(run)}L${run[run.length - 1][0].toFixed(1)},${bottom}L${run[0][0].toFixed(1)},${bottom}Z`;
      this.part("area", "path", { class: "area", d: runs.map(area).join("") });
      this.part("line", "path", { class: "line live", d: runs.map(path).join("") });
      this.part("dot", "circle", { class: "mark", cx: x(last.time), cy: y(last.rate), r: 5 });
    }
    let upper = budget === null ? null : y(budget) + 4;
    let lower = last ? y(last.rate) + 4 : null;
    if (upper !== null && lower !== null && Math.abs(upper - lower) < 15) {
      const middle = (upper + lower) / 2, sign = upper <= lower ? -1 : 1;
      [upper, lower] = [middle + 8 * sign, middle - 8 * sign];
    }
    if (lower !== null) this.words("live-text", `live ${short(last.rate)}`, { class: "now", x: right + 9, y: lower });
    if (upper !== null) this.words("budget-text", `max ${short(budget)}`, { x: right + 9, y: upper });
  }
}

// Two charts over the same time: the rate with the budget, and below it the threshold.
export class Control extends Drawing {
  constructor(holder) {
    super(holder, 250);
  }

  // data: points [{time, threshold, rate}], oldest first; budget
  draw({ points: all, budget }) {
    const left = 58, right = this.width - 74;
    const known = all.filter((p) => typeof p.threshold === "number");
    const last = all[all.length - 1];
    const begin = all.length ? all[0].time : 0, span = Math.max(all.length ? last.time - begin : 0, 1);
    const x = (time) => left + ((time - begin) / span) * (right - left);
    this.begin(
      `Rate and threshold over ${duration(span)}: ${last ? percent(last.rate) : "–"} escalated, budget ${short(budget)}, ` +
        `threshold ${last ? points(last.threshold) : "–"}.`,
    );
    const rates = all.filter((p) => p.rate !== null);
    const most = Math.min(1, Math.max(0.05, 1.3 * Math.max(budget, ...rates.map((p) => p.rate))));
    const up = this.band("r", { left, right, top: 18, bottom: 100, low: 0, high: most, name: "rate", says: short });
    this.part("budget", "path", { class: "dash", d: path([[left, up(budget)], [right, up(budget)]]) });
    this.words("budget-text", `max ${short(budget)}`, { x: right + 8, y: up(budget) + 4 });
    if (rates.length) this.part("rate", "path", { class: "line live", d: path(rates.map((p) => [x(p.time), up(p.rate)])) });
    const levels = known.map((p) => p.threshold);
    const low = Math.min(...levels), high = Math.max(...levels), room = Math.max(0.15 * (high - low), 0.002);
    if (known.length) {
      const edge = { left, right, top: 136, bottom: 218, low: low - room, high: high + room };
      const at = this.band("t", { ...edge, name: "threshold: gain needed", says: points });
      this.part("threshold", "path", { class: "line", id: "threshold-line", "data-points": known.length, d: path(known.map((p) => [x(p.time), at(p.threshold)])) });
      const end = known[known.length - 1];
      this.part("dot", "circle", { class: "mark", cx: x(end.time), cy: at(end.threshold), r: 4.5 });
      this.words("now-text", points(end.threshold), { class: "now", x: right + 8, y: at(end.threshold) + 4 });
    }
    this.words("from", `${duration(span)} ago`, { x: left, y: 240 });
    this.words("to", "last samples", { x: right, y: 240, "text-anchor": "end" });
  }

  // Draw a scale with grid lines and name; returns the function from value to position.
  band(key, { left, right, top, bottom, low, high, name, says }) {
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    this.words(`${key}-name`, name, { class: "strong", x: left, y: top - 6 });
    for (const [i, tick] of steps(low, high, 3).entries()) {
      this.part(`${key}g${i}`, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
      this.words(`${key}t${i}`, says(tick).replace(" pts", ""), { x: left - 8, y: y(tick) + 4, "text-anchor": "end" });
    }
    return y;
  }
}

export class Bytes extends Drawing {
  constructor(holder, legend) {
    super(holder, 34);
    this.legend = legend;
  }

  draw({ round1, round2, saved, always }) {
    const total = Math.max(always, 1), width = this.width - 2;
    this.begin(`Round 1 ${bytes(round1)}, Round 2 ${bytes(round2)}, saved ${bytes(saved)} of ${bytes(always)}.`);
    const wide = (value) => Math.max(0, (value / total) * width);
    const one = wide(round1), two = wide(round2);
    this.part("saved", "rect", { class: "seg-saved", x: 1, y: 5, width, height: 24, rx: 5 });
    this.part("one", "rect", { class: "seg-one", x: 1, y: 5, width: one, height: 24, rx: Math.min(5, one / 2) });
    this.part("two", "rect", { class: "seg-two", x: 1 + one, y: 5, width: two, height: 24 });
    const rows = [
      ["seg-one", "Round 1: probabilities", round1],
      ["seg-two", "Round 2: embeddings", round2],
      ["seg-saved", "not sent, saved", saved],
    ];
    if (!this.legend.children.length)
      for (const [kind, name] of rows) {
        const swatch = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("rect", { class: kind, x: 1, y: 1, width: 14, height: 14, rx: 3 }));
        this.legend.append(el("dt", {}, swatch, el("span", {}, name)), el("dd"));
      }
    [...this.legend.querySelectorAll("dd")].forEach((node, i) => text(node, bytes(rows[i][2])));
  }
}
