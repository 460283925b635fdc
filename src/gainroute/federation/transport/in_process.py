"""A party in the coordinator's own process: for tests, and where one organisation holds every view."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import InputError
from gainroute.federation.transport.base import PartyDescription, PartyRefusedError, PartyUnavailableError, Reply
from gainroute.federation.transport.checks import (
    check_codec_offered,
    check_values,
    find_model,
    scatter,
    split_missing,
)
from gainroute.io.ids import id_texts
from gainroute.routing.payload import encode, round_trip
from gainroute.routing.two_round import Party

__all__ = ["InProcessConnection", "TextIds", "is_passing"]


class TextIds:
    """A party asked by text: ids are matched to the party's own (its attribute `ids`) by their decimal text.

    A party that does not say which ids it has is asked with the text as it is.

    Parameters
    ----------
    party
        Any `gainroute.routing.two_round.Party`.
    """

    def __init__(self, party: Party) -> None:
        self._party = party
        known = getattr(party, "ids", None)
        self._own: dict[str, Any] | None = None
        if known is not None:
            own = known.tolist() if isinstance(known, np.ndarray) else list(known)
            self._own = dict(zip(id_texts(own), own, strict=True))

    def posteriors(self, ids: Sequence[str], width: int) -> npt.ArrayLike:
        """Round 1, (N, width)."""
        return self._ask(self._party.posteriors, ids, width)

    def embeddings(self, ids: Sequence[str], width: int) -> npt.ArrayLike:
        """Round 2, (N, width)."""
        return self._ask(self._party.embeddings, ids, width)

    def _ask(self, ask: Any, ids: Sequence[str], width: int) -> npt.ArrayLike:
        own = self._own
        if own is None:
            return np.asarray(ask(ids))
        there = [i for i, text in enumerate(ids) if text in own]
        if len(there) == len(ids):
            return np.asarray(ask([own[text] for text in ids]))
        whole = np.full((len(ids), width), np.nan, np.float32)
        if there:
            whole[there] = np.asarray(ask([own[ids[i]] for i in there]), np.float32)
        return whole


def is_passing(error: Exception) -> bool:
    """Whether what went wrong in a party's own code may pass: its data could not be reached."""
    if isinstance(error, (OSError, TimeoutError)):
        return True
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"OperationalError", "InterfaceError"})  # of SQLAlchemy and its drivers


class InProcessConnection:
    """A `PartyConnection` to an object in this process.

    Parameters
    ----------
    name
        Of the party.
    party
        Any `gainroute.routing.two_round.Party`, or one for each model hash.
    description
        What it says of itself.
    """

    def __init__(self, name: str, party: Party | Mapping[str, Party], description: PartyDescription) -> None:
        self._name = name
        self._description = description
        given = party if isinstance(party, Mapping) else {model.hash: party for model in description.models}
        self._parties = {model: TextIds(one) for model, one in given.items()}

    @property
    def name(self) -> str:
        """The party's name."""
        return self._name

    async def describe(self) -> PartyDescription:
        """Ask who it is and what it can answer with."""
        return self._description

    async def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Reply:  # noqa: ARG002 (no log)
        """Round 1: local posteriors by the model version named."""
        find_model(self._description, model)
        width = len(self._description.classes)
        sent, missing = await self._ask(self._parties[model].posteriors, ids, width)
        check_values(self._name, sent, posterior=True)
        return Reply(scatter(sent, missing, len(ids)), sent.nbytes)

    async def embeddings(
        self,
        ids: Sequence[Any],
        *,
        model: str,
        codec: str,
        request_id: str,  # noqa: ARG002 (no log)
    ) -> Reply:
        """Round 2: embeddings by the model version named, through the codec named, decoded again."""
        width = find_model(self._description, model).dimension
        check_codec_offered(self._description, codec)
        sent, missing = await self._ask(self._parties[model].embeddings, ids, width)
        check_values(self._name, sent, posterior=False)
        size = len(encode(sent, codec))
        return Reply(scatter(round_trip(sent, codec), missing, len(ids)), size)

    async def _ask(
        self, ask: Any, ids: Sequence[Any], width: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        try:
            texts = id_texts(ids)
            if not texts:
                return np.zeros((0, width), np.float32), np.zeros(0, np.int64)
            return split_missing(await asyncio.to_thread(ask, texts, width), len(texts), width)
        except InputError as error:
            raise PartyRefusedError(self._name, str(error)) from error
        except Exception as error:
            kind = PartyUnavailableError if is_passing(error) else PartyRefusedError
            raise kind(self._name, f"its model failed ({type(error).__name__}: {error})") from error

    async def close(self) -> None:
        """Nothing to let go of."""
