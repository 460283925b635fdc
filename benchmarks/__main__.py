"""`python -m benchmarks [topic [size]]`: measure, print a table, write out/bench/<topic>.json."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from benchmarks.rows import show, write

TOPICS = ("calibration", "routing", "batch", "training", "onnx", "federation", "serving", "masked", "scale", "costs")


def main(topic: str, *size: int) -> int:
    """Run one topic, or all; the exit code says whether every bar holds. `size` is that of a batch job, in rows."""
    console = Console(width=max(120, Console().width))
    if topic not in ("all", *TOPICS):
        console.print(f"no topic {topic!r}; there are {', '.join(TOPICS)} and all")
        return 2
    failed = 0
    for name in TOPICS if topic == "all" else (topic,):
        module = importlib.import_module(f"benchmarks.{name}")
        rows = []
        # One thread for everyone: the ratios are of algorithms, not of cores.
        with threadpool_limits(limits=1), Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"{name} ...", total=None)
            for measured in module.run(*size):
                rows.append(measured)
                progress.update(task, description=measured.what)
        show(name, rows, console)
        console.print(f"written to {write(name, rows, Path('out/bench'))}\n")
        failed += sum(r.holds is False for r in rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "all", *map(int, sys.argv[2:])))
