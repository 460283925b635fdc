"""Forming a federation: what training and private alignment cost."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import federation_training
from benchmarks.rows import Row, row
from gainroute.federation.formation.alignment import PartyAlignment, intersect, passes
from gainroute.federation.formation.groups import P256

__all__ = ["run"]

SIZES = ((10_000, 2, None), (10_000, 4, None), (100_000, 2, "<= 30"), (100_000, 4, "<= 30"))


def run() -> Iterator[Row]:
    """Measure every stage."""
    yield from federation_training.run()
    for ids, parties, bar in SIZES:
        yield from _alignment(ids, parties, bar)


def _alignment(ids: int, parties: int, bar: str | None) -> Iterator[Row]:
    """Every party holds `ids` ids, nine in ten of them also held by the next party."""
    names = [f"party{n}" for n in range(parties)]
    starts = {name: n * ids // 10 for n, name in enumerate(names)}
    held = {name: PartyAlignment(range(at, at + ids), P256.new_key(), parties=parties) for name, at in starts.items()}
    lists: dict[str, bytes] = {}
    seconds: list[list[float]] = []
    moved = 0
    for step in passes(names):
        taken = []
        for worker, owner in step.items():
            received = lists.get(owner, b"")
            begin = time.process_time()
            lists[owner] = held[worker].mask(received) if received else held[worker].own(0, ids)
            taken.append(time.process_time() - begin)
            moved += len(received) + len(lists[owner])
        seconds.append(taken)
    begin = time.process_time()
    found = intersect(lists, bytes(32))
    compared = time.process_time() - begin
    if len(found.samples) != ids - max(starts.values()):
        raise RuntimeError(f"{len(found.samples)} of {ids - max(starts.values())} common samples were found")
    what = f"alignment, {ids:,} ids, {parties} parties"
    longest, others = max(seconds[0]), max(map(max, seconds[1:]))
    yield row(f"{what}: most CPU seconds of a party in the first pass", longest, None, longest, bar)
    yield row("  in each further pass", others, None, others, bar)
    yield row("  mean of a party, all passes", sum(map(sum, seconds)) / parties, None, None)
    yield row("  coordinator, to compare all lists", compared, None, None)
    yield row("  MB per party, both directions", moved / parties / 1e6, None, None)
