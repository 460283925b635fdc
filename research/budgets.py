"""Whether thresholds hold their budget on new samples: thirteen real data sets, few and many calibration samples.

::

    python -m research.budgets --data-dir data --out docs/results/budgets.json   # and .md, .png beside it

The digits and the breast cancer data come with scikit-learn, four data sets are records, and `--data-dir` holds
adult.csv, credit.csv, ccv.npz and leaves100.npz; those that are not there are left out. For each data set, samples that
trained neither route are drawn for calibration, and the rate of the default router is measured on the others. Each
finished cell is kept in `--cells`, and the same command goes on from there; another folder begins anew.

What sampling alone gives is known exactly. For a score that nothing was fitted for, τ is the (k + 1)-th largest of N
calibration scores, k = ⌊N·B⌋, and the number of n new scores above it is beta-binomial (n, k + 1, N − k). That follows
from the order of N + n exchangeable scores alone, so it also holds for draws without replacement from a finite pool.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from scipy.stats import betabinom

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.evaluation.figure_style import LIGHT, drawing
from gainroute.evaluation.figures import encode
from gainroute.experiments.records import load_record
from gainroute.routing.decide import escalate_ties
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["main", "rates_of", "sampling"]

BUDGETS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
SIZES = (200, 500, 2000)
MOST_NEW = 5000
OTHER_ROUTERS: dict[str, Callable[[], gr.Router]] = {
    "confidence": gr.ConfidenceRouter,
    "calibrated confidence": gr.CalibratedConfidenceRouter,
    "learned gain": gr.LearnedGainRouter,
    "random": gr.RandomRouter,
}
RECORDS = ("digits", "modelnet40", "cifar10", "cifar100")
TABLES = {  # columns as organisations would hold them, and the label
    "adult": (
        [
            ["age", "education", "education-num", "marital-status", "relationship", "race", "sex", "native-country"],
            ["workclass", "occupation", "hours-per-week"],
            ["capital-gain", "capital-loss", "fnlwgt"],
        ],
        "income-per-year",
    ),
    "credit": (
        [
            ["LIMIT_BAL", "GENDER", "EDUCATION", "MARRIAGE", "AGE"],
            [f"PAY_{i}" for i in (0, 2, 3, 4, 5, 6)],
            [f"{name}{i}" for name in ("BILL_AMT", "PAY_AMT") for i in range(1, 7)],
        ],
        "default.payment.next.month",
    ),
}


ABOUT = """# Do thresholds hold their budget?

Made by `python -m research.budgets --data-dir data`. The default router is fitted on N calibration samples drawn at
random, and its rate is measured on n other samples, for six budgets. There are as many seeds as it takes for two
points to be four standard errors of the mean, and at least five.

- {mean}
- {single}

What sampling alone gives is the spread of the rate for a score that nothing was fitted for: calibration samples and
new samples are both drawn at random. The number of new samples above τ is then beta-binomial (n, k + 1, N − k) with
k = ⌊N·B⌋, whatever the scores are. This follows from the order of N + n exchangeable scores alone, so it also holds
for draws without replacement from a finite pool. The standard deviation of the rate is close to
√(B(1 − B)(1/N + 1/n)); its mean is (k + 1)/(N + 1), slightly above B. Some rates in a thousand lie beyond three
standard deviations even then. [Decision 0006](../decisions/0006-thresholds.md) explains where there are more.

{picture}

## The default router

Mean rate on new samples in %, and in brackets the largest deviation of a single seed in standard deviations.

{default}
"""
OTHERS = """
## Other routers, and scores that tie

The digits in four large views, 200 calibration samples. *Votes alone*: every party sends only its answer, as a
posterior of zeros and a one. Most scores then tie, and a share of the tied samples is escalated.

{table}
"""


@dataclass(frozen=True, eq=False)
class Held:
    """Posteriors of both routes on samples that trained neither."""

    name: str
    local: FloatArray
    labels: IntArray
    strong: FloatArray


def rates_of(held: Held, size: int, seeds: int, router: Callable[[], gr.Router] = gr.ExpectedGainRouter) -> FloatArray:
    """Escalation rate on the samples not drawn, by seed and budget, (seeds, B)."""
    rates = np.empty((seeds, len(BUDGETS)))
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(held.labels))
        fit, new = order[:size], order[size : size + MOST_NEW]
        made = router()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gr.GainrouteWarning)  # classes that a small draw lacks
            made.fit(held.local[:, fit], held.labels[fit], strong_posterior=held.strong[fit])
        local, scores, rule = held.local[:, new], made.threshold_scores_, made.stages().threshold
        score = made.route(local).score
        for i, budget in enumerate(BUDGETS):
            threshold = made.threshold_for(budget)
            escalated, tied = score > threshold, np.flatnonzero(score == threshold)
            escalated[tied] = escalate_ties(local[:, tied], rule.tied_share(scores, threshold, budget), made.seed)
            rates[seed, i] = escalated.mean()
    return rates


def sampling(size: int, new: int, budget: float) -> tuple[float, float]:
    """Standard deviation of the rate by sampling alone, and the probability of more than three of them from B."""
    above = math.floor(size * budget + 1e-9)
    law = betabinom(new, above + 1, size - above)
    spread = float(law.std()) / new
    outside = np.abs(np.arange(new + 1) / new - budget) > 3 * spread
    return spread, float(law.pmf(np.flatnonzero(outside)).sum())


def seeds_for(size: int, new: int) -> int:
    """Seeds after which two points are four standard errors of the mean rate at B = 1/2, and at least five."""
    return max(5, math.ceil((4 * sampling(size, new, 0.5)[0] / 0.02) ** 2))


def _trained(name: str, views: Sequence[FloatArray], labels: IntArray, train: int, strong: Callable[[], Any]) -> Held:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    order = np.random.default_rng(0).permutation(len(labels))
    fit, rest = order[:train], order[train:]

    def posterior(x: FloatArray, model: Any) -> FloatArray:
        found: FloatArray = model.fit(x[fit], labels[fit]).predict_proba(x[rest])
        return found

    weak = [posterior(view, make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))) for view in views]
    return Held(name, np.stack(weak), labels[rest], posterior(np.concatenate(views, axis=1), strong()))


def _data_sets(data_dir: Path | None, records_dir: Path) -> Iterator[Held]:
    from sklearn.datasets import load_breast_cancer, load_digits
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    def forest() -> Any:
        return RandomForestClassifier(200, random_state=0)

    def boosted() -> Any:
        return HistGradientBoostingClassifier(max_iter=60, random_state=0)

    digits = load_digits()
    images = digits.images / 16

    def flat(*views: FloatArray) -> list[FloatArray]:
        return [view.reshape(len(view), -1) for view in views]

    quadrants = flat(images[:, :4, :4], images[:, :4, 4:], images[:, 4:, :4], images[:, 4:, 4:])
    yield _trained("digits, quadrants", quadrants, digits.target, 700, forest)
    large = flat(images[:, :6], images[:, 2:], images[:, :, :6], images[:, :, 2:])
    yield _trained("digits, large views", large, digits.target, 900, forest)
    fourier = np.abs(np.fft.rfft2(images))
    blocks = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))
    yield _trained("digits, six views", large + flat(fourier, blocks), digits.target, 900, forest)
    yield _trained("digits, one model", flat(images), digits.target, 700, forest)
    cancer = load_breast_cancer()
    yield _trained("breast cancer", [cancer.data[:, i::3] for i in range(3)], cancer.target, 150, forest)
    for name in RECORDS:
        record = load_record(records_dir / name / "seed0.npz")
        parts = record.calibration, record.test
        yield Held(
            f"{name}, record",
            np.concatenate([part.local_posteriors for part in parts], axis=1).astype(np.float64),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.strong_posterior for part in parts]).astype(np.float64),
        )
    if data_dir is None:
        return
    for name, (groups, label) in TABLES.items():
        if (data_dir / f"{name}.csv").is_file():
            with (data_dir / f"{name}.csv").open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            views = [np.concatenate([_column([row[c] for row in rows]) for c in columns], axis=1) for columns in groups]
            yield _trained(name, views, np.unique([r[label] for r in rows], return_inverse=True)[1], 12_000, boosted)
    for name, train in (("ccv", 2500), ("leaves100", 700)):
        if (data_dir / f"{name}.npz").is_file():
            with np.load(data_dir / f"{name}.npz", allow_pickle=False) as found:
                views = [found[f"view{i}"] for i in range(3)]
                labels = np.unique(found["labels"].ravel(), return_inverse=True)[1]
            yield _trained(name, views, labels, train, forest)


def _column(values: list[str]) -> FloatArray:
    """A column as numbers, or one-hot if it holds text."""
    try:
        return np.array(values, dtype=np.float64)[:, None]
    except ValueError:
        one_hot: FloatArray = (np.array(values)[:, None] == np.unique(values)).astype(np.float64)
        return one_hot


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rates; write them as JSON, as a page and as a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--records-dir", type=Path, default=Path("records"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/budgets.json"))
    parser.add_argument("--cells", type=Path, default=Path("out/budgets"))
    options = parser.parse_args(arguments)
    with one_thread():
        sets = list(_data_sets(options.data_dir, options.records_dir))
        cells = [(held, size) for held in sets for size in SIZES if size <= 0.6 * len(held.labels)]
        rows = [_kept(options.cells, "expected gain", held, size) for held, size in track(cells, "the default")]
        easy = next(held for held in sets if held.name == "digits, large views")
        votes = Held("votes alone", np.eye(easy.local.shape[2])[easy.local.argmax(2)], easy.labels, easy.strong)
        others = [
            {"router": name, **_kept(options.cells, name, held, 200)}
            for name in track(list(OTHER_ROUTERS), "other routers")
            for held in (easy, votes)
        ]
    found = {"budgets": BUDGETS, "rows": rows, "other_routers": others}
    write_bytes(options.out, json.dumps(found, indent=1).encode())
    write_bytes(options.out.with_suffix(".png"), _figure(rows))
    write_bytes(options.out.with_suffix(".md"), _page(rows, others, options.out.with_suffix(".png").name).encode())
    return 0


def _kept(folder: Path, router: str, held: Held, size: int) -> dict[str, Any]:
    """A row that was measured before, or measured now and kept."""
    path = folder / f"{router}-{held.name}-{size}.json".replace(" ", "_").replace(",", "")
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_bytes())
        return kept
    row = _row(held, size, OTHER_ROUTERS.get(router, gr.ExpectedGainRouter))
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(row).encode())
    return row


def _row(held: Held, size: int, router: Callable[[], gr.Router] = gr.ExpectedGainRouter) -> dict[str, Any]:
    new = min(len(held.labels) - size, MOST_NEW)
    seeds = seeds_for(size, new)
    rates = rates_of(held, size, seeds, router)
    spread, outside = np.transpose([sampling(size, new, budget) for budget in BUDGETS])
    deviation = np.abs(rates - BUDGETS) / spread
    return {
        "data": held.name, "classes": held.local.shape[2], "size": size, "new": new, "seeds": seeds,
        "rates": rates.round(5).tolist(), "spread": spread.round(6).tolist(),
        "worst": deviation.max(0).round(3).tolist(), "beyond": (deviation > 3).sum(0).tolist(),
        "beyond_by_chance": (seeds * outside).round(4).tolist(),
    }  # fmt: skip


def _page(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], figure: str) -> str:
    beyond, chance = (sum(sum(row[name]) for row in rows) for name in ("beyond", "beyond_by_chance"))
    draws = sum(row["seeds"] for row in rows) * len(BUDGETS)
    off = np.abs([np.mean(row["rates"], axis=0) - BUDGETS for row in rows])
    missed = "; ".join(
        f"{rows[i]['data']}, N = {rows[i]['size']:,}, B = {100 * BUDGETS[j]:g} %: {100 * off[i, j]:.1f} points"
        for i, j in np.argwhere(off > 0.02).tolist()
    )
    where = "; ".join(
        f"{row['data']}, N = {row['size']:,}: {sum(row['beyond'])} ({sum(row['beyond_by_chance']):.1f})"
        for row in rows
        if sum(row["beyond"])
    )
    mean = (
        f"**Mean rate over seeds:** within two points of the budget in {int((off <= 0.02).sum())} of {off.size} cells, "
        f"{100 * off.mean():.2f} points away on average. Further away: {missed or 'none'}."
    )
    single = (
        f"**Single seeds:** {beyond} of {draws:,} rates are more than three standard deviations of sampling away from "
        f"the budget. Sampling alone gives {chance:.1f}. By data set, in brackets what sampling gives: {where}."
    )
    default = ("data set", "data"), ("K", "classes"), ("N", "size"), ("n", "new"), ("seeds", "seeds")
    other = ("router", "router"), ("posteriors", "data"), ("seeds", "seeds")
    picture = f"![Mean rate minus budget, by data set]({figure})"
    return ABOUT.format(mean=mean, single=single, picture=picture, default=_table(rows, *default)) + OTHERS.format(
        table=_table(others, *other)
    )


def _table(rows: Sequence[dict[str, Any]], *columns: tuple[str, str]) -> str:
    titles = [title for title, _ in columns] + [f"B = {100 * budget:g} %" for budget in BUDGETS]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        cells = [f"{row[key]:,}" if isinstance(row[key], int) else row[key] for _, key in columns]
        for mean, worst in zip(np.mean(row["rates"], axis=0), row["worst"], strict=True):
            cells.append(f"{100 * mean:.1f} ({worst:.1f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(rows: Sequence[dict[str, Any]]) -> bytes:
    """Mean rate minus budget in points, with 95 % intervals over seeds: one panel per N, one mark per data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    with drawing(LIGHT) as new_figure:
        figure = new_figure((9.0, 7.2))
        column = figure.subplots(len(SIZES), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, size in zip(column, SIZES, strict=True):
            axes.axhspan(-2, 2, color=LIGHT.grid, linewidth=0)
            axes.axhline(0, color=LIGHT.faint, linewidth=1)
            for row in (row for row in rows if row["size"] == size):
                at = np.arange(len(BUDGETS)) + (names.index(row["data"]) - (len(names) - 1) / 2) * 0.06
                rates = 100 * np.subtract(row["rates"], BUDGETS)
                number = names.index(row["data"])
                axes.errorbar(
                    at, rates.mean(0), yerr=1.96 * rates.std(0, ddof=1) / math.sqrt(len(rates)), label=row["data"],
                    fmt="o^sDvP*X<>hdp"[number], color=f"C{number % 10}", markersize=4.5, linewidth=1,
                )  # fmt: skip
            axes.set_title(f"{size:,} calibration samples", loc="left")
            axes.set_ylabel("rate − budget, points")
            axes.grid(visible=False, axis="x")
        column[-1].set_xticks(np.arange(len(BUDGETS)), [f"B = {100 * budget:g} %" for budget in BUDGETS])
        shown = [axes.get_legend_handles_labels() for axes in column]
        marks = {label: handle for handles, labels in shown for handle, label in zip(handles, labels, strict=True)}
        figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=5)
        return encode(figure, "png", 120)


if __name__ == "__main__":
    sys.exit(main())
