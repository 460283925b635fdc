"""Routing where the server sees the pooled posterior only, because Round 1 is masked."""

from __future__ import annotations

import numpy as np

from gainroute.errors import InputError
from gainroute.routing.router import Router
from gainroute.routing.types import BoolArray, Decision, FloatArray

__all__ = ["route_pooled"]


def route_pooled(router: Router, pooled: FloatArray, incomplete: BoolArray | None = None) -> Decision:
    """Decide from pooled posteriors instead of local ones, as `Router.route` does.

    Parameters
    ----------
    router
        Fitted with ``pooled_only=True``.
    pooled : (N, K)
        As the router's pool gives them; a row of NaN is a sample without an answer.
    incomplete : (N,) bool, optional
        Samples that lack a party. They are not escalated.
    """
    if not router.pooled_only:
        raise InputError("the router reads local posteriors; fit it with pooled_only=True to route pooled ones")
    router._check_fitted()
    at = router._pipeline.after_pool(pooled)
    lacking = np.isnan(pooled[:, 0])
    return router._decision(router._pipeline.scores(at), at, lacking if incomplete is None else lacking | incomplete)
