"""Both routes, trained from prepared data: local classifiers, VFL, masked head, learning to defer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gainroute._util.arrays import Float32Array
from gainroute._util.progress import Progress
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.classifiers import Loss, classification, train_classifier
from gainroute.training.data.splits import stratified_split
from gainroute.training.defer import alpha_key, defer_loss
from gainroute.training.masked import train_masked
from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import derive
from gainroute.training.settings import LocalSettings, RouteSettings, VflSettings
from gainroute.training.sklearn_models import Estimators, fit_estimator
from gainroute.training.split_learning import FusionServer, HeldParties, InProcessParties, TrainingParty, train_split
from gainroute.training.stage import TrainingStage
from gainroute.training.training_view import TrainingView, forward_all

__all__ = [
    "RouteTrainer",
    "Routes",
    "StartParties",
    "StrongRoute",
    "TrainingData",
    "encoder_spec",
    "fusion_spec",
    "local_spec",
    "predict",
    "start_in_process",
    "start_party",
    "train_routes",
]


@dataclass(frozen=True)
class TrainingData:
    """What the parties train on, aligned by row.

    Attributes
    ----------
    views
        One per party.
    labels
        (N,).
    classes
        Number of classes, K.
    party_names
        In the order of the views.
    fingerprint
        Identifies the data: a checkpoint made with another fingerprint is not resumed.
    """

    views: tuple[TrainingView, ...]
    labels: IntArray
    classes: int
    party_names: tuple[str, ...]
    fingerprint: str

    def take(self, rows: IntArray, fingerprint: str) -> TrainingData:
        """Only these samples."""
        views = tuple(view.take(rows) for view in self.views)
        return TrainingData(
            views, self.labels[rows], self.classes, self.party_names, f"{self.fingerprint}/{fingerprint}"
        )


@dataclass(frozen=True)
class StrongRoute:
    """Round 2: one encoder per party and the head that fuses their embeddings."""

    encoders: tuple[nn.Module, ...]
    encoder_specs: tuple[ModelSpec, ...]
    head: nn.Module
    head_spec: ModelSpec

    def embed(self, views: Sequence[npt.NDArray[np.float32]], device: str = "cpu") -> list[Tensor]:
        """Embeddings, one (N, dᵢ) per party, on the CPU."""
        return [forward_all(encoder, view, device) for encoder, view in zip(self.encoders, views, strict=True)]


@dataclass(frozen=True)
class Routes:
    """Everything trained for one seed."""

    local: tuple[nn.Module, ...]
    local_specs: tuple[ModelSpec, ...]
    strong: StrongRoute
    masked: nn.Module
    masked_spec: ModelSpec
    defer: dict[str, tuple[nn.Module, ...]]


def local_spec(view: TrainingView, outputs: int, settings: LocalSettings) -> ModelSpec:
    """The light classifier for a view."""
    shape = view.clean.shape[1:]
    if len(shape) == 1:
        options = {"features": shape[0], "outputs": outputs, "widths": list(settings.hidden)}
        return ModelSpec("local-mlp", {**options, "dropout": settings.dropout})
    options = {"channels": shape[0], "size": max(shape[1:]), "outputs": outputs, "widths": list(settings.widths)}
    return ModelSpec("local-cnn", {**options, "dropout": settings.dropout, "smallest": settings.smallest})


def _stem(stem: str, size: int) -> str:
    """The stem of the settings; "auto" selects the one that passes maps of about 8 × 8 to the first stage."""
    if stem != "auto":
        return stem
    fitting = {12: "3x3", 24: "3x3-pool", 48: "3x3-stride2-pool"}
    return next((name for limit, name in fitting.items() if size <= limit), "7x7-stride2-pool")


def encoder_spec(view: TrainingView, settings: VflSettings) -> ModelSpec:
    """The encoder for a view; its embeddings have 8 × width values."""
    shape = view.clean.shape[1:]
    if len(shape) == 1:
        return ModelSpec("mlp-encoder", {"features": shape[0], "width": settings.width})
    stem = _stem(settings.stem, min(shape[1:]))
    options = {"channels": shape[0], "width": settings.width, "stem": stem, "norm": settings.norm}
    return ModelSpec("resnet18", {**options, "smooth": settings.smooth})


def start_party(
    stage: TrainingStage, name: str, view: TrainingView, labels: Tensor, classes: int, fit: VflSettings, parties: int
) -> TrainingParty:
    """A party at the start of split training. Its weights are drawn from a seed of its own, wherever it runs."""
    spec = encoder_spec(view, fit)
    with stage.initial(name):
        encoder = build_model(spec)
        auxiliary = nn.Linear(8 * fit.width, classes) if fit.auxiliary > 0 else None
    share = fit.auxiliary / parties
    return TrainingParty(encoder, view, labels, fit, auxiliary=auxiliary, share=share, device=stage.device)


def fusion_spec(parties: int, classes: int, fit: VflSettings) -> ModelSpec:
    """The fusion head for that many parties."""
    options = {"dimensions": [8 * fit.width] * parties, "latent": fit.latent, "classes": classes}
    return ModelSpec("fusion", {**options, "dropout": fit.dropout})


StartParties = Callable[[TrainingStage, TrainingData, VflSettings], HeldParties]
"""Starts all parties of split training, where they are to run."""


def start_in_process(stage: TrainingStage, data: TrainingData, fit: VflSettings) -> InProcessParties:
    """All parties at the start of split training, in this process."""
    labels = torch.from_numpy(data.labels)
    return InProcessParties(
        {
            party: start_party(stage, party, view, labels, data.classes, fit, len(data.views))
            for party, view in zip(data.party_names, data.views, strict=True)
        }
    )


@dataclass(frozen=True)
class RouteTrainer:
    """What all stages of one seed share."""

    settings: RouteSettings
    seed: int
    store: CheckpointStore
    progress: Progress
    device: str
    start: StartParties = start_in_process

    def stage(self, name: str, *determinants: object) -> TrainingStage:
        """A stage whose checkpoint depends on the seed and on `determinants`."""
        checkpoint = self.store.checkpoint(name, self.seed, *determinants)
        return TrainingStage(name, self.seed, checkpoint, self.progress, self.device)

    def local(
        self, data: TrainingData, outputs: int, loss: Loss, name: str, *determinants: object
    ) -> tuple[nn.Module, ...]:
        """One classifier per party."""
        return tuple(
            self.local_of(party, view, outputs, loss, name, data.fingerprint, *determinants)
            for view, party in zip(data.views, data.party_names, strict=True)
        )

    def defer(
        self, data: TrainingData, correct: npt.NDArray[np.bool_], alpha: float, key: str
    ) -> tuple[nn.Module, ...]:
        """One classifier with a defer output per party; `correct` (N,) says where the expert is right."""
        settings = self.settings
        local = replace(settings.local, epochs=settings.defer.epochs or settings.local.epochs)
        labels = torch.from_numpy(data.labels).to(self.device)
        loss = defer_loss(labels, torch.from_numpy(correct).to(self.device), alpha)
        trainer = replace(self, settings=replace(settings, local=local))
        return trainer.local(data, data.classes + 1, loss, f"defer {key}", settings.vfl)

    def local_of(
        self, party: str, view: TrainingView, outputs: int, loss: Loss, name: str, *determinants: object
    ) -> nn.Module:
        """The classifier of one party."""
        fit = self.settings.local
        spec = local_spec(view, outputs, fit)
        stage = self.stage(f"{name} {party}", spec, fit, *determinants)
        return train_classifier(stage, spec, view, loss, fit)

    def strong(self, data: TrainingData, name: str) -> StrongRoute:
        """Encoders and fusion head by split training."""
        fit = self.settings.vfl
        specs = tuple(encoder_spec(view, fit) for view in data.views)
        head_spec = fusion_spec(len(specs), data.classes, fit)
        stage = self.stage(name, specs, head_spec, fit, data.fingerprint)
        labels = torch.from_numpy(data.labels)
        parties = self.start(stage, data, fit)
        with stage.initial():
            head = build_model(head_spec)
        server = FusionServer(head, labels, fit, self.device)
        train_split(stage, parties, server, len(labels), fit)
        return StrongRoute(parties.encoders(), specs, head, head_spec)

    def local_estimators(
        self, data: TrainingData, estimators: Estimators
    ) -> tuple[tuple[ModelSpec, ...], tuple[nn.Module, ...]]:
        """Descriptions and models of a fitted estimator per party."""
        self.progress.start("local", len(data.views))
        fitted = []
        for party, view, held_out in zip(data.party_names, data.views, estimators.held_out, strict=True):
            name = f"local {party}"
            fitted.append(self._estimator(estimators.local, view.clean, held_out, data, name))
            self.progress.advance(party)
        specs, models = zip(*fitted, strict=True)
        return specs, models

    def fused_estimator(
        self, data: TrainingData, estimators: Estimators, strong: StrongRoute, embeddings: Sequence[Tensor]
    ) -> StrongRoute:
        """The strong route with an estimator as its head, fitted on embeddings of the training part."""
        self.progress.start("fused", 1)
        held_out = torch.cat(strong.embed(estimators.held_out, self.device), dim=1).numpy()
        inputs = torch.cat(list(embeddings), dim=1).numpy()
        spec, model = self._estimator(estimators.fused, inputs, held_out, data, "fused")
        options = {"dimensions": [embedding.shape[1] for embedding in embeddings], "model": asdict(spec)}
        head_spec = ModelSpec("concatenated", options)
        head = build_model(head_spec)
        head.load_state_dict({f"classify.{key}": value for key, value in model.state_dict().items()})
        self.progress.advance()
        return replace(strong, head=head.eval(), head_spec=head_spec)

    def _estimator(
        self, estimator: Any, inputs: Float32Array, held_out: Float32Array, data: TrainingData, name: str
    ) -> tuple[ModelSpec, nn.Module]:
        seed = derive(self.seed, name, "estimator") % 2**32
        return fit_estimator(estimator, inputs, data.labels, held_out, classes=data.classes, seed=seed, name=name)

    def crossfitted(self, data: TrainingData) -> npt.NDArray[np.bool_]:
        """Whether a VFL route that was not trained on a sample gets it right: two folds, each judged by the other."""
        correct = np.zeros(len(data.labels), dtype=bool)
        folds = stratified_split(data.labels, 0.5, derive(self.seed, "folds") % 2**32)
        for index, (inside, outside) in enumerate((folds, folds[::-1])):
            route = self.strong(data.take(inside, f"fold{index}"), f"vfl fold {index}")
            embeddings = route.embed([view.clean[outside] for view in data.views], self.device)
            correct[outside] = predict(route.head, embeddings, self.device).argmax(axis=1) == data.labels[outside]
        return correct


def predict(
    head: nn.Module, embeddings: Sequence[Tensor], device: str, present: Tensor | None = None
) -> npt.NDArray[np.float32]:
    """Posteriors (N, K) of a fusion head; `present` (M,) where parties are absent."""
    head.eval()
    outputs = []
    with torch.inference_mode():
        for first in range(0, len(embeddings[0]), 1024):
            batch = [embedding[first : first + 1024].to(device) for embedding in embeddings]
            mask = None if present is None else present.to(device).expand(len(batch[0]), -1)
            outputs.append(head(batch, mask).softmax(dim=1).cpu())
    posterior: npt.NDArray[np.float32] = torch.cat(outputs).numpy()
    return posterior


def train_routes(
    data: TrainingData,
    settings: RouteSettings,
    *,
    seed: int,
    store: CheckpointStore,
    progress: Progress,
    device: str = "cpu",
    estimators: Estimators | None = None,
    start: StartParties = start_in_process,
) -> Routes:
    """Train everything for one seed; finished stages are loaded, an interrupted one is resumed.

    Parameters
    ----------
    data
        The training part.
    settings
        Of every stage.
    seed
        Of all randomness.
    store
        Where checkpoints are kept.
    progress, device
        Where progress is reported, and a torch device.
    estimators
        scikit-learn estimators in place of local networks, of the fusion head, or of both. They are fitted again if the
        run is resumed, with the same seeds.
    start
        Where the parties run during split training.
    """
    trainer, replaced = RouteTrainer(settings, seed, store, progress, device, start), estimators or Estimators()
    labels = torch.from_numpy(data.labels).to(device)
    if replaced.local is None:
        local = trainer.local(data, data.classes, classification(labels, settings.local), "local")
        specs = tuple(local_spec(view, data.classes, settings.local) for view in data.views)
    else:
        specs, local = trainer.local_estimators(data, replaced)
    strong = trainer.strong(data, "vfl")
    embeddings = strong.embed([view.clean for view in data.views], device)
    masked_spec = strong.head_spec
    stage = trainer.stage("masked head", masked_spec, settings.masked, settings.vfl, data.fingerprint)
    masked = train_masked(stage, masked_spec, embeddings, torch.from_numpy(data.labels), settings.masked)
    if replaced.fused is not None:
        strong = trainer.fused_estimator(data, replaced, strong, embeddings)
    experts = {False: predict(strong.head, embeddings, device).argmax(axis=1) == data.labels}
    if seed in settings.defer.crossfit_seeds:
        experts[True] = trainer.crossfitted(data)
    kinds = [(alpha, crossfit) for crossfit in experts for alpha in settings.defer.alphas]
    keys = [alpha_key(alpha, crossfit=crossfit) for alpha, crossfit in kinds]
    defer = {
        key: trainer.defer(data, experts[crossfit], alpha, key)
        for key, (alpha, crossfit) in zip(keys, kinds, strict=True)
    }
    return Routes(local, specs, strong, masked, masked_spec, defer)
