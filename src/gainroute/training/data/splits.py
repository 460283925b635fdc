"""Stratified, seeded splits, and the hashes that identify splits and data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, SettingError
from gainroute.routing.types import IntArray, LabelArray

__all__ = ["content_hash", "fixed_test_split", "split_hash", "stratified_split"]

# Of data sets without an official test part: fixed, independent of the seed of a run.
_TEST_SHARE, _TEST_SEED = 0.3, 20240


def stratified_split(labels: npt.ArrayLike, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Split the rows in two, each class in the same proportion.

    Parameters
    ----------
    labels
        (N,) classes.
    share
        The share of every class that goes to the second part, between 0 and 1. The second part has
        ``round(share * N)`` rows: classes with the largest remainders get the odd ones.
    seed
        The same seed gives the same split.

    Returns
    -------
    first, second
        Rows in ascending order.

    Examples
    --------
    >>> first, second = stratified_split([0, 0, 0, 0, 1, 1, 1, 1], 0.25, seed=0)
    >>> len(first), len(second)
    (6, 2)
    """
    labels = np.asarray(labels)
    if not 0 < share < 1:
        raise SettingError(f"share is {share}: a split takes a share above 0 and below 1")
    if len(labels) < 2:
        raise DataError(f"{len(labels)} samples cannot be split: at least 2 are needed")
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    wanted = counts * share
    taken = np.floor(wanted).astype(np.int64)
    missing = round(share * len(labels)) - int(taken.sum())
    if missing > 0:
        taken[np.argsort(taken - wanted, kind="stable")[:missing]] += 1
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(codes == k))[: taken[k]] for k in range(len(names))]
    second = np.sort(np.concatenate(chosen)).astype(np.int64)
    first = np.setdiff1d(np.arange(len(labels), dtype=np.int64), second, assume_unique=True)
    return first, second


def fixed_test_split(labels: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Rows of the training part and of a test part of 30 %, stratified, for a data set without an official one."""
    return stratified_split(labels, _TEST_SHARE, _TEST_SEED)


def split_hash(*parts: tuple[LabelArray, IntArray]) -> str:
    """A SHA-256 over the ids and labels of each part: training, calibration, test."""
    digest = hashlib.sha256()
    for ids, labels in parts:
        body = "\n".join(f"{name}\t{label}" for name, label in zip(ids.tolist(), labels.tolist(), strict=True))
        digest.update(f"{len(labels)}\n{body}\n".encode())
    return digest.hexdigest()


def content_hash(views: Sequence[npt.NDArray[np.float32]]) -> str:
    """A hash over all values of the views: different pixels with the same ids are different data."""
    digest = hashlib.blake2b(digest_size=16)
    for view in views:
        digest.update(repr(view.shape).encode())
        digest.update(np.ascontiguousarray(view).data)
    return digest.hexdigest()
