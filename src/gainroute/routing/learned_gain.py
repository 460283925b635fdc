"""The learned gain (Diff-01): a two-layer network fitted to the realised gain on features of Round 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gainroute._util.blas import one_thread
from gainroute.errors import SettingError
from gainroute.routing.folds import folds_of
from gainroute.routing.router import Router
from gainroute.routing.types import CalibrationSet, FloatArray, RoundOne, Score

__all__ = [
    "WEIGHT_DECAYS",
    "LearnedGainRouter",
    "LearnedGainScore",
    "choose_weight_decay",
    "fit_learned_gain",
    "gain_features",
]

Weights = list[npt.NDArray[Any]]
WEIGHT_DECAYS = (1e-3, 1.0, 3.0, 10.0)
CV_FOLDS = 3


def gain_features(round_one: RoundOne) -> FloatArray:
    """Compute the paper's features z, (N, K + 2M + 1).

    The pooled posterior; the entropy of each local posterior and of the pooled one; the Kullback–Leibler
    divergence of each local posterior from the pooled one.
    """
    local = round_one.local.astype(np.float64, copy=False)
    pooled = round_one.pooled
    log_local = np.log(np.maximum(local, 1e-12))
    log_pooled = np.log(np.maximum(pooled, 1e-12))
    entropies = -np.einsum("mnk,mnk->nm", local, log_local)
    pooled_entropy = -np.einsum("nk,nk->n", pooled, log_pooled)[:, None]
    divergences = np.einsum("mnk,mnk->nm", local, log_local - log_pooled)
    return np.concatenate([pooled, entropies, pooled_entropy, divergences], axis=1)


@dataclass(frozen=True, eq=False)
class LearnedGainScore:
    """g(z) = w₂·relu(W₁z + b₁) + b₂ on standardised features."""

    mean: FloatArray
    scale: FloatArray
    weight1: FloatArray
    bias1: FloatArray
    weight2: FloatArray
    bias2: FloatArray

    def __call__(self, round_one: RoundOne) -> FloatArray:
        """Predict the gain of each sample, (N,)."""
        return _forward((gain_features(round_one) - self.mean) / self.scale, self._weights)[1]

    @property
    def _weights(self) -> Weights:
        return [self.weight1, self.bias1, self.weight2, self.bias2]


def fit_learned_gain(
    round_one: RoundOne,
    gain: npt.NDArray[Any],
    weight: FloatArray,
    *,
    hidden: int,
    epochs: int,
    learning_rate: float,
    weight_decay: float,
    patience: int,
    seed: int,
) -> LearnedGainScore:
    """Regress the realised gain on z by mean squared error (Adam, early stopping on a tenth of the samples)."""
    z = gain_features(round_one)
    mean, scale = z.mean(axis=0), z.std(axis=0)
    scale[scale < 1e-12] = 1.0
    z = (z - mean) / scale
    target = gain.astype(np.float64)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(z))
    held_out, kept = order[: len(z) // 10], order[len(z) // 10 :]
    weights: Weights = [
        rng.normal(size=(z.shape[1], hidden)) * np.sqrt(2 / z.shape[1]),
        np.zeros(hidden),
        rng.normal(size=hidden) * np.sqrt(1 / hidden),
        np.array(float(np.average(target[kept], weights=weight[kept] + 1e-300))),
    ]
    best, best_loss, waited = [w.copy() for w in weights], np.inf, 0
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    step = 0
    with one_thread():
        for _ in range(epochs):
            shuffled = rng.permutation(kept)
            for first in range(0, len(shuffled), 128):
                rows = shuffled[first : first + 128]
                step += 1
                gradients = _gradients(z[rows], target[rows], weight[rows], weights)
                _adam(weights, gradients, moments, step, learning_rate, weight_decay)
            loss = _loss(z[held_out], target[held_out], weight[held_out], weights)
            if loss < best_loss:
                best, best_loss, waited = [w.copy() for w in weights], loss, 0
            else:
                waited += 1
                if waited >= patience:
                    break
    chosen = best if len(held_out) else weights
    return LearnedGainScore(mean, scale, *chosen)


def choose_weight_decay(round_one: RoundOne, gain: npt.NDArray[Any], weight: FloatArray, **training: Any) -> float:
    """The one of `WEIGHT_DECAYS` whose networks predict the gain of held-out samples with the smallest squared error.

    `training` holds the other settings of `fit_learned_gain`; networks that are only compared have a quarter of its
    patience.
    """
    n = len(gain)
    training = {**training, "patience": max(1, training["patience"] // 4)}
    loss = np.zeros(len(WEIGHT_DECAYS))
    for held_out in folds_of(n, CV_FOLDS):
        kept = np.setdiff1d(np.arange(n), held_out)
        at = round_one.take(held_out)
        for i, decay in enumerate(WEIGHT_DECAYS):
            fitted = fit_learned_gain(
                round_one.take(kept), gain[kept], weight[kept], weight_decay=decay, **training
            )  # fmt: skip
            loss[i] += float(weight[held_out] @ (fitted(at) - gain[held_out]) ** 2)
    return WEIGHT_DECAYS[int(loss.argmin())]


def _forward(z: FloatArray, weights: Weights) -> tuple[FloatArray, FloatArray]:
    weight1, bias1, weight2, bias2 = weights
    active = np.maximum(z @ weight1 + bias1, 0)
    return active, active @ weight2 + bias2


def _loss(z: FloatArray, target: FloatArray, weight: FloatArray, weights: Weights) -> float:
    return float(weight @ (_forward(z, weights)[1] - target) ** 2)


def _gradients(z: FloatArray, target: FloatArray, weight: FloatArray, weights: Weights) -> Weights:
    active, output = _forward(z, weights)
    error = 2 * weight * (output - target) / len(z)
    back = np.outer(error, weights[2]) * (active > 0)
    return [z.T @ back, back.sum(axis=0), active.T @ error, np.array(error.sum())]


def _adam(
    weights: Weights,
    gradients: Weights,
    moments: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    step: int,
    learning_rate: float,
    weight_decay: float,
) -> None:
    """One step of Adam with decoupled weight decay, in place."""
    for w, g, (first, second) in zip(weights, gradients, moments, strict=True):
        first += 0.1 * (g - first)
        second += 0.001 * (g * g - second)
        update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        w -= learning_rate * (update + weight_decay * w)


class LearnedGainRouter(Router):
    """Diff-01: a two-layer network regresses the realised gain on features of Round 1.

    Parameters
    ----------
    hidden, epochs, learning_rate, weight_decay, patience
        Width of the network, and its training: Adam on batches of 128, early stopping on a tenth of the samples. A
        weight decay of "cv" is chosen among 0.001, 1, 3 and 10 by the squared error on held-out thirds.
    """

    def __init__(
        self,
        budget: float = 0.2,
        *,
        hidden: int = 256,
        epochs: int = 200,
        learning_rate: float = 1e-3,
        weight_decay: float | Literal["cv"] = 1e-3,
        patience: int = 20,
        **settings: Any,
    ) -> None:
        super().__init__(budget, **settings)
        self.hidden, self.epochs, self.learning_rate = hidden, epochs, learning_rate
        if isinstance(weight_decay, str) and weight_decay != "cv":
            raise SettingError(f'weight_decay is {weight_decay!r}; it is a number ≥ 0, or "cv" to choose it')
        self.weight_decay, self.patience = weight_decay, patience

    def fit_score(self, calibration: CalibrationSet) -> Score:
        """Train the network."""
        names = ("hidden", "epochs", "learning_rate", "patience", "seed")
        training: dict[str, Any] = {name: getattr(self, name) for name in names}
        samples = calibration.round_one, calibration.gain, calibration.sample_weight
        decay = choose_weight_decay(*samples, **training) if self.weight_decay == "cv" else self.weight_decay
        return fit_learned_gain(*samples, weight_decay=decay, **training)
