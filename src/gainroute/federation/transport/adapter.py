"""A connection as a party that `predict_two_round_async` can drive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from gainroute.federation.transport.base import PartyConnection

__all__ = ["ConnectedParty"]


class ConnectedParty:
    """A `gainroute.routing.two_round.AsyncParty` behind a connection, with model version and codec fixed.

    Parameters
    ----------
    connection
        To the party.
    model
        Hash of the version to answer with.
    codec
        Of embeddings.
    """

    def __init__(self, connection: PartyConnection, model: str, codec: str = "float32") -> None:
        self._connection = connection
        self._model = model
        self._codec = codec

    async def posteriors(self, ids: Sequence[Any], /) -> npt.NDArray[np.float32]:
        """Round 1, (N, K)."""
        return (await self._connection.posteriors(ids, model=self._model, request_id=uuid4().hex)).values

    async def embeddings(self, ids: Sequence[Any], /) -> npt.NDArray[np.float32]:
        """Round 2, (N, d)."""
        request_id = uuid4().hex
        reply = await self._connection.embeddings(ids, model=self._model, codec=self._codec, request_id=request_id)
        return reply.values
