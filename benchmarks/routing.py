"""Routing: `paper()` against the bare numpy arithmetic of the same map, and our default against `paper()`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.problems import posteriors
from benchmarks.rows import Row, interleaved, row, timed
from gainroute import ExpectedGainRouter

__all__ = ["run"]

Array = npt.NDArray[Any]
PARTIES = 4


def run() -> Iterator[Row]:
    """Measure batches of 4,096, 1 and 1,000,000 at K = 10, and K = 1,000; then the default, by the sample."""
    router = _router(10, 5000)
    for batch, repeats, bar in ((4096, 200, "<= 2"), (1, 2000, None), (1_000_000, 3, None)):
        local, _ = posteriors(10, batch, PARTIES, seed=1)
        yield from _measure(f"K=10, batch {batch:,}", router, local, repeats, bar)
    router = _router(1000, 3000)
    local, _ = posteriors(1000, 4096, PARTIES, seed=1)
    yield from _measure("K=1,000, batch 4,096", router, local, 5, None)
    yield from _default_against_paper()


def _default_against_paper() -> Iterator[Row]:
    """What a sample costs with the default, whatever that is, over what it costs with the paper's router."""
    local, labels = posteriors(10, 2000, PARTIES)
    paper, default = ExpectedGainRouter.paper(), ExpectedGainRouter()
    for router in (paper, default):
        router.fit(local, labels, strong_posterior=local[0])
    for batch, repeats in ((1, 3000), (64, 2000)):
        new, _ = posteriors(10, batch, PARTIES, seed=1)
        sent = new.astype(np.float32)
        calls = [partial(timed, partial(router.route, sent)) for router in (default, paper)]
        for call in calls:
            call()
        ours, other = (1e6 * seconds / batch for seconds in interleaved(calls, repeats))
        what = f"K=10, batch {batch:,}: µs per sample, our default against the paper's router"
        yield row(what, ours, other, ours / other)


def _router(classes: int, samples: int) -> ExpectedGainRouter:
    local, labels = posteriors(classes, samples, PARTIES)
    labels[:classes] = np.arange(classes)
    return ExpectedGainRouter.paper(budget=0.2, lam=10.0).fit(local, labels, labels)


def _measure(what: str, router: ExpectedGainRouter, local: Array, repeats: int, bar: str | None) -> Iterator[Row]:
    calibrator: Any = router.calibrator_

    def bare() -> Array:
        logits = np.log(local.mean(axis=0) + calibrator.eps) @ calibrator.weight.T + calibrator.bias
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        calibrated: Array = exponents / exponents.sum(axis=1, keepdims=True)
        return calibrated

    calls = [partial(timed, partial(router.route, local)), partial(timed, bare)]
    for call in calls:
        call()
    ours, other = interleaved(calls, repeats)
    yield row(f"{what}: seconds, against bare numpy mean + log + matmul + softmax", ours, other, ours / other, bar)
    ours, other = _peak(lambda: router.route(local)), _peak(bare)
    yield row(f"{what}: peak memory in MB, likewise", ours, other, ours / other)


def _peak(call: Any) -> float:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak
