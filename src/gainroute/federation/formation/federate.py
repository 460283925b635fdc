"""The coordinator's side of forming a federation, in stages that can be resumed: from ids to a calibrated router."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch

from gainroute._util.files import kept_secret, write_bytes, write_json, write_npz
from gainroute._util.hashing import hash_text
from gainroute._util.settings import settings_text
from gainroute.errors import DataError
from gainroute.federation.formation.alignment import intersect, passes
from gainroute.federation.formation.pseudonyms import REALIGN
from gainroute.federation.formation.remote import RemoteParties, TrainingStream
from gainroute.federation.formation.run import FormationRun, check_aligned, check_labels
from gainroute.federation.formation.status import STAGES
from gainroute.federation.formation.tasks import CHUNK_BYTES, Array
from gainroute.federation.transport.base import PartyConnection, PartyRefusedError, connect
from gainroute.io.run_folder import SERVER, RunFolder
from gainroute.io.tables import read_table
from gainroute.routing.absent import calibrated_subsets
from gainroute.routing.artifacts import load
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.training.answer import answer_subsets
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.masked import train_masked
from gainroute.training.models.build import build_model, save_model
from gainroute.training.optimise import label_loss
from gainroute.training.optimise import threads as torch_threads
from gainroute.training.prepare import given_labels
from gainroute.training.route_answers import LocalAnswers, RouteAnswers, training_rows
from gainroute.training.routes import RouteTrainer, fusion_spec
from gainroute.training.run import TrainedRun
from gainroute.training.split_learning import FusionServer, train_split
from gainroute.training.trained_run import TrainedFusion, load_fusion
from gainroute.training.yardstick import pooled_accuracy

__all__ = ["Formation"]


class Formation(FormationRun):
    """One run of a federation, from ids to a calibrated router; parameters as of `FormationRun`."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._answers: dict[str, RouteAnswers] = {}
        self._trained_answers: LocalAnswers | None = None
        self._yardstick: dict[str, float] = {}

    async def run(self) -> dict[str, Any]:
        """Carry out what is left, and return the results on the test part."""
        began = time.monotonic()
        self._claim()
        work: dict[str, Callable[[], Awaitable[Mapping[str, Any]]]] = {
            "align": self._align, "split": self._split, "local": self._local, "strong": self._strong,
            "deploy": self._deploy, "calibrate": self._calibrate,
        }  # fmt: skip
        try:
            with torch_threads(self.settings.training.threads):
                for stage in STAGES:
                    if stage not in self._state["done"]:
                        await self._persist(stage, work[stage])
        finally:
            await self._close()
        self._seconds = time.monotonic() - began
        return dict(self._state["done"]["calibrate"])

    def trained_run(self) -> TrainedRun | None:
        """The run with its answers, for a report; None if the labels are private, and stay with their holder."""
        if not self._answers:
            return None
        plan, done, run = self.settings.training, self._state["done"], self.run_folder
        dimensions = [done["strong"]["dimension"]] * len(self._names)
        seconds = {f"local {name}": value for name, value in done["local"]["seconds"].items()}
        metadata = {
            "config": {**asdict(plan), "labels": asdict(self.settings.labels)},
            "embedding_dimensions": dimensions,
            "train_samples": done["split"]["train"],
            "split_hash": done["align"]["samples"],
            "seconds": {**seconds, "vfl": done["strong"]["seconds"]},
            **self._yardstick,
        }
        router = cast("ExpectedGainRouter", load(run.server.router))
        parts = self._answers["calibration"], self._answers["test"], self._trained_answers
        names = tuple(self._class_names), tuple(self._names)
        return TrainedRun(run, router, plan.codec, *parts, *names, plan.seed, metadata, self._seconds)

    # ---- align and split ----------------------------------------------------------------------------

    async def _align(self) -> Mapping[str, Any]:
        counted = await self._each("align", {"max_ids": self.settings.max_ids})
        sizes = {name: values["ids"] for name, (values, _) in zip(self._names, counted, strict=True)}
        for name, size in sizes.items():
            if size > self.settings.max_ids:
                raise DataError(f"party {name!r} announced {size} ids; max_ids allows {self.settings.max_ids}")
        total = len(self._names) * len(self._names)
        self.progress.start("align", total)
        lists: dict[str, bytes] = {}
        for step, turn in enumerate(passes(self._names)):
            held = dict(lists)

            async def one(party: str, owner: str, step: int = step, held: Mapping[str, bytes] = held) -> None:
                stream = await self._stream(party)
                if step == 0:
                    parts, first = [], 0
                    while first < sizes[party]:
                        _, (chunk,) = await stream.call("align own", {"first": first})
                        first += len(chunk) // 32
                        if not len(chunk) or len(chunk) % 32 or first > sizes[party]:
                            raise DataError(f"party {party!r} announced {sizes[party]} ids and sent another number")
                        parts.append(chunk.tobytes())
                    lists[owner] = b"".join(parts)
                else:
                    size = CHUNK_BYTES // 4
                    pieces = [held[owner][at : at + size] for at in range(0, len(held[owner]), size)]
                    masked = [(await stream.call("align mask", {}, [piece]))[1][0].tobytes() for piece in pieces]
                    if list(map(len, masked)) != list(map(len, pieces)):
                        raise DataError(f"party {party!r} returned more or fewer elements than it was sent")
                    lists[owner] = b"".join(masked)
                self.progress.advance()
                self._tell()

            await asyncio.gather(*(one(party, owner) for party, owner in turn.items()))
        secret = kept_secret(self.settings.out / "pseudonyms.key", lambda: secrets.token_bytes(32), REALIGN)
        tags = {name: lists[name] for name in self._names}  # in the order of the settings, not of arrival
        found = await asyncio.to_thread(intersect, tags, secret, max_ids=self.settings.max_ids)
        committed = await asyncio.gather(*(self._commit(name, found.pseudonyms[name]) for name in self._names))
        expected = hash_text("\n".join(found.samples))
        for name, values in zip(self._names, committed, strict=True):
            check_aligned(name, values, expected)
        overlaps = {" ∩ ".join(names): count for names, count in found.overlaps.items()}
        write_bytes(self._work / "samples.txt", "\n".join(found.samples).encode())
        return {"aligned": len(found.samples), "samples": expected, "overlaps": overlaps}

    async def _commit(self, name: str, pseudonyms: Sequence[str | None]) -> dict[str, Any]:
        stream = await self._stream(name)
        data = b"".join(bytes.fromhex(text) if text else bytes(16) for text in pseudonyms)
        values: dict[str, Any] = {}
        for at in range(0, len(data), CHUNK_BYTES):
            last = at + CHUNK_BYTES >= len(data)
            values, _ = await stream.call("align commit", {"last": last}, [data[at : at + CHUNK_BYTES]])
        return values

    async def _split(self) -> Mapping[str, Any]:
        settings = self.settings
        streams = {stream.name: stream for stream in await self._all()}
        holder = streams[settings.labels.holder]
        known = [] if self._reused is None else [self._trained_rows(self._reused)]
        names = {} if self._reused is None else {"class_names": [str(name) for name in self._reused.labels]}
        values, rows = await holder.call("split", names, known)
        class_names = [str(name) for name in values["class_names"]]
        aligned = self._state["done"]["align"]["aligned"]
        if any(part.ndim != 1 for part in rows) or sorted(np.concatenate(rows).tolist()) != list(range(aligned)):
            raise PartyRefusedError(holder.name, f"its split is not one of the {aligned} aligned samples")
        _, (labels,) = await holder.call("labels", {"part": "train", "class_names": class_names}, [rows[0]])
        check_labels(holder.name, labels, len(rows[0]), len(class_names))
        # In "shared" the coordinator needs the labels for its head; in "private" it has randomised ones.
        write_npz(self._work / "split.npz", {**dict(zip("abc", rows, strict=True)), "labels": labels}, compress=True)
        await self._close()  # the streams are opened again with the split
        sizes = dict(zip(("train", "calibration", "test"), map(len, rows), strict=True))
        return {"class_names": class_names, "integer_labels": bool(values["integer_labels"]), **sizes}

    def _trained_rows(self, version: RunFolder) -> Array:
        """The aligned samples that trained a version's models: they neither calibrate nor test."""
        before = (version.work / "samples.txt").read_text().split("\n")
        trained = {before[row] for row in read_table(version.work / "split.npz").array("a").tolist()}
        samples = (self._work / "samples.txt").read_text().split("\n")
        return np.array([row for row, name in enumerate(samples) if name in trained], dtype=np.int64)

    # ---- train --------------------------------------------------------------------------------------

    async def _local(self) -> Mapping[str, Any]:
        done = await self._each("local")
        return {"seconds": {n: round(float(v["seconds"]), 3) for n, (v, _) in zip(self._names, done, strict=True)}}

    def _trainer(self) -> RouteTrainer:
        plan, epsilon = self.settings.training, self.settings.labels.epsilon
        settings = plan.route_settings(self._state["done"]["split"]["train"], len(self._class_names), epsilon)
        return RouteTrainer(settings, plan.seed, CheckpointStore(self._work), self.progress, "cpu")

    async def _strong(self) -> Mapping[str, Any]:
        """Train encoders and head, then the masked head, and write both heads."""
        trainer, labels = self._trainer(), torch.from_numpy(self._train_labels)
        fit, classes = trainer.settings.vfl, len(self._class_names)
        spec = fusion_spec(len(self._names), classes, fit)
        samples, plan = self._state["done"]["align"]["samples"], self.settings.training
        stage = trainer.stage("vfl", spec, fit, samples, plan)
        with stage.initial():
            head = build_model(spec)
        began, loop = time.monotonic(), asyncio.get_running_loop()
        saved = stage.checkpoint.load()
        await self._load_encoders(0 if saved is None else saved.epochs)
        if plan.exchange == "gradients":
            parties = RemoteParties(await self._all(), 8 * fit.width, plan.messages, loop)
            server = FusionServer(head, labels, fit)
            await asyncio.to_thread(train_split, stage, parties, server, len(labels), fit)
            embeddings = await self._embeddings(len(labels), 8 * fit.width)
        else:
            embeddings = await self._embeddings(len(labels), 8 * fit.width)

            def loss(rows: torch.Tensor) -> torch.Tensor:
                return label_loss(head([embedding[rows] for embedding in embeddings]), labels[rows], fit)

            await asyncio.to_thread(stage.fit, head, fit, len(labels), lambda _: loss)
        masked_stage = trainer.stage("masked head", spec, trainer.settings.masked, fit, samples, plan)
        masked = await asyncio.to_thread(
            train_masked, masked_stage, spec, embeddings, labels, trainer.settings.masked
        )  # fmt: skip
        save_model(head, spec, self.run_folder.server.head)
        save_model(masked, spec, self.run_folder.server.masked_head)
        epochs = round(trainer.store.seconds().get("vfl", 0.0), 3)
        seconds = round(time.monotonic() - began, 3)
        return {"seconds": seconds, "epoch_seconds": epochs, "epochs": fit.epochs, "dimension": 8 * fit.width}

    async def _load_encoders(self, epochs: int) -> None:
        """Every party loads its encoder as it was after `epochs`; without gradients it trains, or loads, its own."""
        if self.settings.training.exchange == "gradients":
            await self._each("begin", {"epochs": epochs})
        else:
            await self._each("encoder")

    async def _by_row(self, kind: str, count: int, width: int) -> list[Array]:
        """(count, width) numbers of every party, in chunks."""

        async def of(stream: TrainingStream) -> Array:
            parts: list[Array] = []
            while (first := sum(map(len, parts))) < count:
                _, (part,) = await stream.call(kind, {"first": first})
                if part.ndim != 2 or part.shape[1] != width or not 0 < len(part) <= count - first:
                    raise PartyRefusedError(
                        stream.name,
                        f"it answered {kind!r} with shape {part.shape} from row {first} on; ({count}, {width}) in all "
                        "are expected",
                    )
                parts.append(part)
            return np.concatenate(parts)

        return list(await asyncio.gather(*map(of, await self._all())))

    async def _embeddings(self, count: int, dimension: int) -> list[torch.Tensor]:
        return [torch.from_numpy(values) for values in await self._by_row("embed", count, dimension)]

    # ---- deploy and calibrate -----------------------------------------------------------------------

    async def _deploy(self) -> Mapping[str, Any]:
        run, reused = self.run_folder, self._reused
        if reused is not None:
            for file, source in zip(run.server.heads, reused.server.heads, strict=True):
                write_bytes(file, source.read_bytes())
        else:
            await self._load_encoders(self._trainer().settings.vfl.epochs)
        deployed = await self._each("deploy", self._reuse)
        split = self._state["done"]["split"]
        labels = given_labels(self._class_names, integers=split["integer_labels"])
        write_json(run.description, {"party_names": self._names, "class_names": labels})
        models = {name: str(values["model"]) for name, (values, _) in zip(self._names, deployed, strict=True)}
        return {"models": {**models, SERVER: run.server.model_hash()}}

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[list[PartyConnection]]:
        connections = [connect(party.name, party.address, self.settings.tls) for party in self.settings.party]
        try:
            yield connections
        finally:
            for connection in connections:
                with contextlib.suppress(Exception):
                    await connection.close()

    async def _calibrate(self) -> Mapping[str, Any]:
        """Ask for the held-out samples as in service, and have the label holder fit the router.

        Round 1 on the training part helps to fit it, unless labels are private: a router that is fitted to more of them
        tells more about them.
        """
        models, codec = self._state["done"]["deploy"]["models"], self.settings.training.codec
        fusion, request = load_fusion(self.run_folder.server.path), f"calibrate-{uuid4().hex[:12]}"
        samples = (self._work / "samples.txt").read_text().split("\n")
        holder = await self._stream(self.settings.labels.holder)
        answered: dict[str, tuple[Array, Array, list[Array]]] = {}
        await self._all()  # while a party trains, it gives embeddings beyond the agreed share
        async with self._serving() as connections:

            async def posteriors(ids: list[str]) -> Array:
                asked = (c.posteriors(ids, model=models[c.name], request_id=request) for c in connections)
                return np.stack([reply.values for reply in await asyncio.gather(*asked)])

            if self.settings.labels.access != "private":
                chosen = training_rows(len(self._rows[0]), len(connections), len(self._class_names))
                rows = self._rows[0][chosen]
                local = await posteriors([samples[row] for row in rows.tolist()])
                self._trained_answers = LocalAnswers(self._train_labels[chosen], local)
                await self._send_answers(holder, "train", rows, local)
            for part, rows in zip(("calibration", "test"), self._rows[1:], strict=True):
                ids = [samples[row] for row in rows.tolist()]
                local = await posteriors(ids)
                sent = await asyncio.gather(
                    *(c.embeddings(ids, model=models[c.name], codec=codec, request_id=request) for c in connections)
                )
                embeddings = [reply.values for reply in sent]
                strong = fusion(embeddings)
                answered[part] = local, strong, embeddings
                by_subset = answer_subsets(fusion, embeddings) if part == "calibration" else {}
                wanted = [by_subset[s] for s in calibrated_subsets(len(connections)) if s in by_subset]
                await self._send_answers(holder, part, rows, local, strong, np.stack(wanted) if wanted else None)
        integers = self._state["done"]["split"]["integer_labels"]
        options = {"models": models, "class_names": self._class_names, "integer_labels": integers}
        results, (router,) = await holder.call("calibrate", options)
        if self.settings.labels.access != "private":
            self._answers = await self._labelled(holder, fusion, answered, samples)
            if self._reused is None:
                labels = self._answers["test"].labels
                by_view = await self._by_row("yardstick", len(labels), len(self._class_names))
                self._yardstick = {"logistic_regression": pooled_accuracy(by_view, labels)}
        write_bytes(self.run_folder.server.router, router.tobytes())
        write_bytes(self.run_folder.path / "coordinator.toml", self._coordinator_settings().encode())
        return results

    async def _send_answers(
        self,
        holder: TrainingStream,
        part: str,
        rows: Array,
        local: Array,
        strong: Array | None = None,
        by_subset: Array | None = None,
    ) -> None:
        """Send the label holder the answers on a part, in messages of a bounded size."""
        parties, _, classes = local.shape
        size = max(1, CHUNK_BYTES // (4 * classes * (parties + 1)))
        for at in range(0, len(rows), size):
            piece = slice(at, at + size)
            sent = [rows[piece], local[:, piece]]
            sent += [] if strong is None else [strong[piece]]
            sent += [] if by_subset is None else [by_subset[:, piece]]
            await holder.call("answers", {"part": part}, sent)

    def _coordinator_settings(self) -> str:
        """Settings with which `gainroute coordinator` serves this version."""
        tls, run = self.settings.tls, self.run_folder
        about = "# Serves this version to clients on this machine. All settings: deploy/coordinator.example.toml\n"
        folder = {"folder": run.path.absolute().parent}  # of all versions, so that admin calls can switch
        return about + settings_text(
            {
                "server": {"without_tokens": True},
                "router": {"artifact": run.server.router.absolute(), **folder},
                "fusion": {"run": run.server.path.absolute()},
                "federation": {"out": self.settings.out.absolute()},
                "tls": {name: getattr(tls, name) for name in ("ca", "certificate", "key")},
                "party": [{"name": party.name, "address": party.address} for party in self.settings.party],
            }
        )

    async def _labelled(
        self,
        holder: TrainingStream,
        fusion: TrainedFusion,
        answered: Mapping[str, tuple[Array, Array, list[Array]]],
        samples: Sequence[str],
    ) -> dict[str, RouteAnswers]:
        """The answers with their labels, for the record; not if labels are private."""
        found = {}
        for (part, (local, strong, embeddings)), rows in zip(answered.items(), self._rows[1:], strict=True):
            _, (labels,) = await holder.call("labels", {"part": part, "class_names": self._class_names}, [rows])
            check_labels(holder.name, labels, len(rows), len(self._class_names))
            ids = np.array([samples[row] for row in rows.tolist()])
            subsets = answer_subsets(fusion, embeddings)
            found[part] = RouteAnswers.from_posteriors(ids, labels, local, strong, subsets)
        return found
