"""Attacks on a federation, by what its parties and its coordinator see: labels, views, membership."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = [
    "best_decoder",
    "blocks",
    "calibrated_by_shadows",
    "cluster",
    "gradient_evidence",
    "guess",
    "known_samples",
    "lengths",
    "membership",
    "recovered",
    "true_logit",
    "view_evidence",
    "weigh",
]

Array = npt.NDArray[Any]
PARTS, ROUNDS = (10, 30), (0, 4)


# ---- labels -----------------------------------------------------------------------------------------


def known_samples(labels: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Rows of about `count` samples whose label the attacker knows, the same number of each class."""
    classes = np.unique(labels)
    each = max(1, count // len(classes))
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:each] for c in classes]
    return np.concatenate(chosen).astype(np.int64)


def recovered(guessed: IntArray, labels: IntArray, known: IntArray) -> float:
    """Share of the labels not known that were guessed, averaged over the classes: 1 / K by chance."""
    unknown = np.setdiff1d(np.arange(len(labels)), known)
    hit = guessed[unknown] == labels[unknown]
    return float(np.mean([hit[labels[unknown] == c].mean() for c in np.unique(labels[unknown])]))


def blocks(gradients: Array) -> FloatArray:
    """Gradients (epochs, N, d) as features (N, epochs · d), every epoch scaled alike."""
    scale = np.sqrt(np.mean(np.square(gradients, dtype=np.float64), axis=(1, 2), keepdims=True))
    scaled = gradients / np.maximum(scale, 1e-30)
    features: FloatArray = np.moveaxis(scaled, 0, 1).reshape(gradients.shape[1], -1).astype(np.float64)
    return features


def lengths(gradients: Array) -> FloatArray:
    """Logarithms of the lengths of gradients (epochs, N, d), as features (N, epochs)."""
    length = np.linalg.norm(gradients, axis=2).T.astype(np.float64)
    filled = np.where(length > 0, length, np.nan)
    logs = np.log(filled)
    features: FloatArray = np.where(np.isnan(logs), np.nanmean(logs, axis=0, keepdims=True), logs)
    return features


def _components(features: FloatArray, count: int) -> FloatArray:
    from sklearn.decomposition import PCA

    centred = features - features.mean(axis=0)
    reduced: FloatArray
    if features.shape[1] <= count:
        reduced = centred / np.maximum(centred.std(axis=0), 1e-12)
        return reduced
    reduced = PCA(count, svd_solver="randomized", random_state=0).fit_transform(centred)
    return reduced


def guess(features: FloatArray, labels: IntArray, known: IntArray) -> IntArray:
    """Guess all labels from features and few known labels: linear discriminants, refitted to their own guesses.

    The number of components and of refits is the one that does best on the known labels when five folds of them are
    guessed in turn.
    """
    reduced = {count: _components(features, count) for count in PARTS}
    folds = np.arange(len(known)) % 5

    def hits(count: int, rounds: int) -> int:
        return sum(
            int((_discriminate(reduced[count], labels, known[folds != f], rounds)[known[folds == f]]
                 == labels[known[folds == f]]).sum())
            for f in range(5)
        )  # fmt: skip

    best = max(((count, rounds) for count in PARTS for rounds in ROUNDS), key=lambda how: hits(*how))
    return _discriminate(reduced[best[0]], labels, known, best[1])


def _discriminate(features: FloatArray, labels: IntArray, known: IntArray, rounds: int) -> IntArray:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(features[known], labels[known])
    guessed: IntArray = model.predict(features)
    for _ in range(rounds):
        guessed[known] = labels[known]
        guessed = model.fit(features, guessed).predict(features)
    return guessed


def cluster(features: FloatArray, labels: IntArray, classes: int) -> IntArray:
    """Cluster the directions of features, and name the clusters in the way that fits the labels best."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    reduced = _components(features, 30)
    unit = reduced / np.maximum(np.linalg.norm(reduced, axis=1, keepdims=True), 1e-30)
    found = KMeans(classes, n_init=4, random_state=0).fit_predict(unit)
    table = np.zeros((classes, classes))
    np.add.at(table, (found, labels), 1)
    table /= np.maximum(table.sum(axis=0, keepdims=True), 1)
    name = linear_sum_assignment(-table)[1]
    named: IntArray = name[found]
    return named


def view_evidence(view: FloatArray, given: IntArray, kept: float, classes: int) -> FloatArray:
    """Log posterior (N, K) of the true class given a view, from a model of other samples' randomised labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    other = (1 - kept) / (classes - 1)
    x = _components(view, 50)
    x /= np.maximum(x.std(axis=0), 1e-12)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    seen = cross_val_predict(LogisticRegression(C=0.05, max_iter=300), x, given, cv=folds, method="predict_proba")
    logs: FloatArray = np.log(np.maximum((seen - other) / (kept - other), 1e-3))
    return logs


def gradient_evidence(gradients: Array, given: IntArray, classes: int) -> FloatArray:
    """What gradients (epochs, N, d) tell of the model's posterior (N, K), up to scale and shift.

    The gradient of a sample is close to a linear map of its posterior less its randomised label. The map is
    estimated from all samples of an epoch and inverted; the randomised label is added, and epochs are averaged.
    """
    labels = np.eye(classes)[given]
    total, count = np.zeros(labels.shape), np.zeros((len(given), 1))
    for epoch in gradients.astype(np.float64):
        there = np.abs(epoch).sum(axis=1) > 0
        centred = epoch[there] - epoch[there].mean(axis=0)
        away = np.linalg.lstsq(labels[there] - labels[there].mean(axis=0), centred, rcond=1e-6)[0]
        total[there] += labels[there] - centred @ np.linalg.pinv(away, rcond=1e-3)
        count[there] += 1
    mean: FloatArray = total / np.maximum(count, 1)
    return mean


def weigh(evidence: Sequence[FloatArray], labels: IntArray, known: IntArray) -> IntArray:
    """Guess labels by a weighted sum of evidence (N, K) each; the known labels choose the weights, by likelihood."""
    from scipy.optimize import minimize
    from scipy.special import logsumexp

    stacked = np.stack(evidence)
    stacked = stacked / stacked.std(axis=(1, 2), keepdims=True)
    seen, true = stacked[:, known], labels[known]

    def loss(weights: FloatArray) -> float:
        scores = np.tensordot(weights, seen, axes=1)
        fit = scores[np.arange(len(true)), true] - logsumexp(scores, axis=1)
        return float(0.02 * np.square(weights).sum() - fit.mean())

    weights = minimize(loss, np.ones(len(stacked)), method="Nelder-Mead").x
    guessed: IntArray = np.tensordot(weights, stacked, axes=1).argmax(axis=1)
    return guessed


# ---- views ------------------------------------------------------------------------------------------


def best_decoder(codes: Array, views: Array, known: IntArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Views (N, v) decoded from codes (N, c), by a decoder trained on the pairs of `known`; and their mean view.

    A linear and a nonlinear decoder are trained; a fifth of the pairs chooses between them.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.neural_network import MLPRegressor

    x = codes.reshape(len(codes), -1).astype(np.float64)
    x = (x - x[known].mean(axis=0)) / np.maximum(x[known].std(axis=0), 1e-12)
    fit, judge = known[len(known) // 5 :], known[: len(known) // 5]
    models = [
        RidgeCV(np.logspace(-1, 4, 11)),
        MLPRegressor(hidden_layer_sizes=(256,), alpha=1e-2, early_stopping=True, max_iter=80, random_state=seed),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the nonlinear decoder is stopped early
        decoded = [model.fit(x[fit], views[fit]).predict(x) for model in models]
    errors = [np.square(found[judge] - views[judge]).sum() for found in decoded]
    chosen: FloatArray = decoded[int(np.argmin(errors))]
    return chosen, views[known].mean(axis=0)


# ---- membership -------------------------------------------------------------------------------------


def true_logit(posterior: Array, labels: IntArray) -> FloatArray:
    """The usual score of membership, log p / (1 − p) of the true class."""
    p = posterior[np.arange(len(labels)), labels].astype(np.float64)
    rest = posterior.astype(np.float64).sum(axis=1) - p
    logit: FloatArray = np.log(np.maximum(p, 1e-12)) - np.log(np.maximum(rest, 1e-12))
    return logit


def calibrated_by_shadows(score: FloatArray, shadows: FloatArray, inside: BoolArray) -> FloatArray:
    """The score less the mean score of shadow models (S, N) that did not train on the sample."""
    outside = ~inside
    count = outside.sum(axis=0)
    mean = np.where(outside, shadows, 0).sum(axis=0) / np.maximum(count, 1)
    usual: FloatArray = score - np.where(count > 0, mean, shadows.mean(axis=0))
    return usual


def membership(score: FloatArray, member: BoolArray) -> tuple[float, float]:
    """Area under the curve, and the share of members found at 1 % false alarms, of a score of membership."""
    from sklearn.metrics import roc_auc_score, roc_curve

    false, true, _ = roc_curve(member, score)
    return float(roc_auc_score(member, score)), float(np.interp(0.01, false, true))
