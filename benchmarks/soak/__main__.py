"""`python -m benchmarks.soak --minutes M`: load on real processes that are killed (-9) meanwhile, then a verdict.

Three parties serve precomputed answers by id, a coordinator queries them over mutual TLS, and clients send requests at
a bounded rate. Every minute a party is killed and restarted; the coordinator is killed twice before minute three (once
if the soak lasts one minute). Everything the clients received is then compared with an offline replay and the log.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.soak.checks import Check, Down, Seen, judge
from benchmarks.soak.federation import Federation, Process, StartError
from benchmarks.soak.load import Load
from benchmarks.soak.world import PARTIES, make_world
from gainroute._util.files import write_bytes

OUT = Path("out/bench/soak.json")
PARTY_AT = 15.0  # seconds into every minute
COORDINATOR_AT = (38.0, 98.0)
DOWN_SECONDS = 5.0
SETTLE_SECONDS = 10.0  # load after the last restart, however late that was
SAY_SECONDS = 10.0


def plan(minutes: float) -> list[tuple[float, str]]:
    """Return who is killed when: (seconds, party), or (seconds, "") for the coordinator.

    Examples
    --------
    >>> plan(1)
    [(15.0, 'north'), (38.0, '')]
    """
    parties = [(60.0 * k + PARTY_AT, PARTIES[k % len(PARTIES)]) for k in range(int(minutes))]
    return sorted(parties + [(at, "") for at in COORDINATOR_AT[: min(int(minutes), 2)]])


def soak(minutes: float, folder: Path, say: Callable[[str], None]) -> Seen:
    """Run the soak, and return the observations."""
    world = make_world(folder)
    say("starting three parties and a coordinator …")
    parties: list[Down] = []
    coordinators: list[Down] = []
    with Federation(folder, world) as federation:
        load = Load(federation.port, world.ids)
        with _memory_of(federation.coordinator) as memory, load:
            start = time.monotonic()
            end = start + 60 * minutes
            for at, name in plan(minutes):
                _wait(start + at, load, say, start, end)
                process = federation.parties[name] if name else federation.coordinator
                say(f"{process.title} (pid {process.pid}) is killed")
                down = _outage(process, name or "the coordinator", DOWN_SECONDS if name else 0.0)
                say(f"{process.title} listens again after {down.back - down.gone:.1f} s")
                (parties if name else coordinators).append(down)
                end = max(end, down.back + SETTLE_SECONDS)
            _wait(end, load, say, start, end)
            end = time.monotonic()
        say("stopping everything …")
        codes = federation.stop()
        return Seen(world, load, start, end, parties, coordinators, memory, codes, federation.log)


def _outage(process: Process, name: str, seconds: float) -> Down:
    process.kill()
    gone = time.monotonic()
    time.sleep(seconds)
    begun = time.monotonic()
    process.begin()
    process.ready()
    return Down(name, gone, begun, time.monotonic())


def _wait(until: float, load: Load, say: Callable[[str], None], start: float, end: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SAY_SECONDS))
        gone = time.monotonic() - start
        say(f"{gone:5.0f} of {end - start:.0f} s: {len(load.answered)} requests answered, {load.retried} retried")


@contextmanager
def _memory_of(process: Process) -> Iterator[list[tuple[float, int]]]:
    """Sample the memory of a process once per second."""
    found: list[tuple[float, int]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(1.0):
            size = process.resident_bytes()
            if size:
                found.append((time.monotonic(), size))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


# ---- the report -----------------------------------------------------------------------------------------


def report(seen: Seen, checks: Sequence[Check]) -> dict[str, Any]:
    """Return all results as one JSON object."""
    return {
        "seconds": round(seen.end - seen.start, 1),
        "held": all(check.held is not False for check in checks),
        "requests": len(seen.load.answered),
        "samples": sum(len(answer.ids) for answer in seen.load.answered),
        "refused": dict(seen.load.refused),
        "retried": seen.load.retried,
        "kills": [
            {"who": down.name, "at": round(down.gone - seen.start, 1), "down": round(down.back - down.gone, 1)}
            for down in sorted([*seen.parties, *seen.coordinators], key=lambda down: down.gone)
        ],
        "memory_mib": [[round(at - seen.start), round(size / 2**20, 1)] for at, size in seen.memory],
        "checks": [asdict(check) for check in checks],
    }


def show(told: dict[str, Any], checks: Sequence[Check], console: Console) -> None:
    """Print the table."""
    title = f"soak: {told['seconds']:.0f} s, {told['requests']:,} requests, {told['samples']:,} samples"
    table = Table("what", "seen", "held", title=title, title_justify="left")
    for check in checks:
        mark = {None: "–", True: "[green]yes[/]", False: "[red]NO[/]"}[check.held]
        table.add_row(check.what, check.seen, mark)
    console.print(table)


def main() -> int:
    """Run from the command line; the exit code is 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A soak on real processes.")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (1 or more; default 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    given = parser.parse_args()
    if not 1 <= given.minutes <= 24 * 60:
        parser.error(f"--minutes is {given.minutes:g}; 1 … 1440 are allowed")
    # Like Ctrl-C: the processes that were started are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    told = Console(stderr=True, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="gainroute-soak-"))
    held = False
    try:
        seen = soak(given.minutes, folder, lambda text: told.print(f"soak: {text}"))
        checks = judge(seen)
        found = report(seen, checks)
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
