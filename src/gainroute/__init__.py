"""Collaborate only where it pays: expected-gain routing between a weak and a strong prediction.

>>> import gainroute as gr
>>> router = gr.ExpectedGainRouter(budget=0.2)
"""

from gainroute import errors, evaluation
from gainroute._version import __version__
from gainroute.control.budget import BudgetController, ControlledDecision
from gainroute.control.drift import DriftMonitor
from gainroute.control.drift_report import DriftReport
from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.control.recalibrate import recalibrate
from gainroute.control.shadow import ShadowComparison, compare_shadow
from gainroute.control.token_bucket import TokenBucket
from gainroute.errors import GainrouteError, GainrouteWarning
from gainroute.estimators import CascadeClassifier
from gainroute.io.arrow_router import ArrowRouter
from gainroute.routing.absent import fit_subsets
from gainroute.routing.agreement import AgreementRouter
from gainroute.routing.artifacts import load, save
from gainroute.routing.calibrate import (
    CALIBRATORS,
    DirichletCalibrator,
    IdentityCalibrator,
    TemperatureCalibrator,
    fit_dirichlet,
    fit_temperature,
    identity_calibration,
)
from gainroute.routing.certify import Guarantee, kept_error_threshold
from gainroute.routing.conformal import ConformalRouter
from gainroute.routing.decide import calibration_threshold, certified_threshold
from gainroute.routing.learned_gain import LearnedGainRouter
from gainroute.routing.offers import PartialRouter, PricedDecision
from gainroute.routing.partial import PartialDecision, PartialEscalation
from gainroute.routing.payload import communication_cost
from gainroute.routing.pool import POOLS, LogLinearPool, fit_log_linear, pool_mean
from gainroute.routing.quality import QualityRouter
from gainroute.routing.reliability import classwise_reliability, confusion_matrix
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    ROUTERS,
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    DeferRouter,
    ExpectedGainRouter,
    RandomRouter,
)
from gainroute.routing.score import Explanation, expected_gain
from gainroute.routing.two_round import (
    AsyncParty,
    Decider,
    Party,
    Prediction,
    cascade,
    predict_two_round,
    predict_two_round_async,
)
from gainroute.routing.two_stage_defer import TwoStageDeferRouter
from gainroute.routing.types import Answer, CalibrationSet, Decision, Provenance, RoundOne
from gainroute.training.opened_run import OpenedRun, open_run

__all__ = [
    "AgreementRouter",
    "Answer",
    "ArrowRouter",
    "AsyncParty",
    "BudgetController",
    "CalibratedConfidenceRouter",
    "CalibrationSet",
    "CascadeClassifier",
    "ConfidenceRouter",
    "ConformalRouter",
    "ControlledDecision",
    "Decider",
    "Decision",
    "DeferRouter",
    "DirichletCalibrator",
    "DriftMonitor",
    "DriftReport",
    "ExpectedGainRouter",
    "Explanation",
    "GainrouteError",
    "GainrouteWarning",
    "Guarantee",
    "IdentityCalibrator",
    "LearnedGainRouter",
    "LogLinearPool",
    "LoggedDecisions",
    "OpenedRun",
    "PartialDecision",
    "PartialEscalation",
    "PartialRouter",
    "Party",
    "Prediction",
    "PricedDecision",
    "Provenance",
    "QualityRouter",
    "RandomRouter",
    "RoundOne",
    "Router",
    "ShadowComparison",
    "TemperatureCalibrator",
    "TokenBucket",
    "TwoStageDeferRouter",
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
    "fit_subsets",
    "fit_temperature",
    "identity_calibration",
    "kept_error_threshold",
    "load",
    "open_run",
    "pool_mean",
    "predict_two_round",
    "predict_two_round_async",
    "recalibrate",
    "register_calibrator",
    "register_pool",
    "register_router",
    "save",
]

# Decorators that give a class a name: in settings, on the command line, and in saved routers.
register_calibrator = CALIBRATORS.register
register_pool = POOLS.register
register_router = ROUTERS.register
