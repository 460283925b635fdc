"""One small and one big model: where the expected gain beats confidence, and what the pool does to the small answers.

::

    python -m research.cascade                    # embedded data and the committed records: two minutes of one core
    python -m research.cascade --tables FOLDER    # also UCI's Adult and credit card default (adult.csv, credit.csv)

Prints the tables of docs/cascade.md. Every split trains both models, fits the routers on a calibration part and reads
the accuracy on a test part at exact escalation rates, so that only the order of the samples and the answers count, not
the threshold. A record gives one party's posterior as the small model and the fused one as the big model.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

import gainroute as gr
from gainroute.evaluation.metrics import operating_point
from gainroute.experiments.pages.text import Table, percent, to_markdown, with_interval
from gainroute.experiments.records import load_record
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["RATES", "Answers", "compare", "corrected_interval", "main"]

RATES = (0.05, 0.1, 0.2, 0.4)
SPLITS = 10
TEST_SHARE = 0.5  # samples that judge, divided by all others of a split
MOST_CALIBRATION = 2000
RECORDS = ("digits", "modelnet40", "cifar10")
ROUTERS: dict[str, Callable[[], gr.Router]] = {
    "default": lambda: gr.ExpectedGainRouter(threshold="calibration"),
    "own answers": lambda: gr.ExpectedGainRouter(pooling="mean", threshold="calibration"),
    "confidence": lambda: gr.ConfidenceRouter(threshold="calibration"),
    "calibrated confidence": lambda: gr.CalibratedConfidenceRouter(lam="cv", threshold="calibration"),
}
COMPARED = (("default", "confidence"), ("own answers", "confidence"), ("own answers", "calibrated confidence"))


@dataclass(frozen=True, eq=False)
class Answers:
    """Both models on samples that trained neither: posteriors (N, K), labels (N,), and how many rows calibrate."""

    small: FloatArray
    big: FloatArray
    labels: IntArray
    calibration: int


# ---- data -------------------------------------------------------------------------------------------


def _trained(data: tuple[FloatArray, IntArray], small: Any, big: Any, sizes: tuple[int, int]) -> Iterator[Answers]:
    """Train both models on random parts; `sizes` are those of the training and of the calibration part."""
    (x, y), (training, calibration) = data, sizes
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(x))
        fitted, rest = order[:training], order[training : round((1 + TEST_SHARE) * (training + calibration))]
        weak, strong = (model().fit(x[fitted], y[fitted]).predict_proba(x[rest]) for model in (small, big))
        yield Answers(weak, strong, y[rest], calibration)


def _recorded(folder: Path) -> Iterator[Answers]:
    """One party per split, in turn, and a new draw of the calibration part."""
    paths = sorted(folder.glob("seed*.npz"))
    for split in range(SPLITS):
        record = load_record(paths[split % len(paths)])
        parts = record.calibration, record.test
        local = np.concatenate([p.local_posteriors for p in parts], axis=1)
        strong = np.concatenate([p.strong_posterior for p in parts])
        labels = np.concatenate([p.labels for p in parts])
        size = min(MOST_CALIBRATION, int(len(labels) / (1 + TEST_SHARE)))
        order = np.random.default_rng(split).permutation(len(labels))[: round((1 + TEST_SHARE) * size)]
        party = local[split // len(paths) % len(local)]
        yield Answers(party[order], strong[order], labels[order], size)


def _table(path: Path, target: str, positive: str, drop: Sequence[str]) -> tuple[FloatArray, IntArray]:
    """Columns as numbers; a column of words becomes the rank of each word in the alphabet."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = []
    for name in rows[0]:
        if name == target or name in drop:
            continue
        values = [row[name] for row in rows]
        try:
            columns.append(np.array(values, dtype=np.float64))
        except ValueError:
            columns.append(np.unique(values, return_inverse=True)[1].astype(np.float64))
    return np.column_stack(columns), np.array([row[target] == positive for row in rows]).astype(np.int64)


def cascades(records: Path, tables: Path | None) -> Iterator[tuple[str, Iterator[Answers]]]:
    """Name of each cascade, and its splits."""
    from sklearn.datasets import load_breast_cancer, load_digits
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    def bayes() -> Any:
        return GaussianNB(var_smoothing=1e-2)

    def forest() -> Any:
        return RandomForestClassifier(200, random_state=0)

    def tree() -> Any:
        return DecisionTreeClassifier(max_depth=4, min_samples_leaf=5, random_state=0)

    def logistic() -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))

    def boosting() -> Any:
        return HistGradientBoostingClassifier(random_state=0)

    digits, cancer = load_digits(return_X_y=True), load_breast_cancer(return_X_y=True)
    yield "digits: naive Bayes, random forest", _trained(digits, bayes, forest, (700, 500))
    yield "digits: tree of depth 4, logistic regression", _trained(digits, tree, logistic, (700, 500))
    yield "breast cancer: naive Bayes, logistic regression", _trained(cancer, bayes, logistic, (200, 180))
    for name in RECORDS:
        yield f"{name} records: one party, all", _recorded(records / name)
    if tables is not None:
        adult = _table(tables / "adult.csv", "income-per-year", ">50K", ["fnlwgt"])
        credit = _table(tables / "credit.csv", "default.payment.next.month", "1", ["ID"])
        yield "Adult: logistic regression, boosting", _trained(adult, logistic, boosting, (5000, 2000))
        yield "credit: naive Bayes, boosting", _trained(credit, bayes, boosting, (5000, 2000))


# ---- measures ---------------------------------------------------------------------------------------


def compare(answers: Answers) -> dict[str, FloatArray]:
    """Accuracy of each router at `RATES` on the test part, with the accuracies of its weak and strong route around it.

    "changed" is the share of weak answers that the pool changes.
    """
    n = answers.calibration
    truth, big = answers.labels[n:], answers.big[n:]
    found: dict[str, FloatArray] = {}
    weak = {}
    for name, make in ROUTERS.items():
        router = make().fit(answers.small[:n], answers.labels[:n], strong_posterior=answers.big[:n])
        decision = router.route(answers.small[n:])
        weak[name], strong = decision.weak_prediction, router.strong_answers(decision, big)
        points = [operating_point(decision.score, weak[name], strong, truth, rate=r).accuracy for r in (0, *RATES, 1)]
        found[name] = np.array(points)
    found["changed"] = np.array([(weak["default"] != weak["own answers"]).mean()])
    return found


def corrected_interval(differences: FloatArray) -> tuple[float, float, float]:
    """Mean (J,) over overlapping random splits and its 95 % interval, with Nadeau and Bengio's corrected variance."""
    count = len(differences)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) * np.sqrt(1 / count + TEST_SHARE)
    half = float(stats.t.ppf(0.975, count - 1)) * float(error)
    return mean, mean - half, mean + half


def _differences(values: FloatArray) -> list[str]:
    return [with_interval(*corrected_interval(column), 2) for column in values.T]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m research.cascade", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=Path, default=Path("records"), help="folder of the committed records")
    parser.add_argument("--tables", type=Path, help="folder with adult.csv and credit.csv")
    chosen = parser.parse_args(arguments)
    gains: list[tuple[str, ...]] = []
    pools: list[tuple[str, ...]] = []
    with threadpool_limits(1):
        for name, splits in cascades(chosen.records, chosen.tables):
            found = [compare(answers) for answers in splits]
            at = {key: np.stack([f[key] for f in found]) for key in found[0]}
            small, big = at["own answers"].mean(axis=0)[[0, -1]]
            routes = f"{percent(small)} / {percent(big)}"
            for one, two in COMPARED:
                title = (name, routes) if (one, two) == COMPARED[0] else ("", "")
                gains.append((*title, f"{one} − {two}", *_differences(at[one] - at[two])[1:-1]))
            changed = percent(float(at["changed"].mean()))
            pools.append((name, changed, *_differences(at["default"] - at["own answers"])[:-1]))
            print(f"{name}: done", file=sys.stderr, flush=True)
    rates = tuple(f"{100 * rate:.0f} %" for rate in RATES)
    print(to_markdown(Table(("small, big model", "small / big", "points of accuracy", *rates), tuple(gains))))
    print(to_markdown(Table(("small, big model", "changed, %", "Round 1 alone", *rates), tuple(pools))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
