"""`python -m benchmarks.soak --minutes M`: load on real processes that are disturbed meanwhile, then a verdict.

Three parties serve precomputed answers by id, a coordinator queries them over mutual TLS, and clients send requests at
a bounded rate. Processes are killed (-9) and frozen, the disk of the decision log is filled, certificates are rotated,
and a hostile client does its worst. Everything the clients received is then compared with an offline replay and the
log.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.soak.checks import judge
from benchmarks.soak.disk import own_mounts
from benchmarks.soak.disturbed import latencies
from benchmarks.soak.federation import StartError
from benchmarks.soak.run import soak
from benchmarks.soak.schedule import draw
from benchmarks.soak.seen import Check, Seen
from gainroute._util.files import write_bytes

OUT = Path("out/bench/soak.json")

# ---- the report -----------------------------------------------------------------------------------------


def report(seen: Seen, checks: Sequence[Check], seed: int) -> dict[str, Any]:
    """Return all results as one JSON object."""
    return {
        "seed": seed,
        "seconds": round(seen.end - seen.start, 1),
        "held": all(check.held is not False for check in checks),
        "requests": len(seen.load.answered),
        "samples": sum(len(answer.ids) for answer in seen.load.answered),
        "refused": Counter(refused.why for refused in seen.load.refused),
        "disturbances": _disturbances(seen),
        "latency_ms": latencies(seen),
        "hostile": dict(seen.hostile),
        "memory_mib": [[round(at - seen.start), round(size / 2**20, 1)] for at, size in seen.memory],
        "checks": [asdict(check) for check in checks],
    }


def _disturbances(seen: Seen) -> list[dict[str, Any]]:
    """All disturbances in their order: kind, who, when, and for how many seconds."""
    found = [(kind, down) for kind, downs in vars(seen.happened).items() for down in downs]
    return [
        {"kind": kind, "who": down.name, "at": round(down.gone - seen.start, 1),
         "seconds": round(down.back - down.gone, 1) if math.isfinite(down.back) else None}
        for kind, down in sorted(found, key=lambda pair: pair[1].gone)
    ]  # fmt: skip


def show(told: dict[str, Any], checks: Sequence[Check], console: Console) -> None:
    """Print the table."""
    title = f"soak: {told['seconds']:.0f} s, {told['requests']:,} requests, {told['samples']:,} samples"
    title += f", {len(told['disturbances'])} disturbances (seed {told['seed']})"
    table = Table("what", "seen", "held", title=title, title_justify="left")
    for check in checks:
        mark = {None: "–", True: "[green]yes[/]", False: "[red]NO[/]"}[check.held]
        table.add_row(check.what, check.seen, mark)
    console.print(table)


def main() -> int:
    """Run from the command line; the exit code is 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A soak on real processes.")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (1 or more; default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the disturbances (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    given = parser.parse_args()
    if not 1 <= given.minutes <= 24 * 60:
        parser.error(f"--minutes is {given.minutes:g}; 1 … 1440 are allowed")
    command = own_mounts([sys.executable, "-m", "benchmarks.soak", *sys.argv[1:]])
    if command is not None:  # a disk of its own needs mounts that nobody else sees
        os.execvp(command[0], command)  # noqa: S606 (our own command)
    # Like Ctrl-C: the processes that were started are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    told = Console(stderr=True, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="gainroute-soak-"))
    held = False
    try:
        schedule = draw(given.minutes, given.seed)
        seen = soak(given.minutes, schedule, folder, lambda text: told.print(f"soak: {text}"))
        checks = judge(seen)
        found = report(seen, checks, given.seed)
        held = bool(found["held"])
    except StartError as error:
        told.print(f"soak: {error}")
    else:
        if given.json:
            sys.stdout.write(json.dumps(found) + "\n")
        else:
            show(found, checks, Console(width=max(150, Console().width)))
        OUT.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(OUT, (json.dumps(found) + "\n").encode())
    finally:
        if held:
            shutil.rmtree(folder)
        else:
            told.print(f"soak: settings, logs and data are kept in {folder}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
