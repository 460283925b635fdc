"""The coordinator's view of a party, whatever transport connects them.

A transport is one function, registered by name, that returns a `PartyConnection`; see `transports`. Messages of a
party are validated exactly once, where a connection decodes them: by `PartyDescription`, by `Reply.checked`, and by
`PartyError`, which cuts what the party gives as a reason. The coordinator relies on it: nothing of a description, an
answer or an error needs a further check. `gainroute.federation.transport.bounds` states the bounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

import numpy as np

from gainroute._util.arrays import Float32Array, FloatArray
from gainroute._util.registry import Registry
from gainroute.errors import GainrouteError, PosteriorError
from gainroute.federation.transport.bounds import (
    MAX_CLASSES,
    MAX_CODECS,
    MAX_DIMENSION,
    MAX_MODELS,
    MAX_NAME,
    MAX_VALUE,
    is_name,
    printable,
)
from gainroute.routing.inputs import check_posteriors

if TYPE_CHECKING:
    from gainroute.federation.pki.certificates import CertificateFiles

__all__ = [
    "Connect",
    "ConnectedParty",
    "MaskingDescription",
    "ModelDescription",
    "PartyAgreementError",
    "PartyConnection",
    "PartyDescription",
    "PartyError",
    "PartyRefusedError",
    "PartyUnavailableError",
    "Reply",
    "connect",
    "transports",
]

DEFAULT_TRANSPORT = "grpc"


class PartyError(GainrouteError):
    """A party could not answer. `party` is its name, `reason` the message without it, cut to a printable length."""

    def __init__(self, party: str, reason: str) -> None:
        self.party, self.reason = party, printable(reason)
        super().__init__(f"party {party!r}: {self.reason}")


class PartyUnavailableError(PartyError):
    """The party was not reached, or not in time. Asking again later may help."""


class PartyRefusedError(PartyError):
    """The party refused the request, or its answer is invalid. Asking again does not help."""


class PartyAgreementError(PartyRefusedError):
    """The party is well, and gives no more embeddings than was agreed."""


@dataclass(frozen=True)
class ModelDescription:
    """One version of a party's models.

    Attributes
    ----------
    hash
        Identifies everything that the answers depend on; the provenance of a router refers to it.
    dimension
        Length of the embeddings.
    """

    hash: str
    dimension: int


@dataclass(frozen=True)
class MaskingDescription:
    """How a party masks Round 1: its public key, those of its peers by name, and which sums it takes part in."""

    public_key: bytes
    peers: Mapping[str, bytes]
    min_roster: int
    max_weight_share: float


@dataclass(frozen=True)
class PartyDescription:
    """How a party describes itself; raises a `PartyRefusedError` if anything is out of bounds.

    Attributes
    ----------
    name
        As in its certificate.
    classes
        Class names in the order of the posterior columns.
    models
        The model versions it can answer with.
    codecs
        Embedding codecs it can send: "float32", "float16", "int8".
    masking
        Set if it answers Round 1 masked, and only so.
    max_samples
        Maximum number of ids per request; 0 if it states none.
    max_message_bytes
        Longest request it accepts; 0 if it states none.
    certificate_expires
        When its certificate expires; None if unknown.
    """

    name: str
    classes: tuple[str, ...]
    models: tuple[ModelDescription, ...]
    codecs: tuple[str, ...]
    masking: MaskingDescription | None = None
    max_samples: int = 0
    max_message_bytes: int = 0
    certificate_expires: datetime | None = None

    def __post_init__(self) -> None:
        name = printable(self.name, MAX_NAME)
        for what, names, least, most in (
            ("names", (self.name,), 1, 1),
            ("classes", self.classes, 2, MAX_CLASSES),
            ("models", [model.hash for model in self.models], 0, MAX_MODELS),
            ("codecs", self.codecs, 0, MAX_CODECS),
        ):
            if not least <= len(names) <= most or (what == "classes" and len(set(names)) < len(names)):
                some = [text[:40] for text in names[:12]]
                raise PartyRefusedError(
                    name, f"it has {len(names)} {what}, such as {some}; {least} to {most} different ones are needed"
                )
            wrong = next((text for text in names if not is_name(text)), None)
            if wrong is not None:
                raise PartyRefusedError(
                    name,
                    f"{printable(wrong, 40)!r} is one of its {what}; 1 to {MAX_NAME} characters without control "
                    "characters are needed",
                )
        for model in self.models:
            if not 1 <= model.dimension <= MAX_DIMENSION:
                raise PartyRefusedError(
                    name, f"its embeddings have length {model.dimension}; 1 to {MAX_DIMENSION} are allowed"
                )

    def model(self, model: str) -> ModelDescription:
        """Return the model version with this hash, or raise a `PartyRefusedError`."""
        for found in self.models:
            if found.hash == model:
                return found
        known = ", ".join(found.hash for found in self.models) or "none"
        raise PartyRefusedError(self.name, f"model {model!r} is unknown; known models: {known}")

    def check_codec(self, codec: str) -> None:
        """Raise a `PartyRefusedError` if the party does not offer a codec."""
        if codec not in self.codecs:
            offered = ", ".join(self.codecs)
            raise PartyRefusedError(self.name, f"codec {codec!r} is not offered; allowed are: {offered}")


@dataclass(frozen=True, eq=False)
class Reply:
    """The validated answer of a party.

    Attributes
    ----------
    values : (N, K) or (N, d) float32
        One row per id, in the order of the request. A row of NaN means that the party does not have the sample.
    payload_bytes
        Size of the numbers on the wire, without framing.
    """

    values: Float32Array
    payload_bytes: int

    @classmethod
    def checked(
        cls,
        party: str,
        values: Float32Array,
        shape: tuple[int, int],
        payload_bytes: int,
        *,
        posterior: bool,
        missing: Sequence[int] = (),
    ) -> Reply:
        """Validate a decoded message. Every transport calls this, and nothing checks the values again.

        Parameters
        ----------
        party
            Its name, for errors.
        values
            One row per id that the party has.
        shape
            (N, K) or (N, d): the number of ids requested, and the expected length of a row.
        payload_bytes
            Size of `values` on the wire.
        posterior
            Whether rows must be distributions (Round 1) or just numbers within ±`MAX_VALUE` (Round 2).
        missing
            Positions of the ids that the party does not have, ascending.

        Raises
        ------
        PartyRefusedError
            If anything is not as requested.
        """
        rows, width = shape
        if len(missing):
            positions = np.array(missing, dtype=np.int64)
            if positions[0] < 0 or positions[-1] >= rows or (np.diff(positions) <= 0).any():
                raise PartyRefusedError(
                    party, f"it reports the positions {list(missing[:5])} of {rows} ids as missing; they must ascend"
                )
        expected = (rows - len(missing), width)
        if values.shape != expected or values.dtype != np.float32:
            raise PartyRefusedError(
                party, f"it sent {values.dtype} of shape {values.shape}; float32 of shape {expected} is expected"
            )
        if posterior and values.size:
            try:
                check_posteriors(cast("FloatArray", values[None]), name="its posterior")
            except PosteriorError as error:
                raise PartyRefusedError(party, str(error)) from error
        elif values.size and not max(values.max(), -values.min()) <= MAX_VALUE:  # false for NaN as well
            raise PartyRefusedError(
                party, f"its embedding has NaN, or a value beyond ±{MAX_VALUE:g}: its model or its data are broken"
            )
        if len(missing):
            complete = np.full(shape, np.nan, np.float32)
            complete[np.delete(np.arange(rows), positions)] = values
            values = complete
        return cls(values, payload_bytes)


class PartyConnection(Protocol):
    """A connection to one party. Methods raise a `PartyError` and nothing else."""

    @property
    def name(self) -> str:
        """Name of the party."""
        ...

    async def describe(self) -> PartyDescription:
        """Ask the party to describe itself."""
        ...

    def posteriors(self, ids: Sequence[Any], *, model: str, request_id: str) -> Awaitable[Reply]:
        """Round 1: local posteriors from the model version with this hash."""
        ...

    def embeddings(self, ids: Sequence[Any], *, model: str, codec: str, request_id: str) -> Awaitable[Reply]:
        """Round 2: embeddings from the model version with this hash, as they are after encoding and decoding."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Connect(Protocol):
    """What a transport registers: a function that returns a connection. Nothing is sent yet."""

    def __call__(self, name: str, address: str, tls: CertificateFiles | None) -> PartyConnection:
        """Return a connection to the party `name`; `tls` has the coordinator's certificate, if one is configured."""
        ...


# A transport of your own is one more entry: `@transports.register("name")` in this process, or an entry point in the
# group "gainroute.transports". `address = "name://…"` of a [[party]] selects it; see
# examples/11_transport_of_your_own.py.
transports: Registry[Connect] = Registry(
    "gainroute.transports",
    "transport",
    {
        "grpc": "gainroute.federation.transport.grpc_client:connect_grpc",
        "in-process": "gainroute.federation.transport.in_process:connect_in_process",
    },
)


def connect(name: str, address: str, tls: CertificateFiles | None = None) -> PartyConnection:
    """Return a connection to a party.

    Parameters
    ----------
    name
        Name of the party.
    address
        ``transport://address``; without a transport, ``host:port`` over gRPC.
    tls
        Certificate, key and authority of the coordinator, for transports that use them.
    """
    transport, separator, rest = address.partition("://")
    if not separator:
        transport, rest = DEFAULT_TRANSPORT, address
    return transports.get(transport)(name, rest, tls)


class ConnectedParty:
    """A `gainroute.AsyncParty` over a connection, with model version and codec fixed.

    Parameters
    ----------
    connection
        Connection to the party.
    model
        Hash of the model version.
    codec
        Embedding codec.
    """

    def __init__(self, connection: PartyConnection, model: str, codec: str = "float32") -> None:
        self._connection, self._model, self._codec = connection, model, codec

    async def posteriors(self, ids: Sequence[Any], /) -> Float32Array:
        """Round 1, (N, K)."""
        return (await self._connection.posteriors(ids, model=self._model, request_id=uuid4().hex)).values

    async def embeddings(self, ids: Sequence[Any], /) -> Float32Array:
        """Round 2, (N, d)."""
        request_id = uuid4().hex
        reply = await self._connection.embeddings(ids, model=self._model, codec=self._codec, request_id=request_id)
        return reply.values
