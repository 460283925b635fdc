"""Conversion between arrays and protocol messages. Numbers travel as raw bytes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

from gainroute.errors import GainrouteError, InputError
from gainroute.federation.transport.base import ModelDescription, PartyDescription, PartyRefusedError, Reply
from gainroute.federation.transport.bounds import LATEST_SECOND
from gainroute.federation.transport.masked import read_masking
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.routing.payload import decode, encode

__all__ = ["POSTERIOR_ENCODING", "chunks", "failure", "read_answer", "read_description", "write_answer"]

POSTERIOR_ENCODING = "float32"
FRAMING = 1 << 12  # allowance for everything in a message that is neither ids nor numbers


def chunks(ids: Sequence[str], width: int, *, max_samples: int, message_bytes: int) -> list[slice]:
    """Split ids so that neither a request nor its answer exceeds the message size.

    Parameters
    ----------
    ids
        As text.
    width
        Numbers per row of the answer.
    max_samples
        Maximum number of ids per request; 0 for no limit.
    message_bytes
        Longest message that both sides accept.
    """
    longest = 4 * max(map(len, ids), default=0) + 8  # a character takes at most four bytes
    fit = (message_bytes - FRAMING) // max(longest, 4 * width + 8)
    if fit < 1:
        raise InputError(
            f"one id of up to {longest} bytes, or its answer of {width} numbers, does not fit a message of "
            f"{message_bytes} bytes: allow longer messages (max_message_bytes), or use shorter ids"
        )
    step = min(fit, max_samples or fit)
    return [slice(start, min(start + step, len(ids))) for start in range(0, len(ids), step)]


# ---- the party's end --------------------------------------------------------------------------------


def write_answer(
    request: pb.Request, values: npt.NDArray[np.float32], missing: npt.NDArray[np.int64], encoding: str
) -> pb.Response:
    """Build the response to a request: encoded rows, and the positions of the ids that the party does not have."""
    response = pb.Response(correlation=request.correlation)
    answer = response.answer
    answer.model = request.model
    answer.missing.extend(missing.tolist())
    answer.values.shape.extend(values.shape)
    answer.values.encoding = encoding
    answer.values.data = encode(values, encoding)
    return response


def failure(request: pb.Request, code: pb.Failure.Code, message: str, retry_after: float = 0.0) -> pb.Response:
    """Build a response that refuses a request."""
    reason = pb.Failure(code=code, message=message, retry_after_seconds=retry_after)
    return pb.Response(correlation=request.correlation, failure=reason)


# ---- the coordinator's end --------------------------------------------------------------------------


def read_description(party: str, reply: pb.DescribeReply) -> PartyDescription:
    """Return the validated description of a party."""
    if reply.name != party:
        raise PartyRefusedError(party, f"it calls itself {reply.name[:300]!r}: check its address and its settings")
    end = reply.certificate_not_after
    if not 0 <= end <= LATEST_SECOND:
        raise PartyRefusedError(
            party, f"its certificate expires {end} seconds after 1970; 0 (unknown) to {LATEST_SECOND} are allowed"
        )
    masking = read_masking(party, reply.masking) if reply.HasField("masking") else None
    return PartyDescription(
        reply.name, tuple(reply.classes),
        tuple(ModelDescription(model.hash, model.dimension) for model in reply.models), tuple(reply.codecs), masking,
        reply.max_samples, reply.max_message_bytes, datetime.fromtimestamp(end, timezone.utc) if end else None,
    )  # fmt: skip


def read_answer(
    party: str, answer: pb.Answer, *, model: str, shape: tuple[int, int], encoding: str, posterior: bool
) -> Reply:
    """Decode and validate an answer; `shape` is the number of ids and the length of a row."""
    tensor = answer.values
    if answer.model != model:
        raise PartyRefusedError(party, f"it answered with model {answer.model[:300]!r}; {model!r} was requested")
    if len(answer.missing) > shape[0]:
        raise PartyRefusedError(party, f"it reports {len(answer.missing)} of {shape[0]} ids as missing")
    missing = list(answer.missing)
    expected = [shape[0] - len(missing), shape[1]]
    found = list(tensor.shape[:3])
    if tensor.encoding != encoding or found != expected:
        raise PartyRefusedError(
            party, f"it sent {tensor.encoding[:40]!r} of shape {found}; {encoding!r} of shape {expected} is expected"
        )
    try:
        values = decode(tensor.data, expected[0], expected[1], encoding)
    except GainrouteError as error:
        raise PartyRefusedError(party, f"its answer cannot be decoded: {error}") from error
    return Reply.checked(party, values, shape, len(tensor.data), posterior=posterior, missing=missing)
