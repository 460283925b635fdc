"""The party's side of forming a federation: one method per task. Views, encoders and real ids stay here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gainroute._util.files import kept_secret
from gainroute._util.hashing import hash_text
from gainroute._util.progress import ReportedProgress
from gainroute._util.settings import build_settings
from gainroute.errors import DataError, GainrouteError, InputError
from gainroute.federation.formation.alignment import PartyAlignment
from gainroute.federation.formation.groups import P256
from gainroute.federation.formation.holder_router import HeldOutAnswers
from gainroute.federation.formation.party_labels import PartyLabels, own_data
from gainroute.federation.formation.plan import NAME, FormationPlan, LabelSettings
from gainroute.federation.formation.pseudonyms import REALIGN, PseudonymTable
from gainroute.federation.formation.tasks import CHUNK_BYTES, Array
from gainroute.federation.party.settings import TrainingSettings
from gainroute.federation.pki.signatures import Trust, load_key, sign, signer_name, verified
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.preprocess import apply_preprocess, fit_preprocess, preprocess_from_json
from gainroute.io.run_folder import PartyFolder, read_json
from gainroute.io.views import PartyView, read_view
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import Checkpoint, CheckpointState, CheckpointStore, gather, scatter
from gainroute.training.classifiers import classification
from gainroute.training.optimise import threads as torch_threads
from gainroute.training.prepare import encode_labels
from gainroute.training.routes import RouteTrainer, encoder_spec, local_spec, start_party
from gainroute.training.settings import RouteSettings
from gainroute.training.split_learning import TrainingParty
from gainroute.training.trained_run import renew_party, write_party
from gainroute.training.training_view import TrainingView, forward_all
from gainroute.training.yardstick import logistic_posteriors

__all__ = ["PartyTrainer", "Report", "TaskAnswer"]

log = logging.getLogger(__name__)

Report = Callable[[Mapping[str, Any]], None]
TaskAnswer = tuple[Mapping[str, Any], Sequence["Array | bytes"]]

# Torch's random state is that of the process: several parties in one process take turns.
ONE_AT_A_TIME = threading.Lock()


@dataclass
class _Prepared:
    """What the party trains on, after the split."""

    class_names: tuple[str, ...]
    rows: tuple[IntArray, IntArray, IntArray]
    inputs: Array
    preprocess: Any
    view: TrainingView
    labels: torch.Tensor
    settings: RouteSettings
    trainer: RouteTrainer
    fingerprint: str
    yardstick: Array | None = None


class PartyTrainer:
    """Carries out the tasks of one coordinator, one after the other.

    Parameters
    ----------
    name
        Of the party.
    settings
        What it trains on, and its limits.
    models
        Where trained versions are kept, and served from.
    report
        Receives progress while a task runs.
    """

    def __init__(self, name: str, settings: TrainingSettings, models: Path, report: Report) -> None:
        self._name, self._settings, self._models, self._report = name, settings, models, report
        self._tasks: dict[str, Callable[[Mapping[str, Any], list[Array]], TaskAnswer]] = {
            "open": self._open, "align": self._align, "align own": self._align_own, "align mask": self._align_mask,
            "align commit": self._align_commit, "split": self._split, "labels": self._labels,
            "prepare": self._prepare, "local": self._local, "begin": self._begin, "epoch": self._epoch,
            "gradient": self._gradient, "encoder": self._encoder, "embed": self._embed, "yardstick": self._yardstick,
            "deploy": self._deploy, "answers": self._receive_answers, "calibrate": self._calibrate,
        }  # fmt: skip
        self._alignment: PartyAlignment | None = None
        self._prepared: _Prepared | None = None
        self._training: TrainingParty | None = None
        self._batches: Iterator[IntArray] = iter(())
        self._number, self._shape = 0, (0, 0)
        self._federation = ""
        self._named: list[str | None] = []
        self._answers = HeldOutAnswers()

    def work(self, kind: str, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        """Carry out a task; raises GainrouteError if it cannot be."""
        if kind not in self._tasks:
            raise InputError(f"task {kind[:40]!r} is unknown; known are {', '.join(self._tasks)}")
        if kind != "open" and not self._federation:
            raise InputError("the first task on a stream is 'open'")
        try:
            with ONE_AT_A_TIME, torch_threads(self._plan.threads if self._federation else 1):
                return self._tasks[kind](options, arrays)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, GainrouteError):
                raise
            raise InputError(f"task {kind!r} has options or arrays that do not fit ({type(error).__name__})") from error

    @property
    def codec(self) -> str:
        """Codec of embeddings that are sent."""
        return self._plan.messages if self._federation else "float32"

    # ---- the run ------------------------------------------------------------------------------------

    def _open(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        names = [str(options[key]) for key in ("federation", "version")]
        if not all(map(NAME.fullmatch, names)):
            raise InputError(f"federation and version are {names}; lower-case letters, digits, '.', '_', '-' only")
        self._plan = build_settings(FormationPlan, options["plan"], "plan", Path())
        self._label_access = build_settings(LabelSettings, options["labels"], "labels", Path())
        self._parties = int(options["parties"])
        self._federation, self._version = names
        self._folder = self._settings.folder / self._federation
        values: dict[str, Any] = {"labels": self._settings.labels is not None, "aligned": 0}
        if (self._folder / "aligned.npz").exists():
            table = self._table
            values |= {"aligned": len(table.pseudonyms), "fingerprint": table.fingerprint, "samples": _samples(table)}
        return values, []

    @cached_property
    def _view(self) -> PartyView:
        settings = self._settings
        assert settings.views is not None  # noqa: S101 (checked by the settings)
        with own_data():
            view = read_view(settings.views, id_column=settings.id_column, label_column=settings.label_column)
            if view.ids is None:
                raise DataError(f"{settings.views} has no ids: samples are aligned by id")
        return view

    # ---- alignment ----------------------------------------------------------------------------------

    def _align(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        key = kept_secret(self._folder / "alignment.key", P256.new_key, REALIGN)
        limit = min(self._settings.max_ids, int(options["max_ids"]))
        self.__dict__.pop("_view", None)  # a new alignment reads the data anew
        assert self._view.ids is not None  # noqa: S101 (for the type checker)
        self._named = []
        with own_data():
            self._alignment = PartyAlignment(self._view.ids.tolist(), key, parties=self._parties, max_ids=limit)
        return {"ids": len(self._alignment), "group": P256.name}, []

    @property
    def _aligning(self) -> PartyAlignment:
        if self._alignment is None:
            raise InputError("the task 'align' comes first")
        return self._alignment

    def _align_own(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        return {}, [self._aligning.own(int(options["first"]), CHUNK_BYTES // 4 // P256.element_bytes)]

    def _align_mask(self, _: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        return {}, [self._aligning.mask(arrays[0].tobytes())]

    def _align_commit(self, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        self._named += [row.tobytes().hex() if row.any() else None for row in arrays[0].reshape(-1, 16)]
        if not options["last"]:
            return {}, []
        named, self._named = self._named, []
        table = self._aligning.commit(named, self._view.raw)
        table.save(self._folder / "aligned.npz")
        self._alignment = None
        self.__dict__.pop("_table", None)
        return {"aligned": len(table.pseudonyms), "fingerprint": table.fingerprint, "samples": _samples(table)}, []

    @cached_property
    def _table(self) -> PseudonymTable:
        if not (self._folder / "aligned.npz").exists():
            raise DataError("this party has not aligned its ids: the task 'align' comes first")
        return PseudonymTable.load(self._folder / "aligned.npz")

    # ---- labels -------------------------------------------------------------------------------------

    @property
    def _held(self) -> PartyLabels:
        return PartyLabels(self._settings, self._label_access, self._table, self._folder)

    def _split(self, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        known = tuple(str(name) for name in options.get("class_names", ()))
        class_names, integers, rows = self._held.split(self._plan, known, *arrays)
        return {"class_names": class_names, "integer_labels": integers}, rows

    def _labels(self, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        classes = [str(name) for name in options["class_names"]]
        if self._label_access.access == "private" and options["part"] != "train":
            raise InputError("labels are private: only training labels leave this party, randomised")
        codes = encode_labels(self._held.values(), classes)
        return {}, [self._held.given_out(codes, len(classes))[arrays[0]]]

    # ---- training -----------------------------------------------------------------------------------

    def _prepare(self, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        view, table, plan = self._view, self._table, self._plan
        assert view.ids is not None  # noqa: S101 (for the type checker)
        table.require_unchanged(view.ids.tolist(), view.raw)
        rows = rows_by_id(id_texts(view.ids.tolist()), "views")
        aligned = view.take(np.array([rows[name] for name in table.ids]))
        train, held, test = arrays[:3]
        if sorted(np.concatenate([train, held, test]).tolist()) != list(range(len(table.ids))):
            raise InputError("the parts do not contain every aligned sample exactly once")
        classes = tuple(str(name) for name in options["class_names"])
        shared = self._label_access.access == "shared"
        labels = encode_labels(self._held.values(), classes)[train] if shared else arrays[3]
        if labels.shape != train.shape or not np.isin(labels, np.arange(len(classes))).all():
            raise InputError(f"{len(labels)} labels for {len(train)} training samples of {len(classes)} classes")
        with own_data():
            if "models_of" in options:
                described = read_json(self._version_folder(options["models_of"]).description)
                preprocess = preprocess_from_json(described["preprocess"])
            else:
                preprocess = fit_preprocess(aligned.take(train).raw, self._settings.kind)
            inputs = apply_preprocess(preprocess, aligned.raw)
        settings = plan.route_settings(len(train), len(classes), self._label_access.epsilon)
        fingerprint = hash_text(repr((table.fingerprint, [a.tobytes() for a in (train, held, test, labels)])))
        store = CheckpointStore(self._folder / "work")
        trainer = RouteTrainer(settings, plan.seed, store, ReportedProgress(self._report), "cpu")
        self._prepared = _Prepared(
            classes, (train, held, test), inputs, preprocess, TrainingView(inputs[train], train),
            torch.from_numpy(labels), settings, trainer, fingerprint,
        )  # fmt: skip
        self._training = None
        return {"fingerprint": fingerprint}, []

    @property
    def _ready(self) -> _Prepared:
        if self._prepared is None:
            raise InputError("the task 'prepare' comes first")
        return self._prepared

    def _local_model(self) -> torch.nn.Module:
        ready = self._ready
        loss = classification(ready.labels, ready.settings.local)
        classes = len(ready.class_names)
        return ready.trainer.local_of(self._name, ready.view, classes, loss, "local", ready.fingerprint)

    def _local(self, _: Mapping[str, Any], __: list[Array]) -> TaskAnswer:
        self._local_model()
        return {"seconds": sum(self._ready.trainer.store.seconds().values())}, []

    def _start(self) -> TrainingParty:
        ready = self._ready
        fit, stage = ready.settings.vfl, ready.trainer.stage("vfl")
        return start_party(stage, self._name, ready.view, ready.labels, len(ready.class_names), fit, self._parties)

    def _checkpoint(self, epochs: int) -> Checkpoint:
        """Two files by turns: whichever epoch the coordinator has completed, its state is still there."""
        determinants = self._ready.settings.vfl, self._ready.fingerprint, self._plan, self._parties
        return self._ready.trainer.store.checkpoint(f"vfl {self._name} {epochs % 2}", self._plan.seed, *determinants)

    def _begin(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        party, done = self._start(), int(options["epochs"])
        if done:
            saved = self._checkpoint(done).load()
            if saved is None or saved.epochs != done:
                raise DataError(f"this party has no checkpoint of epoch {done}: start the next version with --again")
            scatter(party.state(), saved.tensors)
        self._training = party
        return {}, []

    def _epoch(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        ready, stage, party = self._ready, self._ready.trainer.stage("vfl"), self._split_party
        self._number = int(options["number"])
        party.begin_epoch(stage.view_seed, self._number)
        self._batches = stage.batches(len(ready.view.clean), ready.settings.vfl, self._number)
        return self._forward(party)

    def _gradient(self, _: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        party, gradient = self._split_party, arrays[0]
        if gradient.shape != self._shape or not np.abs(gradient).max() <= self._settings.max_gradient:
            raise InputError(
                f"a gradient of shape {gradient.shape}, up to {np.abs(gradient).max(initial=0):g}; shape {self._shape} "
                f"and at most training.max_gradient = {self._settings.max_gradient:g} are allowed"
            )
        party.backward(torch.from_numpy(gradient))
        return self._forward(party)

    def _forward(self, party: TrainingParty) -> TaskAnswer:
        rows = next(self._batches, None)
        if rows is None:
            self._shape = (0, 0)
            self._checkpoint(self._number + 1).save(CheckpointState(self._number + 1, 0.0, gather(party.state())))
            return {"epochs": self._number + 1}, []
        embedding = party.forward(rows).numpy()
        self._shape = embedding.shape
        return {}, [embedding]

    @property
    def _split_party(self) -> TrainingParty:
        if self._training is None:
            raise InputError("the task 'begin' comes first")
        return self._training

    def _encoder(self, _: Mapping[str, Any], __: list[Array]) -> TaskAnswer:
        """Train the encoder with the party's own loss only."""
        ready, party = self._ready, self._start()
        determinants = ready.settings.vfl, ready.fingerprint
        stage = ready.trainer.stage(f"encoder {self._name}", *determinants)
        party.train_alone(stage)
        self._training = party
        return {}, []

    def _embed(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        first, dimension = int(options["first"]), 8 * self._ready.settings.vfl.width
        # Whole batches of inference: the same rows are computed together as in `gainroute train`.
        count = max(1, CHUNK_BYTES // (4 * dimension * 512)) * 512
        part = self._ready.view.clean[first : first + count]
        return {}, [forward_all(self._split_party.encoder, part, "cpu").numpy()]

    def _yardstick(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        """Posteriors for the test part by logistic regression on this view: what Round 1 is compared with."""
        ready, first = self._ready, int(options["first"])
        classes, test = len(ready.class_names), ready.rows[2]
        if ready.yardstick is None:
            ready.yardstick = logistic_posteriors(
                ready.view.clean, ready.labels.numpy(), ready.inputs[test], classes, self._plan.seed
            )
        return {}, [ready.yardstick[first : first + max(1, CHUNK_BYTES // (4 * classes))]]

    # ---- deployment ---------------------------------------------------------------------------------

    def _version_folder(self, version: object) -> PartyFolder:
        if not NAME.fullmatch(str(version)):
            raise InputError(f"version is {str(version)[:40]!r}; lower-case letters, digits, '.', '_', '-' only")
        return PartyFolder(self._models / f"{self._federation}-{version}")

    def _deploy(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        ready, folder = self._ready, self._version_folder(self._version).path
        ids = np.array(self._table.pseudonyms)
        key = None if self._settings.signing_key is None else load_key(self._settings.signing_key)
        if "models_of" in options:
            # What is signed again has to be what was signed before.
            trust = None if key is None else Trust([signer_name(key)])
            with verified(self._version_folder(options["models_of"]).path, trust) as models:
                home = renew_party(folder, PartyFolder(models), ids=ids, inputs=ready.inputs)
        else:
            party = self._split_party
            party.finish()
            local = local_spec(ready.view, len(ready.class_names), ready.settings.local), self._local_model()
            encoder = encoder_spec(ready.view, ready.settings.vfl), party.encoder
            home = write_party(
                folder, self._name, ready.class_names, ready.preprocess, local=local, encoder=encoder, ids=ids,
                inputs=ready.inputs,
            )  # fmt: skip
        if key is not None:
            sign(home.path, key)
        return {"model": home.model_hash()}, []

    def _receive_answers(self, options: Mapping[str, Any], arrays: list[Array]) -> TaskAnswer:
        self._answers.receive(str(options["part"]), arrays)
        return {}, []

    def _calibrate(self, options: Mapping[str, Any], _: list[Array]) -> TaskAnswer:
        classes, path = [str(name) for name in options["class_names"]], self._folder / "router.safetensors"
        codes = encode_labels(self._held.values(), classes)
        results = self._answers.fit_router(
            self._table.pseudonyms, codes, classes, self._plan, options["models"], path,
            integers=bool(options["integer_labels"]),
        )  # fmt: skip
        return results, [path.read_bytes()]


def _samples(table: PseudonymTable) -> str:
    """A hash of the aligned samples: the same at every party."""
    return hash_text("\n".join(table.pseudonyms))
