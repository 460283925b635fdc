"""Synthetic records: what `run_cell` would leave, drawn from a few random numbers instead of trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.experiments.records import DeferAnswers, Record, RouteAnswers
from gainroute.training.route_answers import overlay

Array = npt.NDArray[Any]


def _posterior(rng: np.random.Generator, labels: Array, k: int, strength: float, parties: int) -> Array:
    logits = rng.normal(size=(parties, len(labels), k)) * 1.6
    logits[:, np.arange(len(labels)), labels] += strength
    p = np.exp(logits - logits.max(axis=2, keepdims=True))
    posterior: Array = (p / p.sum(axis=2, keepdims=True)).astype(np.float32)
    return posterior


def _split(
    rng: np.random.Generator, n: int, k: int, weak: float, strong: float, alphas: tuple[str, ...]
) -> RouteAnswers:
    labels = np.arange(n) % k
    local, joint = _posterior(rng, labels, k, weak, 2), _posterior(rng, labels, k, strong, 1)[0]
    pooled = local.mean(axis=0)
    defer = {}
    for alpha in alphas:
        score = (0.3 - pooled.max(axis=1) + 0.15 * rng.normal(size=n)).clip(-1, 1).astype(np.float32)
        guess = np.where(rng.random(n) < 0.05, (labels + 1) % k, pooled.argmax(axis=1))
        defer[alpha] = DeferAnswers(score, guess, score > 0)
    return RouteAnswers(
        np.arange(n), labels, local, joint, pooled.argmax(axis=1), joint.argmax(axis=1), {(0,): labels}, defer
    )  # fmt: skip


def synthetic_record(
    seed: int = 0,
    *,
    dataset: str = "synthetic",
    classes: int = 10,
    samples: int = 300,
    counts: tuple[int, ...] = (3,),
    alphas: tuple[str, ...] = ("0.5", "1", "2", "3"),
    metadata: dict[str, Any] | None = None,
) -> Record:
    """Two parties, a strong route that is better, and noise on the first few classes."""
    rng = np.random.default_rng(seed)
    chosen = {count: tuple(range(count)) for count in counts}

    test = _split(np.random.default_rng([seed, 1]), samples, classes, 2.2, 5.5, alphas)
    noisy = {}
    for count, names in chosen.items():
        rows = np.flatnonzero(np.isin(test.labels, names))
        touched = _split(np.random.default_rng([seed, 2]), samples, classes, 1.4, 3.5, alphas)
        noisy[count] = overlay(test, rows, touched.take(rows))

    return Record(
        dataset,
        seed,
        _split(rng, samples, classes, 2.2, 5.5, alphas),
        test,
        noisy,
        chosen,
        tuple(map(str, range(classes))),
        ("left", "right"),
        {"embedding_dimensions": [64, 64], "quantisation_shift": {"0": 0.1}, **(metadata or {})},
    )
