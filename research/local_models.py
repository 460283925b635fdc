"""How good Round 1 and Round 2 are by `gainroute train`: networks, as they were before, and scikit-learn estimators.

::

    python -m research.local_models --data-dir data --out out/local_models.json [--data ccv …]

The digits come with scikit-learn; `--data-dir` holds ccv.npz, leaves100.npz, adult.csv and credit.csv. Every figure is
one that the report of `gainroute train` gives for its test part. Runs that the file holds already are not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from gainroute._util.files import write_bytes
from gainroute.errors import GainrouteError

__all__ = ["main"]

SEEDS = range(5)
ROWS = 6000  # of a table
TABLES = {"credit": ("default.payment.next.month", 11), "adult": ("income-per-year", 7)}
LOGISTIC = "sklearn.linear_model:LogisticRegression(max_iter=1000)"
FOREST = "sklearn.ensemble:RandomForestClassifier(200, min_samples_leaf=2)"
VARIANTS = {
    "networks": [],
    "before": [],
    "logistic regression": ["--local", LOGISTIC, "--fused", LOGISTIC],
    "random forest": ["--local", FOREST, "--fused", FOREST],
}


def _views(name: str, data_dir: Path) -> tuple[dict[str, dict[str, Any]], Any]:
    """One dictionary of columns, or of one array, per party; and the labels."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        quadrants = (digits.images[:, i : i + 4, j : j + 4].reshape(-1, 16) for i in (0, 4) for j in (0, 4))
        return {f"view{i}": {"x": x} for i, x in enumerate(quadrants)}, digits.target
    if name in TABLES:
        label, split = TABLES[name]
        with (data_dir / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        chosen = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:ROWS]]
        columns = [column for column in rows[0] if column not in {label, "ID", "id", ""}]
        parts = columns[:split], columns[split:]
        views = {f"view{i}": {c: _column([row[c] for row in chosen]) for c in part} for i, part in enumerate(parts)}
        return views, np.array([row[label] for row in chosen])
    with np.load(data_dir / f"{name}.npz", allow_pickle=False) as found:
        return {f"view{i}": {"x": found[f"view{i}"]} for i in range(3)}, found["labels"].ravel()


def _column(values: list[str]) -> Any:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        return np.array(values)


def _write(name: str, data_dir: Path, folder: Path) -> tuple[list[Path], Path]:
    import pyarrow as pa
    from pyarrow import parquet

    views, labels = _views(name, data_dir)
    ids, paths = np.arange(len(labels)), []
    for party, columns in views.items():
        if set(columns) == {"x"}:
            paths.append(folder / f"{party}.npz")
            np.savez(paths[-1], ids=ids, **columns)
        else:
            paths.append(folder / f"{party}.parquet")
            parquet.write_table(pa.table({"id": ids, **columns}), paths[-1])
    np.savez(folder / "y.npz", labels=labels, ids=ids)
    return paths, folder / "y.npz"


def _measure(views: Sequence[Path], labels: Path, out: Path, seed: int, variant: str) -> dict[str, float]:
    """Accuracy of both routes and of the yardstick, and the CPU time of the run."""
    from typer.testing import CliRunner

    from gainroute.cli import app
    from gainroute.training.run import train_run
    from gainroute.training.settings import default_route_settings

    began = time.process_time()
    if variant == "before":
        chosen = default_route_settings(_training_samples(labels), epochs=1)
        local = replace(chosen.local, epochs=10, batch=chosen.vfl.batch, hidden=(16,), holdout=0.0)
        trained = train_run(views, labels, out, seed=seed, settings=replace(chosen, local=local))
        return {"local": trained.test.weak_accuracy}
    fixed = ["train", "--views", *views, "--labels", labels, "--out", out, "--seed", seed, "--json"]
    done = CliRunner().invoke(app, [*map(str, fixed), *VARIANTS[variant]])
    if done.exit_code:
        raise GainrouteError(f"gainroute train failed: {done.output}") from done.exception
    results = json.loads(done.stdout)
    return {
        "local": results["yardstick"]["local_models"],
        "yardstick": results["yardstick"]["logistic_regression"],
        "strong": results["regimes"]["0"]["strong"]["mean"],
        "seconds": time.process_time() - began,
    }


def _training_samples(labels: Path) -> int:
    with np.load(labels) as found:
        return int(0.7 * 0.8 * len(found["labels"]))


def _interval(values: Sequence[float]) -> str:
    """Mean with the half-width of its 95 % interval over seeds, in %."""
    spread = np.std(values, ddof=1) / np.sqrt(len(values)) * student.ppf(0.975, len(values) - 1)
    return f"{100 * np.mean(values):.1f} ± {100 * spread:.1f}"


def _table(found: dict[str, Any], names: Sequence[str]) -> str:
    cells = {
        "yardstick": ("networks", "yardstick"), "before": ("before", "local"), "now": ("networks", "local"),
        "logistic regression": ("logistic regression", "local"), "random forest": ("random forest", "local"),
        "strong": ("networks", "strong"), "strong, logistic regression": ("logistic regression", "strong"),
        "strong, random forest": ("random forest", "strong"),
    }  # fmt: skip
    lines = [f"| data | {' | '.join(cells)} | now − yardstick |", "|" + "---|" * (len(cells) + 2)]
    for name in names:
        values = {
            title: [found[f"{name}/{variant}/{seed}"][key] for seed in SEEDS]
            for title, (variant, key) in cells.items()
            if f"{name}/{variant}/{SEEDS[-1]}" in found
        }
        row = [_interval(values[title]) if title in values else "" for title in cells]
        row.append(_interval(np.subtract(values["now"], values["yardstick"]).tolist()) if "now" in values else "")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print a table of means over five seeds, which are five splits, with 95 % intervals."""
    parser = argparse.ArgumentParser(prog="python -m research.local_models", description=__doc__.split("\n")[0])
    names = ["ccv", "leaves100", "digits", "credit", "adult"]
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("out/local_models.json"))
    parser.add_argument("--data", nargs="+", default=names, choices=names)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args(arguments)
    found = json.loads(options.out.read_bytes()) if options.out.is_file() else {}
    for name in options.data:
        with tempfile.TemporaryDirectory() as folder:
            views, labels = _write(name, options.data_dir, Path(folder))
            for seed in SEEDS:
                for variant in options.variants:
                    key = f"{name}/{variant}/{seed}"
                    if key in found:
                        continue
                    out = Path(folder) / f"{variant}-{seed}".replace(" ", "-")
                    found[key] = _measure(views, labels, out, seed, variant)
                    write_bytes(options.out, json.dumps(found, indent=1).encode())
                    print(key, found[key], file=sys.stderr, flush=True)
    print(_table(found, options.data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
