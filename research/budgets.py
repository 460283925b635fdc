"""Whether thresholds hold their budget on new samples: twelve real data sets, few and many calibration samples.

::

    python -m research.budgets --data-dir data --out docs/results/budgets.json

The digits and the breast cancer data come with scikit-learn, four data sets are records, and `--data-dir` holds
adult.csv, credit.csv, ccv.npz and leaves100.npz; those that are not there are left out. For each data set, samples that
trained neither route are drawn for calibration, and the rate of the default router is measured on the others.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.experiments.records import load_record
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["main", "rates_of"]

BUDGETS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
SIZES = (200, 500, 2000)
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


@dataclass(frozen=True, eq=False)
class Held:
    """Posteriors of both routes on samples that trained neither."""

    name: str
    local: FloatArray
    labels: IntArray
    strong: FloatArray


def rates_of(held: Held, size: int, seeds: int) -> FloatArray:
    """Escalation rate on the samples not drawn, by seed and budget, (seeds, B)."""
    rates = np.empty((seeds, len(BUDGETS)))
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(held.labels))
        fit, new = order[:size], order[size : size + 5000]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gr.GainrouteWarning)  # classes that a small draw lacks
            router = gr.ExpectedGainRouter(0.2)
            router.fit(held.local[:, fit], held.labels[fit], strong_posterior=held.strong[fit])
        score = router.route(held.local[:, new]).score
        rates[seed] = [(score > router.threshold_for(budget)).mean() for budget in BUDGETS]
    return rates


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
    """Measure the rates and write them as JSON and as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--records-dir", type=Path, default=Path("records"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/results/budgets.json"))
    options = parser.parse_args(arguments)
    rows = []
    with one_thread():
        cells = [
            (held, size)
            for held in _data_sets(options.data_dir, options.records_dir)
            for size in SIZES
            if size <= 0.6 * len(held.labels)
        ]
        for held, size in track(cells, "rates"):
            rates = rates_of(held, size, options.seeds)
            new = min(len(held.labels) - size, 5000)
            spread = np.sqrt(np.multiply(BUDGETS, np.subtract(1, BUDGETS)) * (1 / size + 1 / new))
            rows.append(
                {
                    "data": held.name, "classes": held.local.shape[2], "size": size, "new": new, "seeds": options.seeds,
                    "rates": rates.round(5).tolist(), "worst": (np.abs(rates - BUDGETS).max(0) / spread).tolist(),
                }
            )  # fmt: skip
            write_bytes(options.out, json.dumps({"budgets": BUDGETS, "rows": rows}, indent=1).encode())
    write_bytes(options.out.with_suffix(".md"), _page(rows).encode())
    return 0


def _page(rows: Sequence[dict[str, Any]]) -> str:
    header = " | ".join(f"B = {100 * budget:g} %" for budget in BUDGETS)
    about = (
        "Made by `python -m research.budgets --data-dir data`. Each cell: the mean rate of the default router on new "
        "samples in %, over seeds, and in brackets the largest deviation of a single seed, in standard deviations of "
        "what sampling alone gives (calibration and new samples are both drawn at random)."
    )
    lines = [
        "# Do thresholds hold their budget?",
        "",
        about,
        "",
        f"| data set | K | samples | {header} |",
        "|---|---|---|" + "---|" * len(BUDGETS),
    ]
    for row in rows:
        mean = np.mean(row["rates"], axis=0)
        cells = " | ".join(f"{100 * m:.1f} ({w:.1f})" for m, w in zip(mean, row["worst"], strict=True))
        lines.append(f"| {row['data']} | {row['classes']} | {row['size']:,} | {cells} |")
    off = np.array([np.mean(row["rates"], axis=0) - BUDGETS for row in rows])
    worst = np.array([row["worst"] for row in rows])
    summary = (
        f"Mean rates lie within {100 * np.abs(off).max():.1f} points of the budget ({100 * np.abs(off).mean():.1f} on "
        f"average); {int((worst > 3).sum())} of {worst.size} cells have a seed beyond three standard deviations."
    )
    return "\n".join([*lines, "", summary, ""])


if __name__ == "__main__":
    sys.exit(main())
