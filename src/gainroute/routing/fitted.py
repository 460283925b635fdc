"""What a fitted router knows about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gainroute.errors import NotFittedError
from gainroute.routing.certify import Guarantee
from gainroute.routing.decide import expected_rate
from gainroute.routing.pipeline import Pipeline
from gainroute.routing.types import Calibrator, FloatArray, ThresholdScores

if TYPE_CHECKING:
    from gainroute.routing.absent import Subset
    from gainroute.routing.offers import Offers
    from gainroute.routing.router import Router

__all__ = ["Fitted"]


class Fitted:
    """Base of `Router`: what its fit has set, and what follows from that."""

    _pipeline: Pipeline
    _guarantee: Guarantee | None
    threshold_: float
    tied_share_: float
    threshold_scores_: ThresholdScores
    subset_routers_: Mapping[Subset, Router]
    offers_: Offers | None

    @property
    def confusion_(self) -> FloatArray:
        """C[k, c] = P(strong answer c | truth k), (K, K)."""
        self._check_fitted()
        return self._pipeline.answer.confusion

    @property
    def reliability_(self) -> FloatArray:
        """C[k, k] of the strong route, (K,)."""
        return np.diagonal(self.confusion_).copy()

    @property
    def blends_(self) -> bool:
        """Whether the strong answer takes Round 1 into account."""
        self._check_fitted()
        return self._pipeline.answer.blend is not None

    @property
    def calibrator_(self) -> Calibrator:
        """The fitted calibrator, callable on (N, K)."""
        self._check_fitted()
        return self._pipeline.calibrate

    @property
    def expected_rate_(self) -> tuple[float, float, float]:
        """Escalation rate to expect on new data, with its 95 % interval (rate, low, high)."""
        self._check_fitted()
        return expected_rate(self.threshold_scores_, self.threshold_, self.tied_share_)

    @property
    def guarantee_(self) -> Guarantee | None:
        """What is promised at τ, and with which confidence; None if nothing is, or τ is not that of the fit."""
        self._check_fitted()
        return self._guarantee if self._guarantee and self._guarantee.threshold == self.threshold_ else None

    def _check_fitted(self) -> None:
        if not hasattr(self, "threshold_"):
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted; call fit(local_posteriors, labels, strong_prediction) on "
                "calibration data first, or gr.load a saved one"
            )
