"""The coordinator's end of the training streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import torch
from grpc import aio
from torch import Tensor

from gainroute.errors import GainrouteError
from gainroute.federation.formation.tasks import Array, read_progress, read_result, tensor_bytes, write_tensors
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.bounds import MAX_TEXT
from gainroute.federation.transport.grpc_session import ClientOptions, open_channel, rpc_error
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import Stateful

__all__ = ["RemoteParties", "TrainingStream"]

T = TypeVar("T")
OnProgress = Callable[[str, Mapping[str, Any]], None]


class TrainingStream:
    """One party, while a federation forms. Tasks are sent one after the other.

    Parameters
    ----------
    name, address
        Of the party.
    certificate
        Of the coordinator.
    on_progress
        Receives the party's name and what it reports while it works.
    """

    def __init__(self, name: str, address: str, certificate: ReloadingCertificate, on_progress: OnProgress) -> None:
        self.name, self._on_progress = name, on_progress
        options = ClientOptions()
        self._timeout = options.connect_timeout
        self._channel = open_channel(name, address, certificate.channel(), options)
        self._call: Any = None
        self._number = 0
        self.sent_bytes = self.received_bytes = 0
        self._recent = 0.0, 0.0  # samples, and the seconds they took

    @property
    def samples_per_second(self) -> float | None:
        """The party's pace: samples of its last answers per second from task to answer; None before the first."""
        samples, seconds = self._recent
        return samples / seconds if samples else None

    async def open(self) -> None:
        """Connect; raises PartyUnavailableError or PartyRefusedError."""
        try:
            self._call = party_pb2_grpc.TrainingStub(self._channel).Work()
            await asyncio.wait_for(self._call.wait_for_connection(), self._timeout)
        except aio.AioRpcError as error:
            raise rpc_error(self.name, error.code(), error.details() or "") from error
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise PartyUnavailableError(self.name, f"no stream within {self._timeout} s") from error

    async def call(
        self,
        kind: str,
        options: Mapping[str, Any] | None = None,
        arrays: Sequence[Array | bytes] = (),
        codec: str = "float32",
    ) -> tuple[dict[str, Any], list[Array]]:
        """Have a task carried out, and return its values and arrays; `codec` encodes the floats that are sent."""
        self._number += 1
        tensors, began = write_tensors(arrays, codec), time.monotonic()
        task = pb.Task(number=self._number, kind=kind, options=json.dumps(options or {}), tensors=tensors)
        try:
            await self._call.write(task)
            while True:
                reply = await self._call.read()
                if reply is aio.EOF:
                    raise rpc_error(self.name, await self._call.code(), await self._call.details() or "")
                if reply.number != self._number:
                    raise PartyRefusedError(self.name, f"it answers task {reply.number}, not task {self._number}")
                if reply.WhichOneof("result") != "progress":
                    break
                self._on_progress(self.name, read_progress(reply.progress))
            if reply.WhichOneof("result") != "done":
                raise PartyRefusedError(self.name, f"task {kind!r}: {reply.failure.message[:MAX_TEXT]}")
            self.sent_bytes += tensor_bytes(tensors)
            self.received_bytes += tensor_bytes(reply.done.tensors)
            values, arrays = read_result(kind, reply.done)
        except aio.AioRpcError as error:
            raise rpc_error(self.name, error.code(), error.details() or "") from error
        except asyncio.InvalidStateError as error:
            raise PartyUnavailableError(self.name, "the stream was closed") from error
        except GainrouteError as error:
            if isinstance(error, (PartyRefusedError, PartyUnavailableError)):
                raise
            raise PartyRefusedError(self.name, f"its answer to {kind!r} is not valid: {error}") from error
        samples = sum(len(array) for array in arrays if array.ndim > 1)
        if samples:
            before = self._recent
            self._recent = 0.8 * before[0] + samples, 0.8 * before[1] + time.monotonic() - began
        return values, arrays

    async def close(self) -> None:
        """End the stream."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()


class RemoteParties:
    """`TrainingParties` behind training streams, for a thread beside the event loop that owns the streams.

    Every party derives the batches from the seed of the run, so that one message per step goes each way: a gradient,
    and the embeddings of the next batch.

    Parameters
    ----------
    streams
        In the order of the head.
    dimension
        Length of an embedding.
    codec
        Of gradients.
    loop
        Of the streams.
    """

    def __init__(
        self, streams: Sequence[TrainingStream], dimension: int, codec: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._streams, self._dimension, self._codec, self._loop = streams, dimension, codec, loop
        self._next: list[list[Array]] = []

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _all(
        self, kind: str, options: Mapping[str, Any], arrays: Sequence[Sequence[Array]] | None = None
    ) -> None:
        given = arrays or [()] * len(self._streams)
        calls = (s.call(kind, options, sent, self._codec) for s, sent in zip(self._streams, given, strict=True))
        self._next = [received for _, received in await asyncio.gather(*calls)]

    def begin_epoch(self, seed: int, epoch: int) -> None:  # noqa: ARG002 (the parties derive the seed themselves)
        """Start an epoch at every party."""
        self._run(self._all("epoch", {"number": epoch}))

    def forward(self, rows: IntArray) -> list[Tensor]:
        """What the parties sent for this batch."""
        for stream, arrays in zip(self._streams, self._next, strict=True):
            found = [(array.shape, array.dtype.name) for array in arrays]
            expected = (len(rows), self._dimension), "float32"
            if found != [expected]:
                raise PartyRefusedError(stream.name, f"it sent embeddings {found}; {expected} is expected")
        return [torch.from_numpy(arrays[0]) for arrays in self._next]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Send every party its gradient; it answers with the next batch."""
        self._run(self._all("gradient", {}, [[gradient.numpy()] for gradient in gradients]))

    def state(self) -> dict[str, Stateful]:
        """Nothing: every party keeps checkpoints of its own."""
        return {}

    def end_epoch(self, epoch: int) -> None:
        """Check that every party has written its checkpoint, which it does after the last gradient."""
        left = [stream.name for stream, arrays in zip(self._streams, self._next, strict=True) if arrays]
        if left:
            raise PartyRefusedError(left[0], f"it has more batches in epoch {epoch} than the coordinator")

    def finish(self) -> None:
        """Nothing: a party switches to inference when it deploys."""
