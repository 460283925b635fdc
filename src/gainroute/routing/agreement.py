"""Escalate where the parties disagree: the baseline of agreement-based cascades (Kolawole et al., arXiv 2407.02348)."""

from __future__ import annotations

import numpy as np

from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray, RoundOne

__all__ = ["AgreementRouter"]


class AgreementRouter(Router):
    """Escalate where most parties disagree with the weak answer: s = #{i : argmaxₖ pᵢ[k] ≠ ŷ} − p̄[ŷ].

    Votes come first, as in agreement-based cascades. Among equal votes, the one with the lower pooled probability is
    escalated first, so that any budget can be kept. With one party, it is confidence. Nothing is fitted.

    Examples
    --------
    The parties agree on the first sample only:

    >>> import numpy as np
    >>> import gainroute as gr
    >>> local = np.array([[[0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.3, 0.7]]])
    >>> router = gr.AgreementRouter(0.5).fit(local, [0, 1], [0, 1])
    >>> router.route(local).score.round(2).tolist()
    [-0.75, 0.4]
    """

    def score(self, round_one: RoundOne) -> FloatArray:
        """Score samples, (N,)."""
        answer, k = round_one.weak_prediction, round_one.pooled.shape[1]
        dissent = (round_one.local[..., :k].argmax(axis=2) != answer).sum(axis=0)
        sure = np.take_along_axis(round_one.pooled, answer[:, None], axis=1)[:, 0]
        score: FloatArray = dissent - sure
        return score
