"""Samples per second in training: split against one monolithic model in process, our convolution against torch's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rows import Row, interleaved, row, timed
from gainroute.training.models.convolution import Convolution
from gainroute.training.models.encoders import ResNet18
from gainroute.training.models.fusion import FusionHead
from gainroute.training.optimise import seeded
from gainroute.training.settings import VflSettings
from gainroute.training.split_learning import FusionServer, TrainingParty
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["run"]

PARTIES, CLASSES, BATCH, BATCHES, WIDTH = 4, 10, 128, 4, 32
SETTINGS = VflSettings(epochs=1, batch=BATCH, width=WIDTH, latent=256, dropout=0.0)


def run() -> Iterator[Row]:
    """Measure a few batches of four width-32 ResNet-18 on 16 × 16 views, alternating between the two."""
    rng = np.random.default_rng(0)
    samples = BATCH * BATCHES
    views = [rng.normal(size=(samples, 3, 16, 16)).astype(np.float32) for _ in range(PARTIES)]
    labels = torch.from_numpy(rng.integers(CLASSES, size=samples))
    rows = [np.arange(i * BATCH, (i + 1) * BATCH) for i in range(BATCHES)]
    parties, server = _split(views, labels)
    whole = _Whole(views)

    def split_epoch() -> None:
        for party in parties:
            party.begin_epoch(0, 0)
        for batch in rows:
            _, gradients = server.step([party.forward(batch) for party in parties], batch)
            for party, gradient in zip(parties, gradients, strict=True):
                party.backward(gradient)

    def whole_epoch() -> None:
        for batch in rows:
            whole.step(labels, torch.from_numpy(batch))

    split_epoch()
    whole_epoch()
    ours, other = interleaved([partial(timed, split_epoch), partial(timed, whole_epoch)], 7)
    ratio = other / ours
    yield row("samples per second, split against monolithic", samples / ours, samples / other, ratio, ">= 0.9")
    yield _small_maps()


def _small_maps() -> Row:
    """A step of the encoder of CIFAR's quadrants, whose last maps have 2 × 2 and 1 × 1 pixels."""
    views = to_tensor(np.random.default_rng(0).normal(size=(BATCH, 3, 16, 16)).astype(np.float32), "cpu")
    ours, other = (place(ResNet18(channels=3, width=WIDTH, stem="3x3-pool", norm="group"), "cpu") for _ in range(2))
    for module in other.modules():
        if isinstance(module, Convolution):
            module.__class__ = nn.Conv2d  # type: ignore[assignment]

    def step(model: nn.Module) -> None:
        model(views).square().mean().backward()

    step(ours)
    step(other)
    seconds, plain = interleaved([partial(timed, partial(step, ours)), partial(timed, partial(step, other))], 7)
    return row("samples per second, maps of few pixels", BATCH / seconds, BATCH / plain, plain / seconds, ">= 1.3")


def _models() -> tuple[list[nn.Module], FusionHead]:
    with seeded(0, "bench"):
        encoders: list[nn.Module] = [ResNet18(channels=3, width=WIDTH) for _ in range(PARTIES)]
        head = FusionHead(dimensions=[8 * WIDTH] * PARTIES, latent=256, classes=CLASSES, dropout=0.0)
    return encoders, head


def _split(views: list[np.ndarray], labels: Tensor) -> tuple[list[TrainingParty], FusionServer]:
    encoders, head = _models()
    everyone = np.arange(len(labels))
    parties = [
        TrainingParty(encoder, TrainingView(view, everyone), labels, SETTINGS)
        for encoder, view in zip(encoders, views, strict=True)
    ]
    return parties, FusionServer(head, labels, SETTINGS)


class _Whole:
    """The same model without parties: all encoders and the head in one graph, with one optimiser."""

    def __init__(self, views: list[np.ndarray]) -> None:
        encoders, self.head = _models()
        self.encoders = [place(encoder, "cpu") for encoder in encoders]
        self.inputs = [to_tensor(view, "cpu") for view in views]
        parameters = [p for model in (*self.encoders, self.head) for p in model.parameters()]
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step(self, labels: Tensor, batch: Tensor) -> None:
        embeddings = [encoder(view[batch]) for encoder, view in zip(self.encoders, self.inputs, strict=True)]
        loss = functional.cross_entropy(self.head(embeddings), labels[batch])
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
