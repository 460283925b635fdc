"""The models of the serving benchmark: stubs, or ResNet-18 encoders with random weights.

`gainroute party` calls `make_stub` and `make_resnet`, `gainroute coordinator` the fusions; the bare peer uses the same
stub. A sample's id is a number, the row of its answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gainroute as gr

__all__ = [
    "CLASSES",
    "DIMENSION",
    "MOST",
    "NAMES",
    "PARTIES",
    "SAMPLES",
    "VARIABLE",
    "Stub",
    "make_linear_fusion",
    "make_resnet",
    "make_resnet_fusion",
    "make_stub",
    "save_router",
]

NAMES = ("a", "b", "c", "d")
PARTIES, CLASSES, DIMENSION, SAMPLES = len(NAMES), 10, 512, 4096
MOST = 32  # parties of any benchmark
SIZE = 16  # a view is 3 × 16 × 16, a quadrant of CIFAR
VARIABLE = "GAINROUTE_BENCH_PARTY"  # number of the party that a process serves

Floats = npt.NDArray[np.float32]


def _party() -> int:
    return int(os.environ[VARIABLE])


class Stub:
    """Looks answers up in a table: the fastest possible model.

    Parameters
    ----------
    party
        Number of the party; each has a table of its own.
    """

    class_names = tuple(f"c{i}" for i in range(CLASSES))
    dimension = DIMENSION
    immediate = True

    def __init__(self, party: int) -> None:
        rng = np.random.default_rng(party)
        self.model_hash = f"stub-{party}"
        self.table = rng.dirichlet(np.full(CLASSES, 0.3), size=SAMPLES).astype(np.float32)
        self.vectors = rng.normal(size=(SAMPLES, DIMENSION)).astype(np.float32)

    def posteriors(self, ids: Sequence[str], /) -> Floats:
        """Round 1, (N, K)."""
        return self.table[[int(i) for i in ids]]

    def embeddings(self, ids: Sequence[str], /) -> Floats:
        """Round 2, (N, d)."""
        return self.vectors[[int(i) for i in ids]]


def make_stub() -> Stub:
    """For `factory` in a party's settings."""
    return Stub(_party())


class ResNetParty:
    """A light CNN in Round 1, a ResNet-18 of width 64 in Round 2, on random views.

    Parameters
    ----------
    party
        Number of the party; it seeds weights and views.
    """

    class_names = Stub.class_names
    dimension = DIMENSION

    def __init__(self, party: int) -> None:
        import torch

        from gainroute.training.models.encoders import ResNet18
        from gainroute.training.models.local import LocalCNN

        self.model_hash = f"resnet-{party}"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(party)
            self.local = LocalCNN(channels=3, size=SIZE, outputs=CLASSES).eval()
            self.encoder = ResNet18(channels=3, width=DIMENSION // 8).eval()
            self.views = torch.randn(SAMPLES, 3, SIZE, SIZE)
        # Untrained logits are nearly equal for all views; scaled up, scores differ between samples.
        with torch.inference_mode():
            self.deviation, self.mean = torch.std_mean(self.local(self.views[SAMPLES // 2 :]), dim=0)

    def posteriors(self, ids: Sequence[str], /) -> Floats:
        """Round 1, (N, K)."""
        return self._run(lambda views: (2 * (self.local(views) - self.mean) / self.deviation).softmax(dim=1), ids)

    def embeddings(self, ids: Sequence[str], /) -> Floats:
        """Round 2, (N, d)."""
        return self._run(self.encoder, ids)

    def _run(self, model: Any, ids: Sequence[str]) -> Floats:
        import torch

        with torch.inference_mode():
            found: Floats = model(self.views[[int(i) for i in ids]]).numpy()
        return found


def make_resnet() -> ResNetParty:
    """For `factory` in a party's settings."""
    return ResNetParty(_party())


# ---- the coordinator's side -------------------------------------------------------------------------


def make_linear_fusion() -> Any:
    """The fusion of the stubs: one matrix product of the concatenated embeddings, and a softmax."""
    weight = np.random.default_rng(0).normal(size=(MOST * DIMENSION, CLASSES)).astype(np.float32) / DIMENSION

    def fuse(embeddings: Sequence[Floats]) -> Floats:
        logits = np.concatenate(embeddings, axis=1) @ weight[: len(embeddings) * DIMENSION]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)

    return fuse


def make_resnet_fusion() -> Any:
    """A fusion head of the usual size, with random weights."""
    import torch

    from gainroute.training.models.fusion import FusionHead

    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = FusionHead(dimensions=[DIMENSION] * PARTIES, latent=256, classes=CLASSES).eval()

    def fuse(embeddings: Sequence[Floats]) -> Floats:
        with torch.inference_mode():
            found: Floats = head([torch.from_numpy(np.ascontiguousarray(e)) for e in embeddings]).softmax(dim=1).numpy()
        return found

    return fuse


def save_router(
    path: Path, parties: Sequence[Any], budget: float, names: Sequence[str] = NAMES, **settings: Any
) -> None:
    """Calibrate a router on the second half of the samples; the benchmark requests the first half.

    Labels are drawn from the pooled posterior, and the strong route is right on nine samples of ten: what is measured
    is speed, and the router has to escalate the share that it is told, nothing else.
    """
    ids = [str(i) for i in range(SAMPLES // 2, SAMPLES)]
    local = np.stack([party.posteriors(ids) for party in parties])
    pooled = local.mean(axis=0)
    rng = np.random.default_rng(1)
    chance = np.cumsum(pooled / pooled.sum(axis=1, keepdims=True), axis=1)
    labels = np.minimum((rng.random(len(ids))[:, None] > chance).sum(axis=1), CLASSES - 1)
    strong = np.where(rng.random(len(ids)) < 0.9, labels, rng.integers(CLASSES, size=len(ids)))
    # The mean, as in the bare endpoint: the benchmark compares the service, not the pooling.
    router = gr.ExpectedGainRouter(budget, **{"pooling": "mean", "folds": 5, **settings}).fit(local, labels, strong)
    models = {name: party.model_hash for name, party in zip(names, parties, strict=True)}
    gr.save(router, path, provenance=gr.Provenance(models, "float32"))
