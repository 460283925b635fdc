"""The checks of a soak about its disturbances: latency of honest clients, full disks, certificates, a hostile client.

A request counts from its first attempt to its answer. Two groups are counted apart, and shown: requests that a restart
of the coordinator delayed, and those that were refused (503) because the disk was full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.soak.hostile import ALLOWED, broken
from benchmarks.soak.load import Answered
from benchmarks.soak.marks import absent_in
from benchmarks.soak.seen import Check, Down, Seen

__all__ = ["judge_disturbed", "latencies"]

MOST_TIMES = 3.0
SLOW_TRICKS = {"half-open", "slow body"}  # ended by the coordinator after a while; it may be restarted before
CAUSE_SECONDS = 20.0  # after a disturbance has ended, until when a party may still be called absent
ENDING_SECONDS = 1.0  # a killed process fails requests before it has ended, from when on it counts as gone


def judge_disturbed(seen: Seen) -> list[Check]:
    """Return the rows about the disturbances."""
    return [
        _latency(seen), _restarting(seen), _full(seen), _rotated(seen), _caused(seen), _hostile(seen),
    ]  # fmt: skip


# ---- latency --------------------------------------------------------------------------------------------


def _overlaps(answer: Answered, downs: Sequence[Down]) -> bool:
    return any(answer.first <= down.back and down.gone <= answer.ended for down in downs)


def _refused_when_full(answer: Answered, full: Sequence[Down]) -> bool:
    """Whether a full disk has delayed the answer: it was refused before."""
    return answer.tries > 1 and _overlaps(answer, full)


def _latency(seen: Seen) -> Check:
    what = "honest clients' p99 stays within 3 times the undisturbed one"
    happened = seen.happened
    calm: list[float] = []
    disturbed: list[float] = []
    for answer in seen.load.answered:
        if any(begin <= answer.first and answer.ended <= end for begin, end in seen.calm):
            calm.append(answer.ended - answer.first)
        elif not _overlaps(answer, happened.coordinators) and not _refused_when_full(answer, happened.full):
            disturbed.append(answer.ended - answer.first)
    if not calm or not disturbed:
        return Check(what, f"{len(calm)} requests undisturbed, {len(disturbed)} disturbed", False)
    times = float(np.quantile(disturbed, 0.99) / np.quantile(calm, 0.99))
    text = f"undisturbed {_quantiles(calm)}; disturbed {_quantiles(disturbed)}: {times:.2f} times"
    if not seen.judged:
        return Check(what, f"{text} (decides in runs of 10 minutes or more)", None)
    return Check(what, text, times <= MOST_TIMES)


def latencies(seen: Seen) -> dict[str, dict[str, float]]:
    """Latency of honest clients in milliseconds by what happened meanwhile, from the first attempt to the answer."""
    kinds: dict[str, list[float]] = {"undisturbed": [], "hostile client only": []}
    for answer in seen.load.answered:
        seconds = answer.ended - answer.first
        names = [kind for kind, downs in vars(seen.happened).items() if _overlaps(answer, downs)]
        if any(begin <= answer.first and answer.ended <= end for begin, end in seen.calm):
            names = ["undisturbed"]
        for name in names or ["hostile client only"]:
            kinds.setdefault(name, []).append(seconds)
    return {name: _told(found) for name, found in kinds.items() if found}


def _told(seconds: Sequence[float]) -> dict[str, float]:
    quantiles = {f"p{q}": round(1e3 * float(np.quantile(seconds, q / 100)), 1) for q in (50, 99, 100)}
    return {"requests": len(seconds)} | quantiles


def _quantiles(seconds: Sequence[float]) -> str:
    half, most, all_ = (1e3 * np.quantile(seconds, q) for q in (0.5, 0.99, 1.0))
    return f"p50 {half:.1f}, p99 {most:.1f}, at most {all_:.0f} ms ({len(seconds):,} requests)"


def _restarting(seen: Seen) -> Check:
    """Not a promise: shown because these requests are left out of the comparison above."""
    downs = seen.happened.coordinators
    waited = [answer.ended - answer.first for answer in seen.load.answered if _overlaps(answer, downs)]
    lasted = [down.back - down.gone for down in downs]
    text = f"restarted × {len(downs)}, at most {max(lasted, default=0):.1f} s until it listened again; "
    text += f"{len(waited)} requests were sent again until answered, at most {max(waited, default=0):.1f} s in all"
    return Check("requests while the coordinator restarts (counted apart)", text, None)


# ---- disk and certificates ------------------------------------------------------------------------------


def _full(seen: Seen) -> Check:
    """Each time the disk was full, requests were refused, and answered again once there was room."""
    counts: list[int] = []
    waits: list[float] = []
    for down in seen.happened.full:
        counts.append(sum(r.why == "503" and down.gone <= r.at <= down.begun + 1 for r in seen.load.refused))
        after = [answer.ended for answer in seen.load.answered if answer.began >= down.begun]
        waits.append(min(after, default=math.inf) - down.begun)
    apart = [answer for answer in seen.load.answered if _refused_when_full(answer, seen.happened.full)]
    longest = max((answer.ended - answer.first for answer in apart), default=0.0)
    text = (
        f"{seen.disk}; full × {len(counts)}: {sum(counts)} refused (503), at least {min(counts, default=0)} each time"
    )
    text += f"; answered at most {max(waits, default=0):.1f} s after there was room; {len(apart)} requests "
    text += f"(counted apart) took at most {longest:.1f} s in all"
    held = bool(counts) and min(counts) > 0 and max(waits) < math.inf
    return Check("a full disk refuses, and answers once there is room", text, held)


def _rotated(seen: Seen) -> Check:
    rotated = seen.happened.rotated
    unused = [down.name for down in rotated if math.isinf(down.back)]
    longest = max((down.back - down.gone for down in rotated if not math.isinf(down.back)), default=0.0)
    text = f"of a party and the coordinator × {len(rotated)}; both in use after at most {longest:.1f} s"
    if unused:
        text += f"; not in use: {', '.join(unused)}"
    return Check("rotated certificates are used without a restart", text, bool(rotated) and not unused)


def _caused(seen: Seen) -> Check:
    """A party is called absent only while or shortly after it, or the coordinator, was disturbed: not by a rotation."""
    happened = seen.happened
    downs = [*happened.parties, *happened.frozen]
    found = 0
    wrong: list[str] = []
    for answer in seen.load.answered:
        for name in {name for route in answer.route for name in absent_in(route) or ()}:
            found += 1
            causes = [down for down in downs if down.name == name] + happened.coordinators
            if not any(
                c.gone - ENDING_SECONDS <= answer.ended and answer.began <= c.back + CAUSE_SECONDS for c in causes
            ):
                wrong.append(f"{name} {answer.began - seen.start:.0f} s after the start")
    text = f"{found:,} requests without a party; {len(wrong)} without a cause" + (f": {wrong[0]}" if wrong else "")
    held = not wrong
    return Check("no party is called absent without cause", text, held if seen.judged else None)


# ---- the hostile client ---------------------------------------------------------------------------------


def _hostile(seen: Seen) -> Check:
    """It got the refusals that are documented, and answers within its quota; every trick was answered."""
    found = seen.hostile
    wrong = broken(dict(found))
    shown = []
    silent = []
    for trick in ALLOWED:
        answers = {what.split(": ")[1]: n for what, n in sorted(found.items()) if what.startswith(f"{trick}: ")}
        shown.append(f"{trick}: " + (", ".join(f"{n:,} × {status}" for status, n in answers.items()) or "nothing"))
        if (seen.judged or trick not in SLOW_TRICKS) and not set(answers) & ALLOWED[trick]:
            silent.append(trick)
    text = "; ".join(shown)
    if wrong:
        text += f". Unexpected: {', '.join(wrong)}"
    if silent:
        text += f". Never answered: {', '.join(silent)}"
    return Check("a hostile client gets refusals, and its quota", text, not wrong and not silent)
