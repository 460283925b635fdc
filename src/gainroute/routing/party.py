"""What a party offers at inference time: posteriors and embeddings of the samples named, nothing else.

How a party is trained is a different protocol (`gainroute.training`): an object that serves
never exposes a method that changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

__all__ = ["AsyncParty", "Party"]


@runtime_checkable
class Party(Protocol):
    """One holder of a view, in process.

    A sample the party does not have is a row of NaN: the others are still answered.
    """

    def posteriors(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 1: the local posterior of each sample, (N, K)."""
        ...

    def embeddings(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 2: the embedding of each sample, (N, d); called for escalated samples only."""
        ...


@runtime_checkable
class AsyncParty(Protocol):
    """One holder of a view, behind something that has to be waited for."""

    async def posteriors(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 1: the local posterior of each sample, (N, K)."""
        ...

    async def embeddings(self, ids: Sequence[Any], /) -> npt.ArrayLike:
        """Round 2: the embedding of each sample, (N, d); called for escalated samples only."""
        ...
