"""Budget control, harm detection and recalibration on streams replayed from records.

::

    python -m research.streams records/digits records/modelnet40
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gainroute.experiments.records import Record, load_record
from research.recalibration import recalibration_study
from research.replay import LENGTH, fit, hard_classes, harm_study, hold_budget, noisy_stream, turning_stream

__all__ = ["main"]


def main(folders: Sequence[str], length: int = LENGTH) -> None:
    """Print the results for every record in these folders."""
    for folder in folders:
        records = [load_record(path) for path in sorted(Path(folder).glob("seed*.npz"))]
        for record in records:
            router = fit(record, 0.2)
            hard = hard_classes(router, record.calibration)
            streams = {"mix": turning_stream(record.test, hard, length, record.seed)}
            streams |= {f"noise on {c}": noisy_stream(record, c, length, record.seed) for c in record.noisy}
            for name, stream in streams.items():
                for explore in (0.0, 0.01):
                    found = asdict(hold_budget(router, stream, 0.2, explore=explore))
                    _say(record, f"{name}, explore {explore}", {k: f"{100 * v:.2f}" for k, v in found.items()})
            for share in (0.7, 0.9):
                harm = asdict(harm_study(router, record.test, share=share, length=length, seed=record.seed))
                _say(record, f"{100 * share:g} % of the strong answers spoiled (synthetic)", harm)
        for drift, bias, declared in (
            ("noise", 0.0, True), ("spoiled", 0.0, True), ("noise", 0.9, True), ("noise", 0.9, False),
        ):  # fmt: skip
            study = recalibration_study(records, drift, bias=bias, declared=declared)
            old, new = 100 * study.old.mean(), 100 * study.new.mean()
            low, high = (100 * v for v in study.difference[1:])
            _say(
                records[0],
                f"recalibration, {drift}, bias {bias}, declared {declared}",
                {
                    "labels": study.labels,
                    "old": f"{old:.2f}",
                    "new": f"{new:.2f}",
                    "difference": f"{new - old:+.2f} ({low:+.2f} to {high:+.2f})",
                    "rate at its own threshold": f"{100 * study.rate:.1f}",
                    "shadow": f"{100 * study.shadow.mean():+.2f} ± {100 * study.shadow.std():.2f}",
                },
            )


def _say(record: Record, what: str, found: dict[str, object]) -> None:
    sys.stdout.write(f"{record.dataset} seed {record.seed}, {what}: {found}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
