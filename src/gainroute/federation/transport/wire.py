"""Between arrays and messages: numbers as raw bytes, and answers believed only where they make sense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gainroute.errors import GainrouteError, InputError
from gainroute.federation.transport.base import ModelDescription, PartyDescription, PartyRefusedError
from gainroute.federation.transport.checks import NOTHING, check_values, scatter
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.routing.payload import decode, encode

__all__ = ["POSTERIOR_ENCODING", "chunks", "read_answer", "read_description", "write_answer"]

POSTERIOR_ENCODING = "float32"
FRAMING = 1 << 12  # room for everything in a message that is neither ids nor numbers

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


def chunks(ids: Sequence[str], width: int, *, max_samples: int, message_bytes: int) -> list[slice]:
    """Cut ids so that neither a request nor its answer is longer than a message may be.

    Parameters
    ----------
    ids
        As text.
    width
        Numbers a row in the answer.
    max_samples
        Most ids a request; 0 for any number.
    message_bytes
        Longest message that both sides read.
    """
    if not ids:
        return [slice(0, 0)]
    longest = 4 * max(map(len, ids)) + 8  # a character takes at most four bytes
    fit = (message_bytes - FRAMING) // max(longest, 4 * width + 8)
    if fit < 1:
        raise InputError(
            f"one id of up to {longest} bytes, or its answer of {width} numbers, does not fit a message of "
            f"{message_bytes} bytes: allow longer messages (max_message_bytes), or use shorter ids"
        )
    step = min(fit, max_samples or fit)
    return [slice(start, min(start + step, len(ids))) for start in range(0, len(ids), step)]


# ---- the party's side -------------------------------------------------------------------------------


def write_answer(answer: pb.Answer, model: str, values: Floats, missing: Rows, encoding: str) -> None:
    """Fill an answer in: raw bytes, and the positions of what is missing."""
    answer.model = model
    if len(missing):
        answer.missing.extend(missing.tolist())
    tensor = answer.values
    tensor.shape.extend(values.shape)
    tensor.encoding = encoding
    tensor.data = encode(values, encoding)


# ---- the coordinator's side -------------------------------------------------------------------------


def read_description(party: str, reply: pb.DescribeReply) -> PartyDescription:
    """What a party says of itself, believed only where it makes sense."""
    if reply.name != party:
        raise PartyRefusedError(party, f"it calls itself {reply.name!r}: check its address and its settings")
    if len(reply.classes) < 2 or len(set(reply.classes)) < len(reply.classes):
        raise PartyRefusedError(
            party, f"it names the classes {list(reply.classes)}; two or more, all different, are due"
        )
    if any(model.dimension < 1 or not model.hash for model in reply.models):
        raise PartyRefusedError(party, "it names a model without a hash or without a dimension")
    models = tuple(ModelDescription(model.hash, model.dimension) for model in reply.models)
    return PartyDescription(reply.name, tuple(reply.classes), models, tuple(reply.codecs))


def read_answer(
    party: str, answer: pb.Answer, *, model: str, rows: int, width: int, encoding: str, posterior: bool
) -> Floats:
    """A checked answer as (rows, width) float32, rows of NaN where the party lacks the sample."""
    if answer.model != model:
        raise PartyRefusedError(party, f"it answered with model {answer.model!r}, asked was {model!r}")
    tensor = answer.values
    missing = np.array(answer.missing, dtype=np.int64) if answer.missing else NOTHING
    if len(missing) and (missing[-1] >= rows or (np.diff(missing) <= 0).any()):
        raise PartyRefusedError(party, f"it says that ids {missing[:5].tolist()}… of {rows} are missing")
    there = rows - len(missing)
    if list(tensor.shape) != [there, width] or tensor.encoding != encoding:
        raise PartyRefusedError(
            party,
            f"it answered with {tensor.encoding!r} of shape {list(tensor.shape)}; {encoding!r} of shape "
            f"{[there, width]} is due",
        )
    try:
        values = decode(tensor.data, there, width, encoding)
    except GainrouteError as error:
        raise PartyRefusedError(party, f"its answer cannot be read: {error}") from error
    check_values(party, values, posterior=posterior)
    return scatter(values, missing, rows)
