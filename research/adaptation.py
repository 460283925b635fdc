"""What labels from service give back when inputs degrade: the default refitted from its own decision log, on records.

::

    python -m research.adaptation                        # docs/results/adaptation.json, and .md beside it
    python -m research.adaptation --datasets modelnet40  # the others stay as they are

Routers are fitted on the clean calibration part. The noisy test part is cut into five: what four of them would have
left in the log refits the router, which is judged on the fifth, so that each sample is judged once. Rates are matched
within a fifth. Nothing is chosen here.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute._util.resampling import escalated_share, interval, resampled_runs, resamples
from gainroute.control.recalibrate import recalibrate
from gainroute.errors import GainrouteWarning, TooFewSamplesError
from gainroute.experiments.measures import REPLICATES
from gainroute.experiments.records import Record, load_record
from gainroute.experiments.scores import blended_answers
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray
from gainroute.training.route_answers import RouteAnswers
from research.bound import read_bound
from research.recalibration import logged

__all__ = ["Adapted", "adapt", "main", "summarise", "write"]

RATE, EXPLORE, FOLDS = 0.2, 0.05, 5
LABELLED = (0.25, 1.0)  # shares of the decisions that get a label
RECORDS = ("modelnet40", "cifar10", "cifar100", "ccv", "digits")
ROUTERS = ("paper", "default", *(f"adapted {share:g}" for share in LABELLED))

ABOUT = """# When inputs degrade: labels from service

Made by `python -m research.adaptation` from the committed records: noisy test parts, {rate} escalated, accuracy in %.

Noise exists only at test time, and nothing in the calibration part tells what it does to either route. Labels of live
decisions do. The default router is refitted from its own decision log by `gainroute recalibrate`, which has the
posteriors of all its decisions, the strong answers of the escalated ones ({rate}; {explore} of all samples are
escalated to explore), and labels for a quarter of the decisions, or for all. It is judged on samples that are in
neither fit. A dash: there were fewer labels than `recalibrate` asks for.

{table}

Differences and intervals: the refitted router minus the paper's, points, 95 % over seeds and test samples together.
*Share of the bound*: that difference over what strong learners reach that are fitted to noisy samples as well
(`research/bound.py`). The aim was one half. It is reached with labels for all decisions in {reached} of {total} rows
that have a bound.

A refitted router is not taught: the log holds the strong route's answers, not its posteriors. Its blend is that of the
calibration part.
"""


@dataclass(frozen=True, eq=False)
class Adapted:
    """One record under one regime: whether each test sample is answered right, by router, (N,), in the order of ids."""

    right: Mapping[str, FloatArray]
    labels: Mapping[float, float]  # how many labels a refit had, by the share of decisions that get one


def adapt(record: Record, regime: int) -> Adapted:
    """Refit the default from a log of all fifths of a noisy test part but one, and judge it on that one."""
    split, held, training = record.noisy[regime], record.calibration, record.training
    routers: dict[str, Router] = {
        "paper": gr.ExpectedGainRouter.paper(RATE).fit(held.local_posteriors, held.labels, held.strong_prediction),
        "default": gr.ExpectedGainRouter(RATE, threshold="calibration").fit(
            held.local_posteriors,
            held.labels,
            held.strong_prediction,
            strong_posterior=held.strong_posterior,
            training=None if training is None else (training.posteriors, training.labels),
        ),
    }
    rng = np.random.default_rng([record.seed, regime])
    order, right = rng.permutation(len(split)), {name: np.full(len(split), np.nan) for name in ROUTERS}
    counts: dict[float, list[int]] = {share: [] for share in LABELLED}
    for fold in range(FOLDS):
        rows, log = order[fold::FOLDS], split.take(np.delete(order, np.s_[fold::FOLDS]))
        made = dict(routers)
        for share in LABELLED:
            decisions = logged(routers["default"], log, RATE, EXPLORE, rng, 0.0, True, share)
            counts[share].append(int((np.asarray(decisions.labels) >= 0).sum()))
            with contextlib.suppress(TooFewSamplesError):
                made[f"adapted {share:g}"] = recalibrate(routers["default"], decisions)
        for name, router in made.items():
            right[name][rows] = _right(router, split.take(rows))
    by_id = np.argsort(split.ids, kind="stable")
    # Fifths differ by one sample at most: a router that one of them could not refit has no answers there.
    whole = {name: answers[by_id] for name, answers in right.items() if not np.isnan(answers).any()}
    return Adapted(whole, {share: float(np.mean(count)) for share, count in counts.items()})


def _right(router: Router, split: RouteAnswers) -> FloatArray:
    """Right answers with the highest scores escalated at the rate; a share of one at the cut."""
    decision = router.route(split.local_posteriors)
    strong = blended_answers(router, decision, split.strong_posterior)
    answers = decision.weak_prediction, split.strong_prediction if strong is None else strong
    weak_right, strong_right = ((answer == split.labels).astype(np.float64) for answer in answers)
    share = escalated_share(decision.score, np.ones(len(split)), np.array([RATE]))[0]
    right: FloatArray = weak_right + share * (strong_right - weak_right)
    return right


def summarise(found: Sequence[Adapted], dataset: str, regime: int, bound: float | None) -> dict[str, Any]:
    """Sum up the seeds of a data set under one regime."""
    n, seeds = len(found[0].right["paper"]), len(found)
    of_runs = resampled_runs(seeds, REPLICATES, np.random.default_rng([0, seeds]))
    names = [name for name in ROUTERS if all(name in seed.right for seed in found)]
    accuracy = {name: np.array([seed.right[name].mean() for seed in found]) for name in names}
    row: dict[str, Any] = {"dataset": dataset, "noise_classes": regime, "seeds": seeds, "bound": bound}
    row["accuracy"] = {name: float(value.mean()) for name, value in accuracy.items()}
    row["labels"] = {f"{share:g}": float(np.mean([seed.labels[share] for seed in found])) for share in LABELLED}
    for name in names[1:]:
        each = [seed.right[name] - seed.right["paper"] for seed in found]
        drawn = np.concatenate(
            [np.stack([block @ one for one in each], axis=1) / n for block in resamples(n, REPLICATES, _rng())]
        )
        low, high = interval(np.einsum("cs,cs->c", of_runs, drawn))
        by_seed = accuracy[name] - accuracy["paper"]
        row[name] = {
            "value": float(by_seed.mean()),
            "low": float(low),
            "high": float(high),
            "by_seed": by_seed.tolist(),
        }
    return row


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


# ---- the page -------------------------------------------------------------------------------------------


def _share(row: Mapping[str, Any], name: str) -> float | None:
    if row["bound"] is None or name not in row:
        return None
    return float(row[name]["value"] / (row["bound"] - row["accuracy"]["paper"]))


def _page(rows: Sequence[dict[str, Any]]) -> str:
    quarter, everything = (f"adapted {share:g}" for share in LABELLED)
    refits = "labels | refitted | minus paper's | " * len(LABELLED)
    columns = f"| data set | noisy classes | seeds | paper's | default | {refits}bound | share of the bound |"
    table = [columns, "|" + "---|" * (columns.count("|") - 1)]
    for row in rows:
        cells = [row["dataset"], str(row["noise_classes"]), str(row["seeds"])]
        cells += [f"{100 * row['accuracy'][name]:.1f}" for name in ("paper", "default")]
        for name, share in zip((quarter, everything), LABELLED, strict=True):
            if name not in row:
                cells += [f"{row['labels'][f'{share:g}']:,.0f}", "–", "–"]
                continue
            points = "{value:+.1f} ({low:+.1f} … {high:+.1f})".format(
                **{key: 100 * row[name][key] for key in ("value", "low", "high")}
            )
            accuracy = f"{100 * row['accuracy'][name]:.1f}"
            cells += [f"{row['labels'][f'{share:g}']:,.0f}", accuracy, points.replace("-", "−")]
        share_of_bound = _share(row, everything)
        cells += ["", ""] if share_of_bound is None else [f"{100 * row['bound']:.1f}", f"{share_of_bound:.2f}"]
        table.append(f"| {' | '.join(cells)} |")
    bounded = [found for row in rows if (found := _share(row, everything)) is not None]
    reached = sum(found >= 0.5 for found in bounded) or "none"
    shares = {"rate": f"{100 * RATE:.0f} %", "explore": f"{100 * EXPLORE:.0f} %"}
    return ABOUT.format(**shares, table="\n".join(table), reached=reached, total=len(bounded))


def write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the JSON and the page; rows of other data sets that are there are kept."""
    kept = json.loads(out.read_bytes())["rows"] if out.is_file() else []
    made = {row["dataset"] for row in rows}
    rows = [*(row for row in kept if row["dataset"] not in made), *rows]
    rows = sorted(rows, key=lambda row: RECORDS.index(row["dataset"]) if row["dataset"] in RECORDS else len(RECORDS))
    write_bytes(out, json.dumps({"rate": RATE, "rows": rows}, indent=1).encode() + b"\n")
    write_bytes(out.with_suffix(".md"), _page(rows).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all records and write the JSON and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records-dir", type=Path, default=Path("records"))
    parser.add_argument("--datasets", nargs="+", default=list(RECORDS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/adaptation.json"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", GainrouteWarning)  # a log of noisy samples lacks some class now and then
    for dataset in options.datasets:
        found: dict[int, list[Adapted]] = {}
        paths = sorted((options.records_dir / dataset).glob("seed*.npz"))
        stamps = {}
        with one_thread():
            for path in track(paths, dataset):
                record = load_record(path)
                stamps[record.seed] = hashlib.sha256(path.read_bytes()).hexdigest()
                for regime in sorted(record.noisy):
                    found.setdefault(regime, []).append(adapt(record, regime))
        bounds = read_bound(options.out.with_name("bound.json"), dataset, stamps)
        totals = {regime: np.interp(RATE, b["rates"], b["total"]) for regime, b in bounds.items()}
        write(options.out, [summarise(runs, dataset, r, totals.get(str(r))) for r, runs in found.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
