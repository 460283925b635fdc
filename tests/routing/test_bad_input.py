"""Bad input gets an error that names the value, what is allowed and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import (
    InputError,
    LabelError,
    NotFittedError,
    PosteriorError,
    SettingError,
    ShapeError,
    TooFewSamplesError,
)

DATA = world(60, 2, 3, 0)


def spoiled(value):
    local = DATA.local.copy()
    local[1, 7] = value
    return local


POSTERIORS = {
    "NaN": (spoiled([np.nan, 0.5, 0.5]), PosteriorError, r"party 1, row 7 has NaN; drop the row"),
    "negative": (spoiled([-0.1, 0.6, 0.5]), PosteriorError, r"party 1, row 7 has a negative entry \(-0.1\).*softmax"),
    "sum": (spoiled([0.1, 0.6, 0.5]), PosteriorError, r"party 1, row 7 sums to 1.2; posteriors sum to 1 within 0.001"),
    "infinite": (spoiled([np.inf, 0, 0]), PosteriorError, r"party 1, row 7 sums to inf"),
    "rank": (DATA.local[0, 0], ShapeError, r"shape \(3,\); allowed are \(M, N, K\)"),
    "rank 4": (DATA.local[None], ShapeError, r"shape \(1, 2, 60, 3\)"),
    "ragged": ([DATA.local[0], DATA.local[1, :5]], ShapeError, "ragged"),
    "one class": (np.ones((2, 60, 1)), ShapeError, "at least two are needed"),
    "empty": (np.ones((2, 0, 3)), ShapeError, "is empty"),
    "text": (np.full((2, 60, 3), "a"), PosteriorError, "posteriors are numbers"),
}


@pytest.mark.parametrize("case", POSTERIORS)
def test_posteriors_that_cannot_be_used(case):
    local, error, message = POSTERIORS[case]
    with pytest.raises(error, match=message):
        gr.ExpectedGainRouter().fit(local, DATA.labels, DATA.strong)
    router = gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises((error, ShapeError)):
        router.route(local)
    with pytest.raises((error, ShapeError)):
        gr.pool_mean(local)


def test_a_bad_row_far_down_is_named_by_its_own_number():
    many = np.tile(DATA.local, (1, 2000, 1))
    many[1, 100_003] = np.nan
    router = gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(PosteriorError, match=r"party 1, row 100003 has NaN"):
        router.route(many)


def test_sums_within_the_tolerance_are_accepted():
    local = spoiled([0.3335, 0.333, 0.3344])  # sums to 1.0009
    gr.ExpectedGainRouter().fit(local, DATA.labels, DATA.strong).route(local)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.where(np.arange(60) == 4, 3, DATA.labels), LabelError, r"labels\[4\] is 3; allowed are 0 … 2"),
        (np.where(np.arange(60) == 4, -1, DATA.labels), LabelError, r"labels\[4\] is -1"),
        (DATA.labels[:50], ShapeError, "50 entries for 60 samples"),
        (DATA.labels[None], ShapeError, r"shape \(1, 60\)"),
        (DATA.labels + 0.5, LabelError, "integers 0 … K−1 are needed"),
        (DATA.labels.astype(str), LabelError, "pass classes="),
    ],
)
def test_labels_outside_the_classes(labels, error, message):
    with pytest.raises(error, match=message):
        gr.ExpectedGainRouter().fit(DATA.local, labels, DATA.strong)
    with pytest.raises(error):
        gr.fit_dirichlet(DATA.local[0], labels)


def test_strong_predictions_outside_the_classes():
    with pytest.raises(LabelError, match=r"strong_prediction\[0\] is 3; allowed are 0 … 2 \(or −1: no answer\)"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, np.full(60, 3))
    with pytest.raises(InputError, match="neither strong_prediction nor strong_posterior"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 1.5}, r"budget is 1.5; it lies in \[0, 1\]"),
        ({"budget": -0.1}, "budget is -0.1"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"budget": "much"}, "budget is 'much'"),
        (
            {"threshold": "guess"},
            "threshold is 'guess'; allowed are 'calibration', 'cross-fitted', 'certified', 'certified-error'",
        ),
        ({"confidence": 2}, "confidence is 2"),
        ({"folds": 1}, "folds is 1"),
        ({"min_gain": "none"}, "min_gain is 'none'"),
        ({"lam": 0}, "lam is 0; it is a number > 0"),
        ({"lam": "best"}, "lam is 'best'"),
        ({"eps": -1}, "eps is -1"),
        ({"calibration": "platt"}, "calibration is 'platt'; allowed are 'dirichlet'"),
        ({"shrinkage": "some"}, "shrinkage is 'some'"),
    ],
)
def test_settings_outside_their_range(settings, message):
    with pytest.raises(SettingError, match=message):
        gr.ExpectedGainRouter(**settings)


def test_other_bad_arguments():
    with pytest.raises(LabelError, match="repeats a label"):
        gr.ExpectedGainRouter(classes=["a", "a", "b"])
    with pytest.raises(ShapeError, match="classes= lists 2 labels, the posteriors have 3 classes"):
        gr.ExpectedGainRouter(classes=["a", "b"]).fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(ShapeError, match=r"utility has shape \(2, 2\); \(3, 3\) is needed"):
        gr.ExpectedGainRouter(utility=np.eye(2)).fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(ShapeError, match=r"sample_weight has shape \(3,\); \(60,\) is needed"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong, sample_weight=[1, 2, 3])
    with pytest.raises(SettingError, match="sample_weight must be finite"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong, sample_weight=-np.ones(60))
    with pytest.raises(ShapeError, match=r"present has shape \(60,\)"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong, present=np.ones(60, bool))
    with pytest.raises(ShapeError, match="bool is needed"):
        gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong, present=np.ones((2, 60)))
    with pytest.raises(ShapeError, match="pass the confusion matrix"):
        gr.expected_gain([[0.5, 0.5]], [1, 1], [0], utility=np.eye(2))
    with pytest.raises(TooFewSamplesError, match="at least 2 samples"):
        gr.ConfidenceRouter().fit(DATA.local[:, :1], DATA.labels[:1], DATA.strong[:1])


def test_another_number_of_parties_or_classes_than_at_the_fit():
    router = gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(ShapeError, match=r"comes from 1 part\(ies\), the router was fitted with 2"):
        router.route(DATA.local[0])
    with pytest.raises(ShapeError, match="has 5 classes, 3 were expected"):
        router.route(world(10, 2, 5).local)
    with pytest.raises(ShapeError, match="one sample, \\(M, K\\), is needed"):
        router.explain(DATA.local)


def test_an_unfitted_router_says_so():
    for use in (
        lambda r: r.route(DATA.local),
        lambda r: r.threshold_for(0.2),
        lambda r: r.calibrator_,
        lambda r: r.reliability_,
        lambda r: r.explain(DATA.local[:, 0]),
        lambda r: gr.save(r, "never.safetensors"),
    ):
        with pytest.raises(NotFittedError, match=r"not fitted; call fit\("):
            use(gr.ExpectedGainRouter())


def test_a_failed_fit_leaves_the_router_as_it_was():
    router = gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong)
    before = router.route(DATA.local).score
    with pytest.raises(PosteriorError):
        router.fit(spoiled([np.nan, 0.5, 0.5]), DATA.labels, DATA.strong)
    np.testing.assert_array_equal(router.route(DATA.local).score, before)


def test_answers_for_other_samples_than_the_escalated():
    router = gr.ExpectedGainRouter(0.3).fit(DATA.local, DATA.labels, DATA.strong)
    decision = router.route(DATA.local)
    with pytest.raises(ShapeError, match=r"strong has 60 rows, \d+ samples were escalated.*x\[decision.escalate\]"):
        router.answer(decision, DATA.strong)


def test_own_weak_answers_are_needed_on_both_sides_or_on_none():
    own = DATA.labels * 0
    router = gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong, weak_prediction=own)
    with pytest.raises(InputError, match="fitted with weak_prediction=; route it with as well"):
        router.route(DATA.local)
    assert (router.route(DATA.local, weak_prediction=own).weak_prediction == 0).all()
    plain = gr.ExpectedGainRouter().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(InputError, match="fitted without"):
        plain.route(DATA.local, weak_prediction=own)


def test_a_score_of_the_wrong_shape_or_nan():
    class Wrong(gr.Router):
        def score(self, round_one):
            return round_one.pooled

    class Blank(gr.Router):
        def score(self, round_one):
            return np.full(len(round_one.pooled), np.nan)

    with pytest.raises(ShapeError, match=r"score has shape \(60, 3\)|score has shape \(3, 3\)"):
        Wrong().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(SettingError, match="score is NaN"):
        Blank().fit(DATA.local, DATA.labels, DATA.strong)
    with pytest.raises(SettingError, match="defines neither score"):
        gr.Router().fit(DATA.local, DATA.labels, DATA.strong)


def test_evaluation_refuses_what_it_cannot_count():
    weak = strong = labels = np.zeros(4, int)
    with pytest.raises(ShapeError, match="score has shape"):
        gr.evaluation.tradeoff_curve(np.zeros(3), weak, strong, labels)
    with pytest.raises(SettingError, match="score is NaN"):
        gr.evaluation.tradeoff_curve(np.full(4, np.nan), weak, strong, labels)
    with pytest.raises(SettingError, match="exactly one"):
        gr.evaluation.operating_point(np.zeros(4), weak, strong, labels)
    with pytest.raises(SettingError, match="rate is 2"):
        gr.evaluation.operating_point(np.zeros(4), weak, strong, labels, rate=2)
    with pytest.raises(ShapeError, match=r"one \(N,\) each"):
        gr.evaluation.oracle_score(weak, strong, labels[:3])
    with pytest.raises(SettingError, match="at least two classes"):
        gr.communication_cost(1, [5])
