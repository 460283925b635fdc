"""A run of a federation at the coordinator: what is done, what is shown, and the streams to the parties."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gainroute._util.files import write_json
from gainroute._util.hashing import hash_text
from gainroute._util.progress import Progress, ReportedProgress
from gainroute.errors import DataError
from gainroute.federation.formation.plan import FederationSettings
from gainroute.federation.formation.remote import TrainingStream
from gainroute.federation.formation.status import STAGES, status_file
from gainroute.federation.formation.tasks import Array
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import PartyRefusedError, PartyUnavailableError
from gainroute.io.run_folder import RunFolder, read_json
from gainroute.io.tables import read_table

__all__ = ["FormationRun", "check_aligned", "check_labels"]

RETRY_SECONDS = 1.0


class FormationRun:
    """State, status and streams of one run.

    Parameters
    ----------
    settings
        The parties, the labels and the plan.
    version
        Names the run: its folder is ``<out>/<version>``, and every party keeps its models under it.
    progress
        Where progress is shown.
    wait
        Seconds to wait for a party that is away.
    models_of
        A complete version whose models are used again: nothing is trained. A run that is resumed remembers it.
    """

    def __init__(
        self,
        settings: FederationSettings,
        version: str,
        progress: Progress,
        wait: float = 60.0,
        models_of: str | None = None,
    ) -> None:
        self.settings, self.version, self._wait = settings, version, wait
        self.progress = ReportedProgress(self._note, progress)  # shown with every party's pace
        self.run_folder = RunFolder(settings.out / version)
        self._work = self.run_folder.work
        self._names = [party.name for party in settings.party]
        self._streams: dict[str, TrainingStream] = {}
        self._certificate = ReloadingCertificate(settings.tls)
        self._bytes = {name: [0, 0] for name in self._names}
        self._status: dict[str, Any] = {"federation": settings.name, "version": version, "stages": {}, "parties": {}}
        self._telling = threading.Lock()  # the event loop and a thread that trains write the status
        self._state_path = self._work / "formation.json"
        self._state: dict[str, Any] = {"done": {}, "models_of": models_of}

    @property
    def _reused(self) -> RunFolder | None:
        """The version whose models are used again."""
        name = self._state.get("models_of")
        return None if name is None else RunFolder(self.settings.out / name)

    @property
    def _reuse(self) -> dict[str, str]:
        """What the parties have to know of it."""
        return {} if self._reused is None else {"models_of": self._reused.path.name}

    @property
    def payload_bytes(self) -> dict[str, tuple[int, int]]:
        """Bytes of numbers sent to and received from each party."""
        for name, stream in list(self._streams.items()):
            self._bytes[name] = [stream.sent_bytes, stream.received_bytes]
        return {name: (sent, received) for name, (sent, received) in self._bytes.items()}

    # ---- state and status ---------------------------------------------------------------------------

    def _claim(self) -> None:
        settings, resumed = self.settings, self._state_path.is_file()
        if self._reused is not None and not resumed:
            self._state = _reusing(self._reused)
        plan = repr((settings.name, self._names, settings.labels, settings.training))
        remedy = "restore federation.toml, or start the next version with --again"
        self.run_folder.claim(hash_text(plan), remedy=remedy)
        if resumed:
            self._state = read_json(self._state_path)
            if self.settings.labels.access != "private" and not self.run_folder.record.is_file():
                self._state["done"].pop("calibrate", None)  # the report needs the answers
        write_json(self._state_path, self._state)
        self._status["stages"] = {stage: "done" if stage in self._state["done"] else "open" for stage in STAGES}

    def _tell(self, **more: Any) -> None:
        with self._telling:
            parties = self._status["parties"]
            for name, (sent, received) in self.payload_bytes.items():
                parties.setdefault(name, {}).update(bytes_down=sent, bytes_up=received)
            for name, stream in list(self._streams.items()):
                parties[name]["samples_per_second"] = stream.samples_per_second
            if "align" in self._state["done"]:
                self._status["overlaps"] = self._state["done"]["align"]["overlaps"]
            self._status |= {"time": time.time(), **more}
            write_json(status_file(self.run_folder.path), self._status)

    def _note(self, progress: Mapping[str, Any]) -> str:
        """Note the coordinator's progress in the status; returns the parties' pace. Called by the thread that works."""
        self._tell(progress=dict(progress))
        pace = {name: stream.samples_per_second for name, stream in self._streams.items()}
        return ", ".join(f"{name} {value:.0f}/s" for name, value in pace.items() if value)

    def _on_progress(self, party: str, state: Mapping[str, Any]) -> None:
        self._status["parties"].setdefault(party, {}).update(state)
        self.progress.say(f"{party}: {state['stage']} {state['done']}/{state['total']} {state['note']}")
        self._tell()

    async def _persist(self, stage: str, work: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Carry out a stage; if a party is away, wait for it and carry on."""
        self._status["stages"][stage] = "running"
        for party in self._status["parties"].values():
            party.pop("stage", None)
        self._status.pop("progress", None)
        self.progress.say(f"{stage}: begins")
        self._tell(stage=stage)
        deadline: float | None = None
        while True:
            try:
                done = await work()
                break
            except PartyUnavailableError as error:
                now = time.monotonic()
                deadline = deadline or now + self._wait
                await self._close()  # every party starts the stage from its last checkpoint
                self._tell(waiting_for=error.party)
                if now > deadline:
                    self._status["stages"][stage] = "stopped"
                    self._tell()
                    raise PartyUnavailableError(
                        error.party, f"{error.reason}; waited {self._wait:g} s. The same command resumes the run"
                    ) from error
                self.progress.say(f"waiting for party {error.party}: {error.reason}")
                await asyncio.sleep(RETRY_SECONDS)
        self._state["done"][stage] = dict(done)
        write_json(self._state_path, self._state)
        self._status["stages"][stage] = "done"
        self._status.pop("waiting_for", None)
        self._tell()

    # ---- connections --------------------------------------------------------------------------------

    async def _stream(self, name: str) -> TrainingStream:
        """The stream to a party, opened and prepared for the stage that the run is in."""
        if name in self._streams:
            return self._streams[name]
        address = next(party.address for party in self.settings.party if party.name == name)
        stream = TrainingStream(name, address, self._certificate, self._on_progress)
        stream.sent_bytes, stream.received_bytes = self._bytes[name]
        try:
            await stream.open()
            opened, _ = await stream.call(
                "open",
                {
                    "federation": self.settings.name, "version": self.version, "parties": len(self._names),
                    "plan": _given(self.settings.training), "labels": _given(self.settings.labels),
                },
            )  # fmt: skip
            done = self._state["done"]
            if "align" in done:
                check_aligned(name, opened, done["align"]["samples"])
            if "split" in done:
                await stream.call(
                    "prepare",
                    {"class_names": done["split"]["class_names"], **self._reuse},
                    [*self._rows, *self._given_labels],
                )
        except BaseException:
            await stream.close()
            raise
        self._streams[name] = stream
        return stream

    async def _all(self) -> list[TrainingStream]:
        return list(await asyncio.gather(*map(self._stream, self._names)))

    async def _each(
        self, kind: str, options: Mapping[str, Any] | None = None
    ) -> list[tuple[dict[str, Any], list[Array]]]:
        streams = await self._all()
        return list(await asyncio.gather(*(stream.call(kind, options) for stream in streams)))

    async def _close(self) -> None:
        self._bytes = {name: list(both) for name, both in self.payload_bytes.items()}
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close() for stream in streams), return_exceptions=True)

    # ---- the split ----------------------------------------------------------------------------------

    @property
    def _rows(self) -> list[Array]:
        table = read_table(self._work / "split.npz")
        return [table.array(name) for name in "abc"]

    @property
    def _train_labels(self) -> Array:
        return read_table(self._work / "split.npz").array("labels")

    @property
    def _given_labels(self) -> list[Array]:
        return [] if self.settings.labels.access == "shared" else [self._train_labels]

    @property
    def _class_names(self) -> list[str]:
        return list(self._state["done"]["split"]["class_names"])


def _given(settings: Any) -> dict[str, Any]:
    """Settings as plain values, without those that are not set."""
    return {name: value for name, value in asdict(settings).items() if value is not None}


def _reusing(version: RunFolder) -> dict[str, Any]:
    """The state of a run that uses the models of a complete version, or those that this one uses."""
    path = version.work / "formation.json"
    before = read_json(path) if path.is_file() else {"done": {}}
    if "calibrate" not in before["done"]:
        raise DataError(f"{version.path} is not complete: finish it first, by the command without options")
    trained = {stage: before["done"][stage] for stage in ("local", "strong")}
    return {"done": trained, "models_of": before.get("models_of") or version.path.name}


def check_aligned(party: str, values: Mapping[str, Any], samples: str) -> None:
    """Raise DataError unless a party has aligned the samples of this run."""
    if values.get("samples") != samples:
        raise DataError(f"party {party!r} has aligned other samples than this run: start a new version")


def check_labels(party: str, labels: Array, count: int, classes: int) -> None:
    """Raise PartyRefusedError unless these are the column numbers of `count` labels."""
    if labels.shape != (count,) or labels.dtype.kind != "i" or not np.isin(labels, np.arange(classes)).all():
        raise PartyRefusedError(
            party, f"it sent labels of shape {labels.shape}; {count} of 0 … {classes - 1} are needed"
        )
