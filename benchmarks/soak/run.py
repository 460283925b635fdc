"""One soak: calm, disturbances, calm."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.soak.disturbances import Disturbances
from benchmarks.soak.federation import HONEST, Federation, Process
from benchmarks.soak.load import Load
from benchmarks.soak.schedule import Schedule
from benchmarks.soak.seen import Seen
from benchmarks.soak.world import make_world

__all__ = ["soak"]

SAY_SECONDS = 10.0
WARM_SECONDS = 3.0  # of load before the first calm: connections, first batches
SETTLE_SECONDS = 10.0  # until answers are whole again after the last disturbance


def soak(minutes: float, schedule: Schedule, folder: Path, say: Callable[[str], None]) -> Seen:
    """Run the soak, and return the observations."""
    gc.disable()  # collecting what the clients keep would delay them more and more
    world = make_world(folder)
    say("starting three parties and a coordinator …")
    with Federation(folder, world) as federation:
        load = Load(federation.port, world.ids, [federation.tokens[holder] for holder in HONEST])
        disturbances = Disturbances(federation, load, schedule, say)
        counts = folder / "hostile.json"
        with _memory_of(federation.coordinator) as memory, load:
            start = time.monotonic()

            def tell() -> None:
                gone = time.monotonic() - start
                done = f"{len(load.answered):,} requests answered, {len(load.refused):,} refused"
                say(f"{gone:5.0f} of {60 * minutes:.0f} s: {done}")

            def rest(until: float) -> None:
                while (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, SAY_SECONDS))
                    tell()

            rest(start + schedule.first_calm)
            calm = [(start + WARM_SECONDS, time.monotonic())]
            say("the hostile client begins")
            with _running(federation.hostile(schedule.seed, counts)) as code:
                disturbances.run(start, tell, SAY_SECONDS)
                rest(time.monotonic() + SETTLE_SECONDS)
            say("calm again")
            begin = time.monotonic()
            rest(max(start + 60 * minutes, begin + schedule.last_calm))
            end = time.monotonic()
            calm.append((begin, end))
        say("stopping everything …")
        codes = federation.stop() | code
        hostile = json.loads(counts.read_text(encoding="utf-8"))
        return Seen(
            world, load, start, end, calm, disturbances.happened, hostile, memory, codes, federation.log,
            federation.disk.title,
        )  # fmt: skip


@contextmanager
def _running(process: Process) -> Iterator[dict[str, int]]:
    """Run a process; the dictionary has its exit code afterwards."""
    code: dict[str, int] = {}
    process.begin()
    try:
        process.ready()
        yield code
        code[process.title] = process.stop()
    finally:
        process.kill()


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
