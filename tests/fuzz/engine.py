"""A small fuzzer: it mutates inputs and keeps those that reach new lines of the package."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gainroute
from tests.fuzz.targets import TARGETS, Target

PACKAGE = str(Path(gainroute.__file__).parent)
HANG_SECONDS = 10.0  # of processor time for one input
KEPT = 400  # inputs kept per target
LEAST = 100  # inputs per run
WATCHED = 0.2  # share of the inputs whose lines are recorded, where that is slow
MEMORY = 12 << 30  # address space: an input that asks for more ends in MemoryError


class HangError(BaseException):
    """An input takes too much processor time."""


class Lines:
    """Lines of the package that were executed. Each is reported once, so that known code runs at full speed."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._left: dict[CodeType, set[int]] = {}  # before Python 3.12: lines of a function not seen yet

    def pause(self, pausing: bool) -> None:
        """Before Python 3.12, where it makes everything slower: record nothing for a while."""
        if sys.version_info < (3, 12):
            sys.settrace(None if pausing else self._call)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record lines in this block."""
        if sys.version_info >= (3, 12):
            tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events
            sys.monitoring.use_tool_id(tool, "fuzz")
            sys.monitoring.register_callback(tool, events.LINE, self._line)
            sys.monitoring.set_events(tool, events.LINE)
            try:
                yield
            finally:
                sys.monitoring.set_events(tool, 0)
                sys.monitoring.free_tool_id(tool)
        else:
            before = sys.gettrace()  # in tests, that of the branch coverage of all that follows
            sys.settrace(self._call)
            try:
                yield
            finally:
                sys.settrace(before)

    def _line(self, code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(PACKAGE):
            self.seen.add((code.co_filename, line))
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]  # Python 3.12

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            inside = code.co_filename.startswith(PACKAGE)
            left = self._left[code] = {line for *_, line in code.co_lines() if line} if inside else set()
        if not left:
            return None

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_lineno in left:
                left.discard(frame.f_lineno)
                self.seen.add((code.co_filename, frame.f_lineno))
            return local

        return local


@dataclass
class Result:
    """What happened to one target."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    lines: int = 0
    kept: int = 0
    slowest_ms: float = 0.0  # the input that took longest
    # Resident memory, from a quarter of the time on: at the end, and at most.
    grown_mb: float = 0.0
    peak_mb: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # by the place where it was raised


def attempt(target: Target, data: bytes) -> tuple[str, str]:
    """Try one input; returns the outcome, and where and what was raised if it is a crash or a hang."""
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        return target.run(data), ""
    except (Exception, HangError) as error:  # noqa: BLE001 (this is what is looked for)
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].name}"
        kind = "hang" if isinstance(error, (HangError, TimeoutError)) else "crash"
        return kind, f"{place}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def prepare() -> None:
    """Have hangs and huge allocations end in exceptions."""

    def hang(*_: Any) -> None:
        raise HangError(f"more than {HANG_SECONDS:g} s of processor time")

    warnings.simplefilter("ignore")
    logging.getLogger("gainroute").setLevel(logging.CRITICAL + 1)  # in this process only: refusals are logged
    signal.signal(signal.SIGVTALRM, hang)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(name: str, seconds: float, seed: int, folder: Path, known: list[Path], failures: Path) -> Result:
    """Fuzz one target, starting from the inputs in the folders `known`; the time counts once these have been tried."""
    prepare()
    rng, lines, result, outcomes = random.Random(seed), Lines(), Result(name), Counter[str]()  # noqa: S311 (no secret)
    current = os.open(folder / f"{name}.current", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)  # if this process dies
    corpus: list[bytes] = []

    def try_one(target: Target, data: bytes, *, fresh: bool) -> None:
        os.pwrite(current, len(data).to_bytes(8, "little") + data, 0)
        before = len(lines.seen)
        lines.pause(fresh and rng.random() > WATCHED)
        began = time.perf_counter()
        outcome, why = attempt(target, data)
        result.slowest_ms = max(result.slowest_ms, round(1e3 * (time.perf_counter() - began), 1))
        result.inputs += 1
        outcomes[outcome] += 1
        if why and why.partition(": ")[0] not in result.failures:
            result.failures[why.partition(": ")[0]] = why
            save(failures / name, data)
        if not fresh or len(lines.seen) > before:
            corpus.append(data)
            if fresh and len(corpus) <= KEPT:
                save(folder / "corpus" / name, data)
                result.kept += 1

    with work_folder() as home, TARGETS[name](home) as target, lines.watching():
        for data in (*target.seeds, *(path.read_bytes() for place in known for path in sorted(place.glob("*")))):
            try_one(target, data, fresh=False)
        began, memory = time.monotonic(), None
        while (passed := time.monotonic() - began) < seconds or result.inputs < LEAST:
            try_one(target, target.mutate(rng.choice(corpus), rng), fresh=True)
            if memory is None and passed > seconds / 4:
                memory = Memory()
        result.grown_mb, result.peak_mb = (memory or Memory()).growth()
    result.seconds, result.lines, result.outcomes = round(passed, 1), len(lines.seen), dict(outcomes.most_common())
    os.close(current)
    (folder / f"{name}.current").unlink()
    return result


class Memory:
    """Resident memory of this process since the object was made."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
        self._before, _ = self._now()

    def growth(self) -> tuple[float, float]:
        """Growth until now and at most, in MB."""
        now, peak = self._now()
        return round(now - self._before, 1), round(max(peak - self._before, 0.0), 1)

    @staticmethod
    def _now() -> tuple[float, float]:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return tuple(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder, in memory where that is possible."""
    memory = Path("/dev/shm")  # noqa: S108 (a folder of its own is made there)
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
        yield Path(home)


def save(folder: Path, data: bytes) -> None:
    """Keep an input, under its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def distil(name: str, known: list[Path], out: Path, limit: int) -> int:
    """Replace the inputs in `out` by the smallest that reach the same lines, up to a limit of bytes; returns them."""
    prepare()
    inputs = sorted({path.read_bytes() for place in known for path in place.glob("*")}, key=len)
    lines, chosen, size = Lines(), [], 0
    with work_folder() as home, TARGETS[name](home) as target, lines.watching():
        for data in (*target.seeds, *inputs):
            before = len(lines.seen)
            _, why = attempt(target, data)
            if len(lines.seen) > before and data not in target.seeds and size + len(data) <= limit and not why:
                chosen.append(data)
                size += len(data)
    for path in out.glob("*"):
        path.unlink()
    for data in chosen:
        save(out, data)
    return size


def main(arguments: list[str]) -> None:
    """Fuzz one target in this process, and print the result as JSON."""
    name, seconds, seed, folder, known, failures = arguments
    found = fuzz(name, float(seconds), int(seed), Path(folder), [Path(k) for k in known.split(":")], Path(failures))
    print(json.dumps(asdict(found)))
