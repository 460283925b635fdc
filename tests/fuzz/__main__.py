"""`make fuzz MINUTES=n`: coverage-guided fuzzing of everything that comes from outside, with a report.

One process per target, which gets its share of the time once it has started. Inputs that reach new lines are kept in
out/fuzz/corpus, from which the next run starts; counts add up over runs in out/fuzz/report.json. A failing input is
saved in tests/fuzz/failures, which the tests replay: fix the cause and commit it. `--distil` replaces tests/fuzz/corpus
by the smallest inputs that reach the same lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from tests.fuzz.engine import Result, distil, main, save  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402

OUT = Path("out/fuzz")
CORPUS, FAILURES = HERE / "corpus", HERE / "failures"
CORPUS_BYTES = 6000  # per target, in the repository
GROWN_MB = 150.0  # more is a leak: the inputs that are kept take a part of it
# Shares of the time: what is exposed to a network gets most, and then what is slow.
SHARES = {
    "http": 5.0,
    "requests": 1.5,
    "grpc": 2.5,
    "messages": 2.5,
    "runs": 2.5,
    "settings": 1.5,
    "npz": 2.0,
    "signatures": 0.5,
}
STUCK_SECONDS = 120.0  # in C code, which no signal interrupts


def run(name: str, seconds: float, seed: int) -> Result:
    """Fuzz a target in a process of its own; one that dies is a crash."""
    known = ":".join(str(place) for place in (CORPUS / name, FAILURES / name, OUT / "corpus" / name))
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "worker",
        name,
        str(seconds),
        str(seed),
        str(OUT),
        known,
        str(FAILURES),
    ]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=3 * seconds + STUCK_SECONDS, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        code = None
    if code == 0:
        return Result(**json.loads(done.stdout.splitlines()[-1]))
    held = (OUT / f"{name}.current").read_bytes()
    data = held[8 : 8 + int.from_bytes(held[:8], "little")]
    save(FAILURES / name, data)
    why = "stuck in C code" if code is None else f"the process ended with {code}"
    return Result(name, 0, seconds, failures={"process": f"{why}: {data[:80]!r}"})


def report(result: Result) -> bool:
    """Print what happened to a target, and add it to the report of all runs; returns whether it is good."""
    total = OUT / "report.json"
    before = json.loads(total.read_text()) if total.is_file() else {}
    held = before.setdefault(result.target, {"inputs": 0, "seconds": 0.0, "failures": 0})
    held["inputs"] += result.inputs
    held["seconds"] = round(held["seconds"] + result.seconds, 1)
    held["failures"] += len(result.failures)
    total.write_text(json.dumps(before, indent=2))
    outcomes = ", ".join(f"{name} {count:,}" for name, count in result.outcomes.items())
    print(
        f"{result.target:<11}{result.inputs:>9,}{held['inputs']:>11,}{result.inputs / max(result.seconds, 0.1):>8,.0f}"
        f"{result.lines:>7,}{result.kept:>5}{result.slowest_ms:>12,.0f}{result.grown_mb:>10.1f}{result.peak_mb:>9.1f}  "
        f"{outcomes}",
    )
    found = list(result.failures.values())
    if result.grown_mb > GROWN_MB:
        found.append(f"memory grew by {result.grown_mb} MB")
    for why in found:
        print(f"  FAILED {why}")
    sys.stdout.flush()
    return not found


def inputs_so_far() -> int:
    """Inputs of all runs."""
    total = OUT / "report.json"
    return sum(held["inputs"] for held in json.loads(total.read_text()).values()) if total.is_file() else 0


def start() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="by default all")
    parser.add_argument("--seed", type=int, default=None, help="by default another one every time")
    parser.add_argument("--distil", action="store_true", help="replace the corpus in the repository, and stop")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    OUT.mkdir(parents=True, exist_ok=True)
    if given.distil:
        for name in names:
            places = [OUT / "corpus" / name, CORPUS / name]
            print(name, distil(name, places, CORPUS / name, CORPUS_BYTES), "bytes")
        return 0
    whole = sum(SHARES.get(name, 1.0) for name in names)
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}; failing inputs go to {FAILURES}, inputs that reach new lines to {OUT / 'corpus'}")
    print(
        f"{'target':<11}{'inputs':>9}{'all runs':>11}{'per s':>8}{'lines':>7}{'new':>5}{'slowest ms':>12}"
        f"{'MB grown':>10}{'at peak':>9}  outcomes"
    )
    before = inputs_so_far()
    good = [report(run(name, 60 * given.minutes * SHARES.get(name, 1.0) / whole, seed)) for name in names]
    after = inputs_so_far()
    print(f"{after - before:,} inputs, {after:,} in all runs; {good.count(False)} of {len(good)} targets failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        main(sys.argv[2:])
    else:
        raise SystemExit(start())
