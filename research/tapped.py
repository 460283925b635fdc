"""A federation in one process whose messages can be read: the training code of the package, with codecs as on the wire.

`form` does what `gainroute federate` does after alignment, with the same functions, seeds and order. It keeps what the
parties and the coordinator see, and can alter messages: with noise, by clipping, by error feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gainroute._util.progress import Progress
from gainroute.federation.formation.plan import FormationPlan
from gainroute.io.preprocess import apply_preprocess, fit_preprocess
from gainroute.io.views import PartyView
from gainroute.routing.payload import embedding_bytes, round_trip
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.classifiers import classification
from gainroute.training.label_privacy import randomise_labels
from gainroute.training.models.build import build_model
from gainroute.training.optimise import derive, label_loss
from gainroute.training.optimise import threads as torch_threads
from gainroute.training.prepare import split_rows
from gainroute.training.route_answers import RouteAnswers
from gainroute.training.routes import RouteTrainer, fusion_spec, predict, start_party
from gainroute.training.run import fit_router
from gainroute.training.split_learning import FusionServer, InProcessParties, TrainingParty, train_split
from gainroute.training.training_view import TrainingView, forward_all

__all__ = ["Case", "Formed", "Samples", "form"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """Aligned samples of all parties, raw."""

    name: str
    views: tuple[PartyView, ...]
    labels: npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a federation is formed, and what is done to its messages.

    Attributes
    ----------
    epsilon
        ε of label privacy; None for true labels.
    exchange, messages
        As in `FormationPlan`.
    labels_stay
        Parties have no labels at all, so no loss of their own; the coordinator has them. gainroute does not offer it.
    width
        Of the encoders, in place of the default 16: embeddings have 8 × width values.
    feedback
        What a codec lost of a sample's gradient is added to that sample's next gradient.
    clip
        Gradients longer than the median of their message are shortened to it.
    gradient_noise
        Expected length of Gaussian noise added to a gradient, in medians of the lengths in its message.
    embedding_noise
        Deviation of Gaussian noise added to each value of an embedding, in deviations of all values of its message.
    """

    epsilon: float | None = None
    exchange: str = "gradients"
    messages: str = "float32"
    labels_stay: bool = False
    width: int | None = None
    feedback: bool = False
    clip: bool = False
    gradient_noise: float = 0.0
    embedding_noise: float = 0.0


@dataclass(frozen=True)
class Formed:
    """What came of a federation, and what the first party and the coordinator saw of it.

    Attributes
    ----------
    rows
        Of the train, calibration and test parts.
    labels, given
        (N,) true labels, and those that left the holder.
    local, strong
        Posteriors (M, N, K) and (N, K) of all samples, as served.
    inputs, embeddings
        Per party, (N, …) what its encoder reads, and (N, d) what arrives in service.
    gradients
        (epochs, N, d) what arrived at the first party for its embeddings; 0 where a sample was in no batch.
    results
        Accuracies on the test part, and bytes.
    """

    rows: tuple[IntArray, IntArray, IntArray]
    labels: IntArray
    given: IntArray
    local: Float32
    strong: Float32
    inputs: tuple[Float32, ...]
    embeddings: tuple[Float32, ...]
    gradients: Float32
    results: Mapping[str, float]


@dataclass
class _Wire:
    """What happens to a message between a party and the coordinator."""

    case: Case
    noise: np.random.Generator
    lost: dict[int, Float32] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    def embedding(self, sent: Tensor) -> Tensor:
        """An embedding (B, d), as it arrives at the coordinator."""
        values = sent.numpy()
        if self.case.embedding_noise:
            scale = self.case.embedding_noise * values.std()
            values = values + self.noise.normal(0, scale, values.shape).astype(np.float32)
        self.bytes_up += len(values) * embedding_bytes([values.shape[1]], self.case.messages)
        return torch.from_numpy(round_trip(values, self.case.messages))

    def gradient(self, sent: Tensor, party: int, rows: IntArray, count: int) -> Tensor:
        """A gradient (B, d), as it arrives at a party."""
        case, values = self.case, sent.numpy()
        length = np.linalg.norm(values, axis=1, keepdims=True)
        middle = float(np.median(length))
        if case.clip:
            values = values * np.minimum(1, middle / np.maximum(length, 1e-30))
        if case.gradient_noise:
            scale = case.gradient_noise * middle / np.sqrt(values.shape[1])
            values = values + self.noise.normal(0, scale, values.shape).astype(np.float32)
        if case.feedback:
            lost = self.lost.setdefault(party, np.zeros((count, values.shape[1]), np.float32))
            values = values + lost[rows]
        self.bytes_down += len(values) * embedding_bytes([values.shape[1]], case.messages)
        arrived = round_trip(values.astype(np.float32), case.messages)
        if case.feedback:
            lost[rows] = values - arrived
        return torch.from_numpy(arrived)


class _TappedParties(InProcessParties):
    """Parties in this process behind wires. Keeps the gradients that the first of them receives."""

    def __init__(self, parties: Mapping[str, TrainingParty], wire: _Wire, count: int) -> None:
        super().__init__(parties)
        self._wire, self._count = wire, count
        self._rows = np.zeros(0, np.int64)
        self.gradients: list[Float32] = []

    def begin_epoch(self, seed: int, epoch: int) -> None:
        super().begin_epoch(seed, epoch)
        self.gradients.append(np.zeros((0, 0), np.float32))

    def forward(self, rows: IntArray) -> list[Tensor]:
        self._rows = rows
        return [self._wire.embedding(embedding) for embedding in super().forward(rows)]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        arrived = [self._wire.gradient(g, party, self._rows, self._count) for party, g in enumerate(gradients)]
        if not self.gradients[-1].size:
            self.gradients[-1] = np.zeros((self._count, arrived[0].shape[1]), np.float32)
        self.gradients[-1][self._rows] = arrived[0].numpy()
        super().backward(arrived)


def form(
    samples: Samples,
    case: Case,
    seed: int,
    *,
    epochs: int | None = None,
    local_epochs: int | None = None,
    local: Float32 | None = None,
    routed: bool = True,
) -> Formed:
    """Form a federation in this process.

    Parameters
    ----------
    samples
        What the parties hold.
    case
        How it is formed.
    seed
        Of the split, of training, and of the randomness of the case.
    epochs, local_epochs
        By default those of `gainroute federate`.
    local
        Posteriors of the local classifiers, if a case with the same seed and ε has trained them.
    routed
        Whether to fit a router too.
    """
    plan = FormationPlan(
        seed=seed, epochs=epochs, local_epochs=local_epochs, messages=case.messages,
        exchange="gradients" if case.exchange == "gradients" else "embeddings",
    )  # fmt: skip
    with torch_threads(1):
        return _form(samples, case, plan, local, routed=routed)


def _form(samples: Samples, case: Case, plan: FormationPlan, local: Float32 | None, *, routed: bool) -> Formed:
    shares = plan.test, plan.calibration, plan.seed
    class_names, codes, rows = split_rows(samples.labels, *shares)
    classes, names, given = len(class_names), [view.name for view in samples.views], codes
    random = np.random.default_rng(derive(plan.seed, "privacy", samples.name))
    if case.epsilon is not None:
        given = randomise_labels(codes, classes, case.epsilon, random)
        rows = split_rows(given, *shares)[2]
    train, held, test = rows
    fitted = [fit_preprocess(view.take(train).raw, "auto") for view in samples.views]
    inputs = [apply_preprocess(fit, view.raw) for fit, view in zip(fitted, samples.views, strict=True)]
    views = [TrainingView(x[train], train) for x in inputs]
    settings, labels = plan.route_settings(len(train), classes, case.epsilon), torch.from_numpy(given[train])
    changes: dict[str, Any] = {"auxiliary": 0.0} if case.labels_stay else {}
    if case.width is not None:
        changes["width"] = case.width
    fit = replace(settings.vfl, **changes)
    trainer = RouteTrainer(settings, plan.seed, CheckpointStore(None), Progress(), "cpu")

    if local is None:
        loss = classification(labels, settings.local)
        models = [trainer.local_of(n, view, classes, loss, "local") for n, view in zip(names, views, strict=True)]
        outputs = [forward_all(model, x, "cpu").softmax(dim=1).numpy() for model, x in zip(models, inputs, strict=True)]
        local = np.stack(outputs)

    stage, spec = trainer.stage("vfl"), fusion_spec(len(names), classes, fit)
    with stage.initial():
        head = build_model(spec)
    parties = {
        name: start_party(stage, name, view, labels, classes, fit, len(names))
        for name, view in zip(names, views, strict=True)
    }
    wire = _Wire(case, random)
    tapped = _TappedParties(parties, wire, len(train))
    if plan.exchange == "gradients":
        train_split(stage, tapped, FusionServer(head, labels, fit), len(train), fit)
    else:
        for name, party in parties.items():
            party.train_alone(trainer.stage(f"encoder {name}"))
            party.finish()
    up, down, wire.bytes_up = wire.bytes_up, wire.bytes_down, 0
    once = [wire.embedding(forward_all(parties[n].encoder, v.clean, "cpu")) for n, v in zip(names, views, strict=True)]
    sent_once = wire.bytes_up
    if plan.exchange == "embeddings":

        def head_loss(batch: Tensor) -> Tensor:
            return label_loss(head([embedding[batch] for embedding in once]), labels[batch], fit)

        stage.fit(head, fit, len(train), lambda _: head_loss)

    # In service, embeddings are sent with `codec`, float32 by default: only noise is added.
    served = _Wire(replace(case, messages=plan.codec), random)
    arrived = [served.embedding(forward_all(parties[n].encoder, x, "cpu")) for n, x in zip(names, inputs, strict=True)]
    strong = predict(head, arrived, "cpu")
    return Formed(
        (train, held, test), codes, given, local, strong, tuple(inputs), tuple(a.numpy() for a in arrived),
        np.stack(tapped.gradients) if tapped.gradients else np.zeros((0, len(train), 0), np.float32),
        {
            **_accuracies(local, strong, codes, rows, plan, routed=routed),
            "bytes_up_per_epoch": up / fit.epochs, "bytes_down_per_epoch": down / fit.epochs, "bytes_once": sent_once,
            "train": len(train), "epochs": fit.epochs, "dimension": arrived[0].shape[1],
        },
    )  # fmt: skip


def _accuracies(
    local: Float32, strong: Float32, labels: IntArray, rows: Sequence[IntArray], plan: FormationPlan, *, routed: bool
) -> dict[str, float]:
    """Of the weak route, the strong route, and both as routed, on the test part; calibrated with true labels."""
    _, held, test = (RouteAnswers.from_posteriors(part, labels[part], local[:, part], strong[part]) for part in rows)
    found = {"weak_accuracy": test.weak_accuracy, "strong_accuracy": test.strong_accuracy}
    if routed:
        router = fit_router(held, list(range(local.shape[2])), budget=plan.budget, seed=plan.seed)
        decision = router.route(test.local_posteriors)
        answer = router.answer(decision, test.strong_posterior[decision.escalate])
        found["routed_accuracy"] = float((np.asarray(answer.prediction) == test.labels).mean())
        found["escalation_rate"] = float(np.mean(decision.escalate))
    return found
