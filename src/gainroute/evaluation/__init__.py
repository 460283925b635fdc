"""Evaluation on labelled data: metrics, plans, comparisons, figures. The serving side does not import it."""

from gainroute.evaluation.metrics import (
    OperatingPoint,
    ReliabilityDiagram,
    TradeoffCurve,
    expected_calibration_error,
    negative_log_likelihood,
    operating_point,
    oracle_score,
    oracle_share,
    reliability_diagram,
    tradeoff_curve,
)

__all__ = [
    "OperatingPoint",
    "ReliabilityDiagram",
    "TradeoffCurve",
    "expected_calibration_error",
    "negative_log_likelihood",
    "operating_point",
    "oracle_score",
    "oracle_share",
    "reliability_diagram",
    "tradeoff_curve",
]
