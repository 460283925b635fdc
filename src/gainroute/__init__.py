"""Collaborate only where it pays: expected-gain routing between a cheap and a strong prediction.

>>> import gainroute as gr
>>> router = gr.ExpectedGainRouter(budget=0.2)
"""

from gainroute import errors, evaluation
from gainroute._version import __version__
from gainroute.artifacts import load, save
from gainroute.bucket import TokenBucket
from gainroute.budget import BudgetController, ControlledDecision
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
from gainroute.drift import DriftMonitor
from gainroute.drift_report import DriftReport
from gainroute.errors import GainrouteError, GainrouteWarning
from gainroute.gain import Explanation, expected_gain
from gainroute.inference import Prediction, cascade, predict_two_round, predict_two_round_async
from gainroute.log_linear import LogLinearPool, fit_log_linear
from gainroute.logged import LoggedDecisions
from gainroute.partial import PartialDecision, PartialEscalation
from gainroute.party import AsyncParty, Party
from gainroute.pooling import pool_mean
from gainroute.recalibration import recalibrate
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
from gainroute.shadow import ShadowComparison, compare_shadow
from gainroute.types import Answer, CalibrationSet, Decision, Provenance, RoundOne

__all__ = [
    "Answer",
    "AsyncParty",
    "BudgetController",
    "CalibratedConfidenceRouter",
    "CalibrationSet",
    "ConfidenceRouter",
    "ControlledDecision",
    "Decision",
    "DeferRouter",
    "DirichletCalibrator",
    "DriftMonitor",
    "DriftReport",
    "ExpectedGainRouter",
    "Explanation",
    "GainrouteError",
    "GainrouteWarning",
    "IdentityCalibrator",
    "LearnedGainRouter",
    "LogLinearPool",
    "LoggedDecisions",
    "PartialDecision",
    "PartialEscalation",
    "Party",
    "Prediction",
    "Provenance",
    "RandomRouter",
    "RoundOne",
    "Router",
    "ShadowComparison",
    "TemperatureCalibrator",
    "TokenBucket",
    "__version__",
    "calibration_threshold",
    "cascade",
    "certified_threshold",
    "classwise_reliability",
    "communication_cost",
    "compare_shadow",
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
    "recalibrate",
    "save",
]
