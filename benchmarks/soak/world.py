"""The data of the soak: seeded numpy arrays, a router fitted by the library, and the answers computed offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gainroute as gr
from benchmarks.problems import posteriors
from gainroute.io.party_answers import write_columns

__all__ = ["CODEC", "MODEL", "PARTIES", "Expected", "World", "make_fusion", "make_world"]

Float32 = npt.NDArray[np.float32]

PARTIES = ("north", "middle", "south")
CLASSES = 10
DIMENSION = 64
CALIBRATION = 2000
SERVED = 2000
BUDGET = 0.2
MODEL = "soak-1"
CODEC = "float32"


@dataclass(frozen=True, eq=False)
class Expected:
    """The answers of an offline replay, one row per sample."""

    label: npt.NDArray[np.int64]
    escalated: npt.NDArray[np.bool_]
    score: Float32
    probabilities: Float32


@dataclass(frozen=True, eq=False)
class World:
    """The served samples: the answers of each party, and a router fitted on other samples.

    Attributes
    ----------
    ids
        Sample ids.
    local : (M, N, K)
        Posteriors, as sent.
    embeddings
        One (N, d) array per party.
    artifact
        File of the router; the replay loads it as the coordinator does.
    """

    ids: tuple[str, ...]
    local: Float32
    embeddings: tuple[Float32, ...]
    artifact: Path

    @cached_property
    def row(self) -> dict[str, int]:
        """Row by id."""
        return {name: i for i, name in enumerate(self.ids)}

    def write_columns(self, party: int, path: Path) -> None:
        """Write the file that a party serves."""
        names = [str(k) for k in range(CLASSES)]
        write_columns(path, self.ids, self.local[party], self.embeddings[party], names, MODEL)

    def replay(self) -> Expected:
        """Run Algorithm 1 in process, with the artifact on disk."""
        parties = [_InProcess(self, i) for i in range(len(PARTIES))]
        found = gr.predict_two_round(parties, make_fusion(), gr.load(self.artifact), self.ids)
        return Expected(
            np.asarray(found.prediction, np.int64), found.escalated, found.score.astype(np.float32),
            found.probabilities.astype(np.float32),
        )  # fmt: skip

    def replay_first(self, absent: Sequence[str] = ()) -> Expected:
        """Run Round 1 only, without the parties named: what a degraded answer has to be."""
        router = gr.load(self.artifact)
        present = np.ones(self.local.shape[:2], dtype=bool)
        present[[PARTIES.index(name) for name in absent]] = False
        decision = router.route(self.local, present=present)
        return Expected(
            np.asarray(decision.weak_prediction, np.int64), np.zeros(len(self.ids), dtype=bool),
            decision.score.astype(np.float32), decision.pooled.astype(np.float32),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _InProcess:
    world: World
    party: int

    def posteriors(self, ids: Sequence[Any]) -> Float32:
        return np.asarray(self.world.local[self.party][[self.world.row[name] for name in ids]])

    def embeddings(self, ids: Sequence[Any]) -> Float32:
        return self.world.embeddings[self.party][[self.world.row[name] for name in ids]]


def _prototypes() -> npt.NDArray[np.float64]:
    return np.random.default_rng(7).normal(size=(len(PARTIES), CLASSES, DIMENSION))


def _embed(labels: npt.NDArray[np.int64], seed: int) -> tuple[Float32, ...]:
    rng = np.random.default_rng((7, seed))
    return tuple(
        (heads[labels] + rng.normal(scale=4.5, size=(len(labels), DIMENSION))).astype(np.float32)
        for heads in _prototypes()
    )


def make_fusion() -> Any:
    """The coordinator's fusion (`factory = "benchmarks.soak.world:make_fusion"`): nearest prototypes, all views."""
    heads = _prototypes().astype(np.float32)
    half = 0.5 * (heads**2).sum(axis=(0, 2))

    def fuse(embeddings: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        logits = sum(e @ w.T for e, w in zip(embeddings, heads, strict=True)) - half
        # Divided by the noise's variance: the posterior of the mixture that the embeddings were drawn from.
        p = np.exp(np.asarray(logits - np.max(logits, axis=1, keepdims=True), np.float64) / 4.5**2)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    return fuse


def make_world(folder: Path) -> World:
    """Draw the data, fit the router on samples of its own, and save it as an artifact with its provenance."""
    local, labels = posteriors(CLASSES, CALIBRATION, len(PARTIES), seed=1)
    sent = local.astype(np.float32)
    router = gr.ExpectedGainRouter(budget=BUDGET).fit(
        sent, labels, strong_posterior=make_fusion()(_embed(labels, seed=1))
    )
    artifact = folder / "router.safetensors"
    gr.save(router, artifact, provenance=gr.Provenance(dict.fromkeys(PARTIES, MODEL), CODEC))
    served, truth = posteriors(CLASSES, SERVED, len(PARTIES), seed=2)
    names = tuple(f"s{i:04d}" for i in range(SERVED))
    return World(names, served.astype(np.float32), _embed(truth, seed=2), artifact)
