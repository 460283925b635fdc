"""The promises that a soak checks, from what the clients received, the decision log, and the events."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.soak.disturbed import judge_disturbed
from benchmarks.soak.load import Answered
from benchmarks.soak.marks import absent_in
from benchmarks.soak.seen import Check, Logged, Seen
from benchmarks.soak.world import Expected

__all__ = ["judge"]

MOST_DRIFT = 0.05
MINUTE = 60.0
SCORE_TOLERANCE = 1e-5  # float32 of values around one, and sums taken in another order


def judge(seen: Seen) -> list[Check]:
    """Return every row of the table."""
    return [
        _answered(seen), _unmarked(seen), _marked(seen), _absent(seen), _back(seen), *judge_disturbed(seen),
        _logged(seen), _memory(seen), _ended(seen),
    ]  # fmt: skip


# ---- answers --------------------------------------------------------------------------------------------


def _samples(seen: Seen) -> Iterator[tuple[Answered, int, str]]:
    for answer in seen.load.answered:
        for i, route in enumerate(answer.route):
            yield answer, i, route


def _differs(answer: Answered, i: int, expected: Expected, row: int, *, score: bool) -> str:
    """Describe the first difference from the replay; empty if there is none."""
    if answer.label[i] != expected.label[row]:
        return f"label {answer.label[i]}, replay {expected.label[row]}"
    if answer.escalated[i] != expected.escalated[row]:
        return f"escalated {answer.escalated[i]}, replay {expected.escalated[row]}"
    if score and not _close(answer.score[i], expected.score[row]):
        return f"score {answer.score[i]}, replay {expected.score[row]}"
    if not _close(answer.probabilities[i], expected.probabilities[row]):
        return f"probabilities {answer.probabilities[i]}, replay {expected.probabilities[row]}"
    return ""


def _close(found: npt.ArrayLike, expected: npt.ArrayLike) -> bool:
    return bool(np.allclose(found, expected, rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE))


def _answered(seen: Seen) -> Check:
    load = seen.load
    count = Counter(refused.why for refused in load.refused)
    shown = ", ".join(f"{n:,} × {what}" for what, n in sorted(count.items())) or "nothing"
    text = f"{len(load.answered):,} requests; refused, and sent again: {shown}"
    if load.wrong:
        text += f"; {len(load.wrong)} wrong, the first: {load.wrong[0]}"
    return Check("every request was answered in the end", text, not load.wrong and bool(load.answered))


def _unmarked(seen: Seen) -> Check:
    expected, row = seen.world.replay(), seen.world.row
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for answer, i, route in _samples(seen):
        if route not in ("round1", "round2"):
            continue
        count[route] += 1
        differs = _differs(answer, i, expected, row[answer.ids[i]], score=True)
        if differs or answer.escalated[i] != (route == "round2"):
            wrong.append(f"{answer.ids[i]} by {route}: {differs or 'escalated does not fit the route'}")
    text = f"{count['round1']:,} by Round 1, {count['round2']:,} by Round 2; {len(wrong)} differ"
    held = not wrong and bool(count["round1"]) and bool(count["round2"])
    return Check("every unmarked answer equals the replay", text + (f": {wrong[0]}" if wrong else ""), held)


def _marked(seen: Seen) -> Check:
    """A marked answer is what its mark says: Round 1 of the parties present."""
    row = seen.world.row
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for answer, i, route in _samples(seen):
        if route in ("round1", "round2"):
            continue
        count[route] += 1
        absent = absent_in(route)
        if absent is None:
            wrong.append(f"{answer.ids[i]}: the route {route!r} is unexpected")
            continue
        differs = _differs(answer, i, seen.first(absent), row[answer.ids[i]], score=False)
        if differs:
            wrong.append(f"{answer.ids[i]} by {route}: {differs}")
    shown = ", ".join(f"{route} × {n:,}" for route, n in sorted(count.items())) or "none"
    text = f"{shown}; {len(wrong)} differ" + (f": {wrong[0]}" if wrong else "")
    return Check("every degraded answer is what its mark says", text, not wrong and bool(count))


def _absent(seen: Seen) -> Check:
    """While a party was certainly down or frozen, every answer says so; and there were such answers each time.

    If at the same time the coordinator restarted, or its disk was full, there may be none.
    """
    happened = seen.happened
    counts: list[int] = []
    wrong: list[str] = []
    unseen: list[str] = []
    for down in [*happened.parties, *happened.frozen]:
        count = 0
        for answer in seen.load.answered:
            if not (down.gone <= answer.began and answer.ended <= down.begun):
                continue
            for i, route in enumerate(answer.route):
                count += 1
                if down.name not in (absent_in(route) or ()):
                    wrong.append(f"{answer.ids[i]} by {route} while {down.name} was gone")
        counts.append(count)
        others = [*happened.coordinators, *happened.full]
        if not count and not any(other.gone <= down.begun and down.gone <= other.back for other in others):
            unseen.append(f"{down.name} {down.gone - seen.start:.0f} s after the start")
    text = f"{sum(counts):,} answers, killed or frozen × {len(counts)}, at least {min(counts, default=0)} in each"
    text += f"; {len(wrong)} unmarked" + (f": {wrong[0]}" if wrong else "")
    text += f"; no answer without {unseen[0]}" if unseen else ""
    return Check("every answer without a party is marked", text, not wrong and not unseen and any(counts))


def _back(seen: Seen) -> Check:
    """After each restart and each freeze, answers become complete again without intervention."""
    happened = seen.happened
    waits: list[float] = []
    never: list[str] = []
    for down in [*happened.parties, *happened.frozen, *happened.coordinators]:
        whole = [a.ended for a in seen.load.answered if a.began >= down.begun and "degraded" not in "".join(a.route)]
        if whole:
            waits.append(max(min(whole) - down.back, 0.0))
        else:
            never.append(down.name)
    text = f"killed: a party × {len(happened.parties)}, the coordinator × {len(happened.coordinators)}"
    text += f"; frozen: a party × {len(happened.frozen)}"
    text += f"; whole answers at most {max(waits, default=0):.1f} s after they listened or ran again"
    if never:
        text += f"; never again after {', '.join(never)}"
    each = bool(happened.parties and happened.coordinators and happened.frozen)
    return Check("each kill and freeze was recovered from", text, each and not never)


# ---- log, memory, processes -------------------------------------------------------------------------


def _logged(seen: Seen) -> Check:
    """Every decision id that a client received is in the log, once, with the answer that it received."""
    got: Counter[str] = Counter()
    lost: list[str] = []
    other: list[str] = []
    for answer, i, route in _samples(seen):
        name = answer.decision_id[i]
        got[name] += 1
        row = seen.rows.get(name)
        if row is None:
            lost.append(name)
        elif row != Logged(answer.ids[i], answer.label[i], route):
            other.append(name)
    twice = [name for name, n in got.items() if n > 1]
    text = f"{len(got):,} acknowledged, {len(seen.rows):,} in the log; {len(lost)} lost, {len(other)} different"
    text += f", {len(twice)} given twice"
    return Check("no acknowledged decision is lost", text, bool(got) and not lost and not other and not twice)


def _memory(seen: Seen) -> Check:
    """The last minute is compared with the second minute after the last restart."""
    what = "the coordinator's memory does not grow"
    if not seen.judged:
        peak = max((size for _, size in seen.memory), default=0)
        return Check(what, f"not checked: needs 10 minutes or more (at most {peak / 2**20:.1f} MiB)", None)
    born = max((down.back for down in seen.happened.coordinators), default=seen.start)
    early = [size for at, size in seen.memory if MINUTE <= at - born < 2 * MINUTE]
    last = [size for at, size in seen.memory if seen.end - MINUTE <= at < seen.end]
    if not early or not last or seen.end - born < 4 * MINUTE:
        return Check(what, "it was restarted in the last four minutes, or not looked at", False)
    before, after = statistics.median(early), statistics.median(last)
    text = f"{before / 2**20:.1f} MiB in its second minute, {after / 2**20:.1f} MiB in the last of "
    text += f"{(seen.end - born) / MINUTE:.0f}: {after / before - 1:+.1%} (±{MOST_DRIFT:.0%} allowed)"
    return Check(what, text, abs(after / before - 1) <= MOST_DRIFT)


def _ended(seen: Seen) -> Check:
    text = ", ".join(f"{title}: {code}" for title, code in seen.codes.items())
    return Check("SIGTERM ends every process with 0", text, bool(seen.codes) and not any(seen.codes.values()))
