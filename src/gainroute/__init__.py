"""Collaborate only where it pays: expected-gain routing between a cheap and a strong prediction.

>>> import gainroute as gr
>>> router = gr.ExpectedGainRouter(budget=0.2)
"""

from gainroute import errors, evaluation
from gainroute._version import __version__
from gainroute.artifacts import load, save
from gainroute.calibration import (
    DirichletCalibrator,
    IdentityCalibrator,
    TemperatureCalibrator,
    fit_dirichlet,
    fit_temperature,
    identity_calibration,
)
from gainroute.communication import communication_cost
from gainroute.decision import calibration_threshold, certified_threshold
from gainroute.errors import GainrouteError, GainrouteWarning
from gainroute.gain import Explanation, expected_gain
from gainroute.inference import Prediction, cascade, predict_two_round, predict_two_round_async
from gainroute.log_linear import LogLinearPool, fit_log_linear
from gainroute.partial import PartialDecision, PartialEscalation
from gainroute.party import AsyncParty, Party
from gainroute.pooling import pool_mean
from gainroute.reliability import classwise_reliability, confusion_matrix
from gainroute.router import Router
from gainroute.routers import (
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    DeferRouter,
    ExpectedGainRouter,
    LearnedGainRouter,
    RandomRouter,
)
from gainroute.types import Answer, CalibrationSet, Decision, Provenance, RoundOne

__all__ = [
    "Answer",
    "AsyncParty",
    "CalibratedConfidenceRouter",
    "CalibrationSet",
    "ConfidenceRouter",
    "Decision",
    "DeferRouter",
    "DirichletCalibrator",
    "ExpectedGainRouter",
    "Explanation",
    "GainrouteError",
    "GainrouteWarning",
    "IdentityCalibrator",
    "LearnedGainRouter",
    "LogLinearPool",
    "PartialDecision",
    "PartialEscalation",
    "Party",
    "Prediction",
    "Provenance",
    "RandomRouter",
    "RoundOne",
    "Router",
    "TemperatureCalibrator",
    "__version__",
    "calibration_threshold",
    "cascade",
    "certified_threshold",
    "classwise_reliability",
    "communication_cost",
    "confusion_matrix",
    "errors",
    "evaluation",
    "expected_gain",
    "fit_dirichlet",
    "fit_log_linear",
    "fit_temperature",
    "identity_calibration",
    "load",
    "pool_mean",
    "predict_two_round",
    "predict_two_round_async",
    "save",
]
