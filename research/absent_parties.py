"""Absent parties and partial escalation, measured on records: accuracy without a party, and accuracy for bytes.

::

    python -m research.absent_parties --out docs/results/absent_parties.json   # and .md beside it
    python -m research.absent_parties --datasets cifar100                       # the others stay as they are

Routers are fitted on the calibration part and judged on the clean test part, at matched rates and matched bytes.
Intervals are bootstrapped over seeds and test samples together, the same draws for everything that is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute._util.resampling import interval, resampled_runs, resamples
from gainroute.experiments.measures import REPLICATES, Routed, resampled_accuracy
from gainroute.experiments.records import Record, load_record
from gainroute.routing.absent import Subset
from gainroute.routing.offers import Offers, choose, fit_offers, priced
from gainroute.routing.samples import as_samples
from gainroute.routing.types import FloatArray, IntArray
from gainroute.training.route_answers import RouteAnswers

__all__ = ["ByBytes", "OneAbsent", "main", "measure_absent", "measure_bytes", "summarise"]

RATE = 0.2
PRICES = 120
RECORDS = ("modelnet40", "cifar100", "cifar10", "digits")
VALUE_BYTES = 4
AIM = 0.75  # of the bytes of whole escalation, for the same accuracy

ABOUT = """# Without a party, and with fewer bytes

Made by `python -m research.absent_parties` from the committed records: clean test parts, {rate} escalated. Accuracy in
%, differences in points with 95 % intervals over seeds and test samples together.

## One party absent on every sample

*Pooled* is what the service did before, and still does without a calibration for those present: the mean of their
posteriors, nothing escalated. *Routed*: pool, calibration, reliability and score are fitted for those present
(`gr.fit_subsets`), and {rate} of the samples, those with the largest score, are answered by the masked head from their
embeddings. *Kept*: none are, which shows what the calibrated pool alone changes. The last column is our default at
{rate} with all parties.

{absent}

The records hold the masked head's predictions, not its posteriors: strong answers without a party are not blended with
Round 1.

## Accuracy for bytes

*Whole* is our default at {rate}: every party is asked for the embedding of every escalated sample. *Partial*
(`gr.PartialRouter`) asks the parties whose embeddings are worth their bytes; where it asks all, its strong answer is
that of *whole*. *Bytes for the same accuracy*: what partial escalation needs in Round 2 to be as accurate as *whole*,
as a share of the bytes of *whole*. *Bound*: the same for an oracle that knows which answers are right and buys the
cheapest right one. The price is matched to the bytes on the test part, as rates are matched elsewhere.

The aim was {aim:g} of the bytes. It was reached on {reached} of {total} data sets.

{bytes}

The bound says that cheaper right answers exist; Round 1 does not tell where. The gain of a subset is estimated with one
reliability per class, as if a single party's embedding were as useful on hard samples, which are the escalated ones, as
on easy ones. Also, the answer of all parties is blended with Round 1, that of a subset is not.
"""


@dataclass(frozen=True, eq=False)
class OneAbsent:
    """The test part without one party: (N,) each, in the order of the ids."""

    pooled_right: FloatArray
    routed: Routed


@dataclass(frozen=True, eq=False)
class ByBytes:
    """Whole and partial escalation of the test part.

    Attributes
    ----------
    whole
        By the router of all parties.
    cost, right : (P, N)
        Of partial escalation at falling prices, from none: the share of the bytes of a sample, whether it is answered
        right.
    cheapest : (N,)
        Share of the bytes of the cheapest offer that is right; infinite if none is.
    """

    whole: Routed
    cost: FloatArray
    right: FloatArray
    cheapest: FloatArray


def fitted(record: Record) -> gr.ExpectedGainRouter:
    """Our default on the calibration part; rates are matched on the test part, so that τ is not cross-fitted."""
    held = record.calibration
    router = gr.ExpectedGainRouter(RATE, threshold="calibration", folds=2)
    return router.fit(held.local_posteriors, held.labels, strong_posterior=held.strong_posterior)


def _proper(split: RouteAnswers) -> dict[Subset, IntArray]:
    return {s: a for s, a in split.subset_predictions.items() if len(s) < len(split.local_posteriors)}


def measure_absent(record: Record, router: gr.ExpectedGainRouter) -> dict[str, OneAbsent]:
    """Answers without each party, by its name."""
    held, test = record.calibration, record.test
    everyone, order = range(len(test.local_posteriors)), np.argsort(test.ids, kind="stable")
    found = {}
    for absent in everyone:
        subset = tuple(party for party in everyone if party != absent)
        by_subset = {subset: held.subset_predictions[subset]}
        routing = gr.fit_subsets(router, held.local_posteriors, held.labels, by_subset)
        present = np.broadcast_to(~np.isin(everyone, absent)[:, None], test.local_posteriors.shape[:2])
        decision = routing.route(test.local_posteriors, present=present)
        pooled = gr.pool_mean(test.local_posteriors[list(subset)]).argmax(axis=1)
        answers = pooled, decision.weak_prediction, test.subset_predictions[subset]
        right, weak, strong = ((a == test.labels)[order].astype(np.float64) for a in answers)
        found[record.party_names[absent]] = OneAbsent(right, Routed(decision.score[order], weak, strong, {}))
    return found


def measure_bytes(record: Record, router: gr.ExpectedGainRouter) -> ByBytes:
    """Whole and partial escalation."""
    held, test = record.calibration, record.test
    samples, _ = as_samples(
        held.local_posteriors, held.labels, held.strong_prediction, held.strong_posterior, weak_prediction=None,
        sample_weight=None, present=None, classes=None, extra_columns=0,
    )  # fmt: skip
    sizes = [float(VALUE_BYTES * d) for d in record.metadata["embedding_dimensions"]]
    offers = fit_offers(router, samples, _proper(held), sizes)
    router.offers_ = offers
    whole = router.route(test.local_posteriors)
    strong = router.strong_answers(whole, test.strong_posterior)
    order = np.argsort(test.ids, kind="stable")
    weak = (whole.weak_prediction == test.labels)[order]
    right = np.stack([*(a == test.labels for a in _proper(test).values()), strong == test.labels], axis=1)[order]
    gain = priced(router, whole, 0.0).gain[order]
    cost, answered = _sweep(offers, gain, weak, right)
    cheapest = np.where(right, offers.cost, np.inf).min(axis=1)
    routed = Routed(whole.score[order], weak.astype(np.float64), right[:, -1].astype(np.float64), {})
    return ByBytes(routed, cost, answered, cheapest)


def _sweep(offers: Offers, gain: FloatArray, weak: Any, right: Any) -> tuple[FloatArray, FloatArray]:
    highest = float((gain / offers.cost).max())
    rows, costs, answered = np.arange(len(gain)), [], []
    for price in [*np.geomspace(highest, highest * 1e-4, PRICES - 1), 0.0]:
        chosen, cost = choose(gain, offers.cost, price)
        costs.append(cost)
        answered.append(np.where(chosen < 0, weak, right[rows, chosen]).astype(np.float64))
    return np.stack(costs), np.stack(answered)


# ---- over seeds -----------------------------------------------------------------------------------------


def _with_interval(value: float, draws: FloatArray) -> dict[str, float]:
    low, high = interval(draws)
    return {"value": value, "low": float(low), "high": float(high)}


def _accuracy(runs: Sequence[Routed], rate: float) -> tuple[float, FloatArray]:
    """Mean over the seeds at a matched rate, and its resamples."""
    value = np.mean([np.interp(rate, run.curve.escalation_rate, run.curve.accuracy) for run in runs])
    return float(value), resampled_accuracy(runs, [rate])[:, 0]


def summarise(
    absent: Sequence[dict[str, OneAbsent]], by_bytes: Sequence[ByBytes], dataset: str, *, seed: int = 0
) -> dict[str, Any]:
    """Sum up the seeds of a data set."""
    parties: list[dict[str, Any]] = []
    for name in absent[0]:
        runs = [of_seed[name] for of_seed in absent]
        pooled = [Routed(np.zeros(len(r.pooled_right)), r.pooled_right, r.pooled_right, {}) for r in runs]
        before, drawn_before = _accuracy(pooled, 0.0)
        kept, _ = _accuracy([r.routed for r in runs], 0.0)
        now, drawn = _accuracy([r.routed for r in runs], RATE)
        strong = float(np.mean([r.routed.strong_right.mean() for r in runs]))
        difference = _with_interval(now - before, drawn - drawn_before)
        parties.append({"absent": name, "pooled": before, "kept": kept, "routed": now, "strong": strong,
                        "difference": difference, "draws": drawn - drawn_before})  # fmt: skip
    draws = np.mean([party.pop("draws") for party in parties], axis=0)
    value = float(np.mean([party["difference"]["value"] for party in parties]))
    whole, drawn_whole = _accuracy([run.whole for run in by_bytes], RATE)
    cost, right = (np.mean([getattr(run, name).mean(axis=1) for run in by_bytes], axis=0) for name in ("cost", "right"))
    drawn_cost, drawn_right = _resampled(by_bytes, seed)
    at_same = float(np.interp(RATE, cost, right))
    drawn_same = np.array([np.interp(RATE, c, r) for c, r in zip(drawn_cost, drawn_right, strict=True)])
    needed = [_bytes_for(*each) for each in zip(drawn_whole, drawn_cost, drawn_right, strict=True)]
    return {
        "dataset": dataset,
        "seeds": len(by_bytes),
        "parties": parties,
        "mean_difference": _with_interval(value, draws),
        "all_parties": whole,
        "partial": at_same,
        "partial_minus_whole": _with_interval(at_same - whole, drawn_same - drawn_whole),
        "bytes_for_the_same": _with_interval(_bytes_for(whole, cost, right) / RATE, np.array(needed) / RATE),
        "bound": float(np.mean([_oracle(run, whole) for run in by_bytes])) / RATE,
    }


def _resampled(runs: Sequence[ByBytes], seed: int) -> tuple[FloatArray, FloatArray]:
    """Bytes and accuracy at every price over resampled seeds and samples, (count, P): the draws of the whole route."""
    n, count = runs[0].cost.shape[1], REPLICATES
    of_runs = resampled_runs(len(runs), count, np.random.default_rng([seed, len(runs)]))
    found = []
    for name in ("cost", "right"):
        blocks = resamples(n, count, np.random.default_rng(seed))
        values = [getattr(run, name).T for run in runs]
        drawn = np.concatenate([np.stack([block @ v for v in values], axis=1) for block in blocks]) / n
        found.append(np.einsum("cs,csp->cp", of_runs, drawn))
    return found[0], found[1]


def _bytes_for(target: float, cost: FloatArray, right: FloatArray) -> float:
    """The smallest share of the bytes at which a curve reaches an accuracy; 1 if it does not."""
    reached = np.flatnonzero(right >= target)
    if not len(reached):
        return 1.0
    at = int(reached[0])
    if at == 0:
        return float(cost[0])
    return float(np.interp(target, right[at - 1 : at + 1], cost[at - 1 : at + 1]))


def _oracle(run: ByBytes, target: float) -> float:
    """Share of the bytes with which an oracle reaches an accuracy."""
    weak = run.whole.weak_right
    wanted = max(int(np.ceil((target - weak.mean()) * len(weak))), 0)
    prices = np.sort(run.cheapest[weak == 0])[:wanted]
    return float(prices.sum() / len(weak))


# ---- the page -------------------------------------------------------------------------------------------


def _points(value: dict[str, float]) -> str:
    return "{:+.1f} ({:+.1f} … {:+.1f})".format(*(100 * value[key] for key in ("value", "low", "high"))).replace(
        "-", "−"
    )


def _page(rows: Sequence[dict[str, Any]]) -> str:
    absent = [
        "| data set | seeds | absent | pooled | kept | routed | routed − pooled | all parties |",
        "|" + "---|" * 8,
    ]
    by_bytes = [
        "| data set | whole | partial, same bytes | partial − whole | bytes for the same accuracy | bound |",
        "|" + "---|" * 6,
    ]
    for row in rows:
        name, seeds, everyone = row["dataset"], row["seeds"], f"{100 * row['all_parties']:.1f}"
        for party in row["parties"]:
            cells = (f"{100 * party[key]:.1f}" for key in ("pooled", "kept", "routed"))
            gained = _points(party["difference"])
            absent.append(f"| {name} | {seeds} | {party['absent']} | {' | '.join(cells)} | {gained} | {everyone} |")
        absent.append(
            f"| {name} | {seeds} | any one, on average | | | | {_points(row['mean_difference'])} | {everyone} |"
        )
        needed = "{value:.2f} ({low:.2f} … {high:.2f})".format(**row["bytes_for_the_same"])
        by_bytes.append(
            f"| {name} | {everyone} | {100 * row['partial']:.1f} | {_points(row['partial_minus_whole'])} | {needed} | "
            f"{row['bound']:.2f} |"
        )
    return ABOUT.format(
        rate=f"{100 * RATE:.0f} %",
        aim=AIM,
        total=len(rows),
        reached=sum(row["bytes_for_the_same"]["value"] <= AIM for row in rows) or "none",
        absent="\n".join(absent),
        bytes="\n".join(by_bytes),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all records and write the JSON and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records-dir", type=Path, default=Path("records"))
    parser.add_argument("--datasets", nargs="+", default=list(RECORDS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/absent_parties.json"))
    options = parser.parse_args(arguments)
    rows = []
    with one_thread():
        for dataset in options.datasets:
            absent, by_bytes = [], []
            for path in track(sorted((options.records_dir / dataset).glob("seed*.npz")), dataset):
                record = load_record(path)
                router = fitted(record)
                absent.append(measure_absent(record, router))
                by_bytes.append(measure_bytes(record, router))
            rows.append(summarise(absent, by_bytes, dataset))
    write(options.out, rows)
    return 0


def write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the JSON and the page; rows of other data sets that are there are kept."""
    kept = json.loads(out.read_bytes())["rows"] if out.is_file() else []
    found = {row["dataset"]: row for row in (*kept, *rows)}
    known = [found.pop(name) for name in RECORDS if name in found]
    rows = [*known, *found.values()]
    write_bytes(out, json.dumps({"rate": RATE, "rows": rows}, indent=1).encode())
    write_bytes(out.with_suffix(".md"), _page(rows).encode())


if __name__ == "__main__":
    sys.exit(main())
