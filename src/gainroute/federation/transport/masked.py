"""The coordinator's end of a masked Round 1: messages as arrays, validated."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gainroute.federation.masking import ENCODING
from gainroute.federation.transport.base import MaskingDescription, PartyRefusedError, Reply
from gainroute.federation.transport.proto import party_pb2 as pb

__all__ = ["ANSWERED", "MISSING", "WITHHELD", "MaskingConnection", "read_masked", "read_masking"]

# The last column of a masked reply: whether the row is an answer, or random.
ANSWERED, MISSING, WITHHELD = 0, 1, 2
MAX_PEERS = 1000


@runtime_checkable
class MaskingConnection(Protocol):
    """A `PartyConnection` that carries a masked Round 1."""

    def masked(self, ids: Sequence[Any], *, model: str, plan: bytes, nonce: bytes, request_id: str) -> Awaitable[Reply]:
        """Round 1, masked: (N, K) uint32 with K − 1 masked numbers and `ANSWERED`, `MISSING` or `WITHHELD`."""
        ...


def read_masking(party: str, masking: pb.Masking) -> MaskingDescription:
    """Return how a party masks, validated."""
    peers = dict(masking.peers)
    if len(peers) > MAX_PEERS or any(len(key) != 32 for key in (masking.public_key, *peers.values())):
        raise PartyRefusedError(party, f"its masking keys are not up to {MAX_PEERS} keys of 32 bytes each")
    share = masking.max_weight_share
    if not (math.isfinite(share) and 0 < share <= 1):
        raise PartyRefusedError(party, f"its largest share of the weights is {share}; a share above 0 is needed")
    return MaskingDescription(masking.public_key, peers, masking.min_roster, share)


def read_masked(party: str, answer: pb.Answer, *, model: str, shape: tuple[int, int]) -> Reply:
    """Decode and validate a masked answer; `shape` is the number of ids, and K."""
    tensor, (rows, classes) = answer.values, shape
    if answer.model != model:
        raise PartyRefusedError(party, f"it answered with model {answer.model[:80]!r}; {model!r} was requested")
    expected = [rows, classes - 1]
    if tensor.encoding != ENCODING or list(tensor.shape) != expected or len(tensor.data) != 4 * rows * (classes - 1):
        raise PartyRefusedError(
            party,
            f"it sent {tensor.encoding[:20]!r} of shape {list(tensor.shape)[:3]}; {ENCODING!r} of shape {expected}, "
            "masked, is expected",
        )
    values = np.empty(shape, np.uint32)
    values[:, :-1] = np.frombuffer(tensor.data, "<u4").reshape(expected)
    values[:, -1] = ANSWERED
    for positions, state in ((answer.withheld, WITHHELD), (answer.missing, MISSING)):
        if len(positions):
            at = np.array(positions, dtype=np.int64)
            if len(at) > rows or at.max() >= rows:
                raise PartyRefusedError(party, f"it reports position {int(at.max())} of {rows} ids")
            values[at, -1] = state
    return Reply(values, len(tensor.data))  # type: ignore[arg-type]  # whole numbers of a ring, not posteriors
