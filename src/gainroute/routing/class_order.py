"""Refuse posteriors whose columns are, by the evidence of the labels, in another order than the classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gainroute.errors import InputError
from gainroute.routing.types import FloatArray, IntArray, LabelArray

__all__ = ["check_class_order", "likely_order"]

# Standard errors by which permuted columns have to be right more often. Of 2,250 checks on all committed records, and
# 3,000 on synthetic models that know little or nothing, the highest was 3.2; most swapped columns reach 8 to 70.
SURE = 4.5


def check_class_order(posteriors: Sequence[tuple[str, FloatArray]], labels: IntArray, names: LabelArray | None) -> None:
    """Raise InputError if a permutation of the columns of any of these posteriors would be right far more often.

    Each is given with its name; labels (N,) are column numbers, and `names` the labels in column order.
    """
    for name, posterior in posteriors:
        found = likely_order(posterior, labels)
        if found is None:
            continue
        order, given, permuted = found
        label = np.arange(len(order)) if names is None else names
        moved = [
            f"column {column} looks like class {label[truth].item()!r}, not {label[column].item()!r}"
            for column, truth in enumerate(order.tolist())
            if truth != column
        ]
        more = f", and {len(moved) - 6} more" if len(moved) > 6 else ""
        likely = "" if len(order) > 20 else f" (likely order: {', '.join(str(label[t].item()) for t in order)})"
        raise InputError(
            f"{name}: the columns seem to be in another order than the classes: {'; '.join(moved[:6])}{more}. On these "
            f"classes {100 * given:.0f} % of the answers are right as given, {100 * permuted:.0f} % with the columns "
            f"permuted. Bring classes= (--classes) or the columns into the right order{likely}, or, if the model is "
            "really that wrong, pass check_class_order=False (--no-check-class-order)"
        )


def likely_order(posterior: FloatArray, labels: IntArray) -> tuple[IntArray, float, float] | None:
    """The class that each column holds, (K,), with the recall as given and permuted; None if the order is plausible.

    Each half of the samples chooses the permutation that the other half is judged by, so that chance gains nothing.
    Recall is averaged over classes: a model that always gives one answer is not improved by any permutation. Only
    classes with samples in both halves take part.
    """
    n, k = posterior.shape
    answers: IntArray = posterior.argmax(axis=1)
    half = np.arange(n) % 2 == 0
    counts = [np.bincount(labels[rows], minlength=k) for rows in (half, ~half)]
    seen = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
    if len(seen) < 2:
        return None
    column = np.stack([_assign(answers[rows], labels[rows], seen, k) for rows in (~half, half)])
    judged_by = column[np.where(half, 0, 1), labels]
    moved = judged_by != labels
    if not moved.any():
        return None
    weight = 1 / (counts[0] + counts[1])[labels[moved]]
    right = answers[moved] == judged_by[moved], answers[moved] == labels[moved]
    permuted, given = (float(np.average(hit, weights=weight)) for hit in right)
    difference = weight * (right[0].astype(np.float64) - right[1])
    if difference.sum() < SURE * np.sqrt(np.square(difference).sum()) or permuted < 1.5 * given:
        return None
    order = np.argsort(_assign(answers, labels, seen, k))
    return (order, given, permuted) if (order != np.arange(k)).any() else None


def _assign(answers: IntArray, labels: IntArray, seen: IntArray, k: int) -> IntArray:
    """The column, for each class, that makes the answers right most often; (K,)."""
    column: IntArray = np.arange(k)
    hits = np.bincount(labels * k + answers, minlength=k * k).reshape(k, k)
    count = hits.sum(axis=1)[seen]
    # One standard error in favour of the order as given.
    recall = hits[np.ix_(seen, seen)] / np.maximum(count, 1)[:, None] + np.diag(1 / np.sqrt(np.maximum(count, 1)))
    if not (recall.argmax(axis=1) == np.arange(len(seen))).all():
        from scipy.optimize import linear_sum_assignment  # takes half a second, and few data sets need it

        column[seen] = seen[linear_sum_assignment(recall, maximize=True)[1]]
    return column
