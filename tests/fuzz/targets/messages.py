"""Messages of the protocol between coordinators and parties."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import GainrouteError
from gainroute.federation.masking import ENCODING
from gainroute.federation.party.masked import NONCE_BYTES
from tests.fuzz.mutate import mutate_message
from tests.fuzz.targets.base import Target

# Of a masking party: small, so that samples are forgotten while it is fuzzed.
WINDOW_SECONDS, REMEMBERED = 2.0, 10_000


@contextlib.contextmanager
def messages(folder: Path) -> Iterator[Target]:
    """Every message of the protocol: requests at a party, and whatever a party may answer."""
    from masked_federation import mask_keys, plan_of, privacy
    from party_helpers import CLASSES, DIMENSION, MODEL, Federation, StubParty, versions

    from gainroute.federation.coordinator.masked import new_nonce
    from gainroute.federation.formation.tasks import read_json_object, read_tensors, write_tensors
    from gainroute.federation.party.service import PartyService
    from gainroute.federation.party.sources import source_of
    from gainroute.federation.pki.access import Caller
    from gainroute.federation.pki.credentials import ReloadingCertificate
    from gainroute.federation.transport.grpc_client import GrpcConnection
    from gainroute.federation.transport.proto import party_pb2 as pb
    from gainroute.federation.transport.wire import read_description, write_answer

    made = Federation(folder)

    def party(name: str, **how: Any) -> PartyService:
        settings = made.settings(name, **how)
        return PartyService(settings, source_of(*versions(StubParty())), ReloadingCertificate(settings.tls))

    hidden = privacy(folder, "m", mask_keys(folder, "mno"), window_seconds=WINDOW_SECONDS, remember=REMEMBERED)
    service, masking = party("a"), party("m", privacy=hidden)
    connection = GrpcConnection("a", "127.0.0.1:1", made.files("coordinator", "main"))
    caller, loop = Caller("main", "f"), asyncio.new_event_loop()
    asked = pb.Request(round=pb.ROUND_POSTERIORS, model=MODEL, ids=["0", "1", "x"])
    escalated = pb.Request(round=pb.ROUND_EMBEDDINGS, model=MODEL, codec="int8", ids=["0", "1"])
    plan = plan_of({"m": 0.5, "n": 0.25, "o": 0.25}, dict.fromkeys("mno", MODEL))
    summed = pb.Request(
        round=pb.ROUND_POSTERIORS, model=MODEL, ids=["0", "1", "x"], mask_plan=plan, mask_nonce=bytes(NONCE_BYTES)
    )
    described, masked = (loop.run_until_complete(each.describe(caller)) for each in (service, masking))

    def request(message: Any) -> None:
        loop.run_until_complete(service.answer(caller, message))

    def request_masked(message: Any) -> None:
        if not any(message.mask_nonce) and len(message.mask_nonce) == NONCE_BYTES:  # others are too old
            message.mask_nonce = new_nonce()
        loop.run_until_complete(masking.answer(caller, message))

    def request_planned(message: Any) -> None:
        asking = pb.Request()
        asking.CopyFrom(summed)
        asking.mask_plan = message.SerializeToString()
        request_masked(asking)

    def description(message: Any) -> None:
        found = read_description("a", message)
        connection._session = type("Session", (), {"description": found})  # what it keeps after `Describe`
        _ = connection.certificate_expires

    def response(message: Any) -> None:
        connection._read(asked, len(CLASSES), "float32", message)

    def embeddings(message: Any) -> None:
        connection._read(escalated, DIMENSION, "int8", message)

    def response_masked(message: Any) -> None:
        connection._read(summed, len(CLASSES), "", message)

    def task(message: Any) -> None:
        read_json_object(message.options, "options")
        read_tensors(message.tensors)

    def reply(message: Any) -> None:
        read_json_object(message.progress, "progress")
        read_json_object(message.done.values, "values")
        read_tensors(message.done.tensors)

    rows = np.full((2, 3), 1 / 3, np.float32)
    tensors = write_tensors([np.arange(4), np.ones((2, 3), np.float32), b"bytes"], "float16")
    numbers = np.ones((2, DIMENSION), np.float32)
    ring = pb.Tensor(shape=[3, len(CLASSES) - 1], encoding=ENCODING, data=bytes(12 * (len(CLASSES) - 1)))
    kinds: list[tuple[Any, Callable[[Any], None]]] = [
        (asked, request), (escalated, request), (described, description),
        (write_answer(asked, rows, np.array([2]), "float32"), response),
        (pb.Response(failure=pb.Failure(code=pb.Failure.CODE_QUOTA, message="m")), response),
        (write_answer(escalated, numbers, np.array([], np.int64), "int8"), embeddings),
        (pb.Task(number=1, kind="open", options='{"federation": "f", "plan": {"seed": 0}}', tensors=tensors), task),
        (pb.TaskReply(number=1, done=pb.TaskResult(values='{"a": [1]}', tensors=tensors)), reply),
        (summed, request_masked), (pb.MaskPlan.FromString(plan), request_planned), (masked, description),
        (pb.Response(answer=pb.Answer(model=MODEL, missing=[2], values=ring)), response_masked),
    ]  # fmt: skip

    def run(data: bytes) -> str:
        example, read = kinds[(data[:1] or b"\x00")[0] % len(kinds)]
        try:
            message = type(example).FromString(data[1:])
        except Exception:  # noqa: BLE001 (gRPC refuses it)
            return "no message"
        try:
            read(message)
        except GainrouteError:
            return "refused"
        return "read"

    seeds = [bytes([i]) + message.SerializeToString() for i, (message, _) in enumerate(kinds)]
    try:
        yield Target(seeds, mutate_message([type(message) for message, _ in kinds]), run)
    finally:
        service.close()
        masking.close()
        loop.close()
