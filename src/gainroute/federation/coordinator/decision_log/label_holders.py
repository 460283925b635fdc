"""Whose labels count: those of one holder never weigh more than those of all others together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from gainroute.routing.types import BoolArray

__all__ = ["is_trusted", "largest_share", "named"]


def is_trusted(who: str, trusted: Collection[str]) -> bool:
    """Whether the labels of `who` may decide alone: an operator's, or those of a holder that the operator trusts.

    Examples
    --------
    >>> is_trusted("admin:ops", ()), is_trusted("client:shop", ()), is_trusted("client:shop", ["shop"])
    (True, False, True)
    """
    kind, _, holder = who.partition(":")
    return kind in ("admin", "local") or holder in trusted


def named(labels: dict[str, int]) -> str:
    """Holders with their numbers of labels, as in ``client:shop (33), local (2)``."""
    return ", ".join(f"{who} ({count:,})" for who, count in sorted(labels.items(), key=lambda item: -item[1]))


def largest_share(who: Sequence[str | None], trusted: Collection[str]) -> tuple[str, BoolArray, float]:
    """The holder that gave more labels than all others together, which of its rows to leave out, and the share kept.

    `who` gave the label of each row; None where there is no label. As many as the others gave are kept, drawn at
    random. The name is empty if there is no such holder, or the operator trusts it.
    """
    counts = Counter(name for name in who if name is not None)
    total, drop = sum(counts.values()), np.zeros(len(who), dtype=bool)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    if 2 * count <= total or is_trusted(name, trusted):
        return "", drop, 1.0
    rows = np.flatnonzero([given == name for given in who])
    drop[np.random.default_rng(0).permutation(rows)[total - count :]] = True
    return name, drop, (total - count) / count
