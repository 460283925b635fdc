"""What a coordinator sees of a party, whichever transport lies between them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gainroute.errors import GainrouteError

__all__ = [
    "ModelDescription",
    "PartyConnection",
    "PartyDescription",
    "PartyError",
    "PartyRefusedError",
    "PartyUnavailableError",
    "Reply",
]


class PartyError(GainrouteError):
    """A party could not answer. `party` is its name."""

    def __init__(self, party: str, message: str) -> None:
        super().__init__(f"party {party!r}: {message}")
        self.party = party


class PartyUnavailableError(PartyError):
    """Not reached, or not in time: asking again later may help."""


class PartyRefusedError(PartyError):
    """Reached, and it said no, or answered nonsense: asking again will not help."""


@dataclass(frozen=True)
class ModelDescription:
    """One version of a party's models, named by its hash: what a router's provenance fixes.

    Attributes
    ----------
    hash
        Of everything that its answers depend on.
    dimension
        Length of its embeddings.
    """

    hash: str
    dimension: int


@dataclass(frozen=True)
class PartyDescription:
    """What a party says of itself.

    Attributes
    ----------
    name
        As in its certificate.
    classes
        Class names in the order of the posterior's columns.
    models
        The versions it can answer with, side by side.
    codecs
        Embedding codecs it can send: "float32", "float16", "int8".
    """

    name: str
    classes: tuple[str, ...]
    models: tuple[ModelDescription, ...]
    codecs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Reply:
    """An answer of a party.

    Attributes
    ----------
    values : (N, K) or (N, d) float32
        A row an id, in the order asked; a row of NaN where the party does not have the id.
    payload_bytes
        What the numbers took on the wire, framing not counted.
    """

    values: npt.NDArray[np.float32]
    payload_bytes: int


class PartyConnection(Protocol):
    """A party as its coordinator sees it. Every method raises a `PartyError` and nothing else."""

    @property
    def name(self) -> str:
        """The party's name."""
        ...

    async def describe(self) -> PartyDescription:
        """Ask who it is and what it can answer with."""
        ...

    def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Awaitable[Reply]:
        """Round 1: local posteriors by the model version named."""
        ...

    def embeddings(self, ids: Sequence[Any], *, model: str, codec: str, request_id: str) -> Awaitable[Reply]:
        """Round 2: embeddings by the model version named, through the codec named, decoded again."""
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...
