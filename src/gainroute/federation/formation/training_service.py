"""The party's end of the training stream: access, one run at a time, and the audit of what was done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc

from gainroute.errors import GainrouteError
from gainroute.federation.formation.tasks import read_json_object, read_tensors, tensor_bytes, write_tensors
from gainroute.federation.party.agreement import Agreement
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.settings import PartySettings
from gainroute.federation.pki.access import Access, AccessDeniedError, Caller, peer_certificate
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc

if TYPE_CHECKING:
    from gainroute.federation.formation.party_trainer import PartyTrainer

__all__ = ["TrainingService"]

log = logging.getLogger(__name__)

# Steps and chunks are counted and recorded with the epoch or the alignment they belong to.
COUNTED = {"epoch", "gradient", "align own", "align mask", "align commit", "embed", "answers"}


class _Run:
    """The run that a stream works on: what is counted, and whether the coordinator is still there."""

    def __init__(self, caller: Caller, context: Any) -> None:
        self.caller, self.context = caller, context
        self.steps, self.samples, self.bytes_in, self.bytes_out = 0, 0, 0, 0

    def count(self, task: pb.Task, reply: pb.TaskReply) -> None:
        """Count a task and its reply."""
        self.steps += 1
        self.samples += sum(tensor.shape[0] for tensor in reply.done.tensors if len(tensor.shape) > 1)
        self.bytes_in += tensor_bytes(task.tensors)
        self.bytes_out += tensor_bytes(reply.done.tensors)

    def counted(self) -> dict[str, int]:
        """What was counted since the last call."""
        found = {"steps": self.steps, "count": self.samples, "bytes_in": self.bytes_in, "bytes_out": self.bytes_out}
        self.steps = self.samples = self.bytes_in = self.bytes_out = 0
        return found


class TrainingService(party_pb2_grpc.TrainingServicer):  # type: ignore[misc]  # generated code carries no types
    """Carries out the tasks of the coordinators that may train.

    Parameters
    ----------
    settings
        Of the party.
    access
        Decides who is answered at all.
    audit
        The party's audit log.
    deployed
        Called after a new version was written: the party serves it from then on.
    agreement
        The agreed share of escalations, if there is one. It is lifted while a coordinator trains: calibration needs
        both rounds of every held-out sample.
    """

    def __init__(
        self,
        settings: PartySettings,
        access: Access,
        audit: AuditLog,
        deployed: Callable[[], Awaitable[None]],
        agreement: Agreement | None = None,
    ) -> None:
        self._settings, self._access, self._audit, self._deployed = settings, access, audit, deployed
        self._agreement = agreement
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._turn = asyncio.Lock()
        self._active: _Run | None = None
        self._number = 0

    async def Work(self, tasks: AsyncIterator[pb.Task], context: Any) -> None:  # noqa: N802
        """Carry out tasks one after the other until the coordinator closes the stream."""
        certificate = peer_certificate(context)
        caller = self._access.admit(certificate)
        if caller.name not in self._settings.training.coordinators:
            self._record(caller, "denied: not a coordinator that may train")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"coordinator {caller.name!r} may not train here")
        if self._active is not None and not self._active.context.cancelled():
            message = f"coordinator {self._active.caller.name!r} is training: one run at a time"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        async with self._turn:  # waits for the last task of a stream that was cut off
            self._active = run = _Run(caller, context)
            lifted = contextlib.nullcontext() if self._agreement is None else self._agreement.lifted(caller.name)
            try:
                trainer = self._trainer(run)
                with lifted:
                    async for task in tasks:
                        self._access.recheck(caller, certificate)
                        await context.write(await self._carry_out(run, trainer, task))
            except AccessDeniedError as error:
                self._record(caller, f"denied: {error}")
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            finally:
                self._active = None

    def _trainer(self, run: _Run) -> PartyTrainer:
        from gainroute.federation.formation.party_trainer import PartyTrainer

        loop = asyncio.get_running_loop()

        def report(state: Mapping[str, Any]) -> None:
            if run.context.cancelled():
                raise GainrouteError("the coordinator has gone")
            reply = pb.TaskReply(number=self._number, progress=json.dumps(state))
            asyncio.run_coroutine_threadsafe(run.context.write(reply), loop).result()

        settings = self._settings
        assert settings.source.run is not None  # noqa: S101 (checked by the settings)
        return PartyTrainer(settings.name, settings.training, settings.source.run, report)

    async def _carry_out(self, run: _Run, trainer: PartyTrainer, task: pb.Task) -> pb.TaskReply:
        began, self._number, kind = time.monotonic(), task.number, task.kind[:40]

        def work() -> pb.TaskReply:
            options, arrays = read_json_object(task.options, "options"), read_tensors(task.tensors)
            values, sent = trainer.work(task.kind, options, arrays)
            result = pb.TaskResult(values=json.dumps(values), tensors=write_tensors(sent, trainer.codec))
            return pb.TaskReply(number=task.number, done=result)

        try:
            reply = await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except Exception as error:
            known = isinstance(error, GainrouteError)
            log.error("training task failed", extra={"task": kind, "reason": str(error)}, exc_info=not known)  # noqa: TRY400
            reason = str(error) if known else f"the task failed ({type(error).__name__}); see the party's log"
            failure = pb.Failure(code=pb.Failure.CODE_INVALID if known else pb.Failure.CODE_INTERNAL, message=reason)
            self._record(run.caller, f"failed: {kind}")
            return pb.TaskReply(number=task.number, failure=failure)
        run.count(task, reply)
        values = json.loads(reply.done.values)
        if kind not in COUNTED or "epochs" in values:
            what = f"epoch {values['epochs']}" if "epochs" in values else kind
            more = run.counted() | {"seconds": round(time.monotonic() - began, 3)}
            self._record(run.caller, f"trained: {what}", **more)
        if kind == "deploy":
            await self._deployed()
        return reply

    def _record(self, caller: Caller, outcome: str, **more: object) -> None:
        self._audit.write(coordinator=caller.name, fingerprint=caller.fingerprint, outcome=outcome, **more)

    def close(self) -> None:
        """Stop the worker after its current task."""
        self._worker.shutdown(wait=False, cancel_futures=True)
