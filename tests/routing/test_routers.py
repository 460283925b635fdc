"""Routers on data with gaps: unseen and rare classes, absent parties, missing answers, own labels, utilities."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import SettingError
from gainroute.routing.calibrate import LAM_GRID

DATA = world(400, 3, 4, 0)
NEW = world(200, 3, 4, 1)


def test_the_three_lines_of_the_readme():
    router = gr.ExpectedGainRouter(budget=0.2)
    assert router.fit(DATA.local, DATA.labels, DATA.strong) is router
    decision = router.route(NEW.local)
    assert decision.escalate.dtype == bool
    assert decision.pooled.shape == decision.calibrated.shape == (200, 4)
    answer = router.answer(decision, NEW.strong[decision.escalate])
    accuracy = (answer.prediction == NEW.labels).mean()
    assert accuracy > (decision.weak_prediction == NEW.labels).mean()
    np.testing.assert_array_equal(answer.escalated, decision.escalate)


def test_a_class_without_calibration_samples_keeps_its_pooled_mass():
    kept = DATA.labels != 2
    part = DATA.take(kept)
    with pytest.warns(gr.GainrouteWarning, match=r"no calibration sample of class\(es\) 2") as caught:
        router = gr.ExpectedGainRouter(0.2).fit(part.local, part.labels, part.strong)
    assert len(caught) == 1  # once, although every fold lacks the class
    decision = router.route(NEW.local)
    np.testing.assert_allclose(decision.calibrated[:, 2], decision.pooled[:, 2])
    np.testing.assert_allclose(decision.calibrated.sum(axis=1), 1)
    overall = (part.strong == part.labels).mean()
    assert router.reliability_[2] == pytest.approx(overall)
    assert router.confusion_[2].sum() == pytest.approx(1)


def test_calibration_with_an_unseen_class_fits_the_map_over_the_classes_seen():
    """Among the classes seen, it is the paper's objective with the softmax over them alone."""
    part = DATA.take(DATA.labels != 3)
    pooled = part.local.mean(axis=0)
    with pytest.warns(gr.GainrouteWarning):
        fitted = gr.fit_dirichlet(pooled, part.labels)
    features = np.log(pooled + 1e-6)
    logits = (features @ fitted.weight.T + fitted.bias)[:, :3]
    m = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    residual = m - np.eye(3)[part.labels]
    gradient = residual.T @ features + 2 * (fitted.weight - np.eye(4))[:3]
    assert np.abs(gradient).max() < 1e-7
    np.testing.assert_array_equal(fitted.weight[3], [0, 0, 0, 1])


def test_a_rare_class_is_shrunk_when_asked():
    labels, strong = np.repeat([0, 1, 2, 3], [200, 200, 198, 2]), np.repeat([0, 1, 2, 3], [200, 200, 198, 2])
    strong[:40], strong[200:235], strong[400:441] = 1, 0, 0  # 80, 82.5 and 79.3 % right; the rare class 2 of 2
    plain = gr.classwise_reliability(labels, strong)
    shrunk = gr.classwise_reliability(labels, strong, shrinkage="empirical-bayes")
    assert plain[3] == 1.0
    assert 0.75 < shrunk[3] < 0.9
    np.testing.assert_allclose(shrunk[:3], plain[:3], atol=0.02)
    matrix = gr.confusion_matrix(labels, strong, shrinkage="empirical-bayes")
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    router = gr.ExpectedGainRouter(shrinkage="empirical-bayes").fit(DATA.local, DATA.labels, DATA.strong)
    overall = (DATA.strong == DATA.labels).mean()
    plain_router = gr.ExpectedGainRouter(shrinkage="none").fit(DATA.local, DATA.labels, DATA.strong)
    assert (np.abs(router.reliability_ - overall) <= np.abs(plain_router.reliability_ - overall) + 1e-12).all()


def test_no_strong_answer_counts_as_wrong():
    strong = DATA.strong.copy()
    strong[:100] = -1
    router = gr.ExpectedGainRouter.paper(0.2).fit(DATA.local, DATA.labels, strong)
    for c in range(4):
        assert router.reliability_[c] == pytest.approx((strong == DATA.labels)[DATA.labels == c].mean())
    as_none = np.where(strong < 0, None, strong)
    assert gr.ExpectedGainRouter.paper(0.2).fit(DATA.local, DATA.labels, as_none).threshold_ == router.threshold_
    decision = router.route(NEW.local)
    given = NEW.strong[decision.escalate].copy()
    given[0] = -1
    answer = router.answer(decision, given)
    first = np.flatnonzero(decision.escalate)[0]
    assert answer.prediction[first] == decision.weak_prediction[first]
    assert not answer.escalated[first]


def test_strong_posteriors_stand_in_for_predictions_and_become_the_probabilities():
    q = np.full((400, 4), 0.05) + 0.8 * np.eye(4)[DATA.strong]
    router, other = (gr.ExpectedGainRouter(0.2, pooling="log-linear") for _ in range(2))
    router.fit(DATA.local, DATA.labels, strong_posterior=q)
    assert router.threshold_ == other.fit(DATA.local, DATA.labels, DATA.strong).threshold_
    decision = router.route(NEW.local)
    given = (np.full((200, 4), 0.05) + 0.8 * np.eye(4)[NEW.strong])[decision.escalate]
    answer = router.answer(decision, given)
    np.testing.assert_array_equal(answer.probabilities[decision.escalate], given)
    np.testing.assert_array_equal(answer.probabilities[~decision.escalate], decision.pooled[~decision.escalate])
    np.testing.assert_array_equal(answer.prediction, answer.probabilities.argmax(axis=1))


def test_a_bare_strong_prediction_gets_probabilities_by_bayes_rule():
    router = gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong)
    decision = router.route(NEW.local)
    answer = router.answer(decision, NEW.strong[decision.escalate])
    i = np.flatnonzero(decision.escalate)[0]
    joint = np.array([decision.calibrated[i, k] * router.confusion_[k, NEW.strong[i]] for k in range(4)])
    np.testing.assert_allclose(answer.probabilities[i], joint / joint.sum())
    np.testing.assert_allclose(answer.probabilities.sum(axis=1), 1)


def test_absent_parties():
    present = np.ones((3, 400), bool)
    present[1, :50] = False
    holed = DATA.local.copy()
    holed[1, :50] = np.nan
    with pytest.warns(gr.GainrouteWarning, match="50 of 400 samples lack a party"):
        router = gr.ExpectedGainRouter(0.5).fit(holed, DATA.labels, DATA.strong, present=present)
    rest = DATA.take(slice(50, None))
    whole = gr.ExpectedGainRouter(0.5).fit(rest.local, rest.labels, rest.strong)
    assert router.threshold_ == whole.threshold_

    present = np.ones((3, 200), bool)
    present[0, :20] = False
    present[:, 0] = False
    holed = NEW.local.copy()
    holed[0, :20] = np.nan
    decision = router.route(holed, present=present)
    np.testing.assert_array_equal(decision.incomplete, np.arange(200) < 20)
    assert not decision.escalate[:20].any()
    np.testing.assert_allclose(decision.pooled[1:20], NEW.local[1:, 1:20].mean(axis=0))
    np.testing.assert_array_equal(decision.score[20:], router.route(NEW.local).score[20:])
    assert decision.weak_prediction[0] == -1
    assert np.isnan(decision.pooled[0]).all()
    assert np.isfinite(decision.score[1:]).all()
    answer = router.answer(decision, NEW.strong[decision.escalate])
    assert answer.prediction[0] == -1


def test_disagreement_comes_before_doubt():
    """More dissenting votes are escalated first; equal votes by the pooled probability of the answer."""
    data = world(400, 3, 4, 0)
    router = gr.AgreementRouter(0.2).fit(data.local, data.labels, data.strong)
    decision = router.route(data.local)
    dissent = (data.local.argmax(axis=2) != decision.weak_prediction).sum(axis=0)
    sure = data.local.mean(axis=0).max(axis=1)
    np.testing.assert_allclose(decision.score, dissent - sure)
    assert dissent[decision.escalate].min() >= dissent[~decision.escalate].max() - 1
    assert decision.escalate.mean() == pytest.approx(0.2, abs=0.01)


def test_agreement_of_one_party_is_confidence():
    data = world(200, 1, 4, 0)
    one, two = (
        make(0.3).fit(data.local, data.labels, data.strong) for make in (gr.AgreementRouter, gr.ConfidenceRouter)
    )
    np.testing.assert_array_equal(one.route(data.local).escalate, two.route(data.local).escalate)


def test_quality_estimates_are_chances_and_follow_the_routes():
    """Where one route is always right, its quality is almost 1 everywhere, and the score has its sign."""
    data = world(400, 3, 4, 0)
    weak = data.local.mean(axis=0).argmax(axis=1)
    for strong, sign in ((data.labels, 1), ((data.labels + 1) % 4, -1)):
        router = gr.QualityRouter(0.2, threshold="calibration").fit(data.local, data.labels, strong)
        score = router.route(data.local).score
        assert (np.sign(score) == sign).mean() > 0.97
        assert np.abs(score).max() <= 1
    # Calibrated in the mean: a logistic regression reproduces the accuracy of both routes.
    router = gr.QualityRouter(0.2, threshold="calibration").fit(data.local, data.labels, data.strong)
    gain = (data.strong == data.labels).mean() - (weak == data.labels).mean()
    assert router.route(data.local).score.mean() == pytest.approx(gain, abs=0.01)


def test_the_two_stage_rejector_defers_where_the_strong_route_is_right_more_often():
    """Consistency: with many samples, the sign of r is that of P(strong right) − P(weak right)."""
    rng, n = np.random.default_rng(0), 2000
    sure = rng.random(n)  # one party, two classes; the weak answer is right with probability (1 + sure) / 2
    local = np.stack([(1 + sure) / 2, (1 - sure) / 2], axis=1)
    labels = (rng.random(n) > local[:, 0]).astype(int)
    strong = np.where(rng.random(n) < 0.75, labels, 1 - labels)
    router = gr.TwoStageDeferRouter(threshold=0.0).fit(local, labels, strong)
    deferred = router.route(local).escalate
    assert deferred[sure < 0.35].all()
    assert not deferred[sure > 0.65].any()


def test_a_sample_that_no_route_gets_right_teaches_nothing():
    data = world(50, 2, 3, 0)
    wrong = (data.labels + 1) % 3
    local = np.stack([0.8 * np.eye(3)[wrong] + 0.1 / 1.5] * 2)
    local /= local.sum(axis=2, keepdims=True)
    router = gr.TwoStageDeferRouter(0.2, threshold="calibration").fit(
        local, data.labels, wrong, check_class_order=False
    )
    np.testing.assert_array_equal(router.route(local).score, 0)


def test_conformal_sets_hold_the_truth_as_often_as_they_promise():
    data, new = world(1000, 2, 5, 0), world(1000, 2, 5, 1)
    router = gr.ConformalRouter(0.2, level=0.1, threshold="calibration").fit(data.local, data.labels, data.strong)
    pooled = router.route(new.local).pooled
    p = router._pipeline.score.p_values(pooled)
    assert (p[np.arange(1000), new.labels] > 0.1).mean() == pytest.approx(0.9, abs=0.04)
    assert 0 < p.min() <= p.max() <= 1
    size = np.maximum((p > 0.1).sum(axis=1), 1)
    escalate = router.route(new.local).escalate
    assert size[escalate].min() >= size[~escalate].max(), "larger sets come first"
    with pytest.raises(SettingError, match=r"level is 2; it lies in \[0, 1\]: such as 0.1"):
        gr.ConformalRouter(level=2)


@pytest.mark.parametrize(
    "make",
    [
        gr.LearnedGainRouter,
        gr.ConfidenceRouter,
        gr.RandomRouter,
        gr.ConformalRouter,
        gr.QualityRouter,
        gr.TwoStageDeferRouter,
    ],
)
def test_absent_parties_leave_every_score_defined(make):
    router = make(0.5, threshold="calibration").fit(DATA.local, DATA.labels, DATA.strong)
    present = np.ones((3, 200), bool)
    present[2, ::2] = False
    decision = router.route(NEW.local, present=present)
    assert np.isfinite(decision.score).all()
    assert not decision.escalate[::2].any()


def test_own_labels():
    names = np.array(["ant", "bee", "cat", "dog"])
    router = gr.ExpectedGainRouter(0.2, classes=names).fit(DATA.local, names[DATA.labels], names[DATA.strong])
    plain = gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong)
    assert router.threshold_ == plain.threshold_
    decision = router.route(NEW.local)
    np.testing.assert_array_equal(decision.weak_prediction, names[plain.route(NEW.local).weak_prediction])
    answer = router.answer(decision, names[NEW.strong][decision.escalate])
    assert set(answer.prediction) <= set(names)
    with pytest.raises(gr.errors.LabelError, match=r"labels\[0\] is 'cow'; classes= allows 'ant', 'bee'"):
        gr.ExpectedGainRouter(classes=names).fit(DATA.local, np.full(400, "cow"), names[DATA.strong])
    none = names[DATA.strong].astype(object)
    none[0] = None
    gr.ExpectedGainRouter(0.2, classes=names).fit(DATA.local, names[DATA.labels], none)
    curve = gr.evaluation.tradeoff_curve(decision.score, decision.weak_prediction, names[NEW.strong], names[NEW.labels])
    assert curve.accuracy[-1] == (NEW.strong == NEW.labels).mean()


def test_minus_one_may_be_a_label_too():
    data = world(200, 2, 2, 0)
    signs = np.array([-1, 1])
    router = gr.ExpectedGainRouter.paper(classes=signs).fit(data.local, signs[data.labels], signs[data.strong])
    assert router.reliability_[0] == pytest.approx((data.strong == 0)[data.labels == 0].mean())
    assert set(router.route(data.local).weak_prediction) == {-1, 1}


def test_the_identity_utility_is_accuracy_and_a_real_one_is_the_sum_in_the_issue():
    identity = gr.ExpectedGainRouter(0.2, utility=np.eye(4), answer_by="argmax").fit(
        DATA.local, DATA.labels, DATA.strong
    )
    plain = gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong)
    np.testing.assert_allclose(identity.route(NEW.local).score, plain.route(NEW.local).score, atol=1e-12)
    utility = np.random.default_rng(0).normal(size=(4, 4))
    router = gr.ExpectedGainRouter(0.2, utility=utility).fit(DATA.local, DATA.labels, DATA.strong)
    decision = router.route(NEW.local)
    c = router.confusion_
    for n in range(20):
        expected = sum(
            decision.calibrated[n, k]
            * (sum(c[k, j] * utility[k, j] for j in range(4)) - utility[k, decision.weak_prediction[n]])
            for k in range(4)
        )
        assert decision.score[n] == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(
        gr.expected_gain(decision.calibrated, c, decision.weak_prediction, utility=utility), decision.score
    )


def test_an_explanation_adds_up():
    for utility in (None, np.random.default_rng(0).normal(size=(4, 4))):
        router = gr.ExpectedGainRouter(0.2, utility=utility).fit(DATA.local, DATA.labels, DATA.strong)
        decision = router.route(NEW.local)
        for i in (0, 3):
            explained = router.explain(NEW.local[:, i])
            assert explained.contribution.sum() == pytest.approx(decision.score[i], abs=1e-12)
            assert explained.escalate == decision.escalate[i]
            assert explained.weak_prediction == decision.weak_prediction[i]
    text = str(explained)
    assert ("escalate" in text) or ("keep" in text)
    assert "reliability" in text


def test_weights_are_repeated_samples():
    weight = np.random.default_rng(9).integers(0, 3, size=400)
    rows = np.repeat(np.arange(400), weight)
    repeated = DATA.take(rows)
    one = gr.ExpectedGainRouter(0.2, threshold="calibration").fit(
        DATA.local, DATA.labels, DATA.strong, sample_weight=weight
    )
    two = gr.ExpectedGainRouter(0.2, threshold="calibration").fit(repeated.local, repeated.labels, repeated.strong)
    np.testing.assert_allclose(one.calibrator_.weight, two.calibrator_.weight, atol=1e-8)
    np.testing.assert_allclose(one.confusion_, two.confusion_)
    np.testing.assert_allclose(one.route(NEW.local).score, two.route(NEW.local).score, atol=1e-8)


def test_cross_validation_chooses_lambda_and_epsilon():
    data = world(300, 1, 8, 3, strength=2.0)
    zeros = data.local[0].astype(np.float16).astype(float)
    zeros[zeros < 1e-3] = 0
    zeros /= zeros.sum(axis=1, keepdims=True)
    new = world(2000, 1, 8, 4, strength=2.0)
    fixed = gr.fit_dirichlet(zeros, data.labels, lam=0.03, eps=1e-8)
    chosen = gr.fit_dirichlet(zeros, data.labels, lam="cv", eps="cv")
    nll = gr.evaluation.negative_log_likelihood
    assert nll(chosen(new.local[0]), new.labels) < nll(fixed(new.local[0]), new.labels)
    assert chosen.lam > 0.03
    router = gr.ExpectedGainRouter(0.2, lam="cv", eps=1e-3).fit(data.local, data.labels, data.strong)
    assert router.calibrator_.lam in LAM_GRID
    assert router.calibrator_.eps == 1e-3


def test_temperature_is_the_best_single_number():
    data = world(500, 2, 4, 0)
    pooled = data.local.mean(axis=0)
    fitted = gr.fit_temperature(pooled, data.labels)
    nll = gr.evaluation.negative_log_likelihood

    def at(t):
        logits = np.log(pooled + 1e-6) / t
        m = np.exp(logits)
        return nll(m / m.sum(axis=1, keepdims=True), data.labels)

    best = min(np.linspace(0.2, 3, 500), key=at)
    assert fitted.temperature == pytest.approx(best, abs=0.01)
    assert gr.identity_calibration(pooled) is pooled


def test_calibration_lowers_the_calibration_error():
    data, new = world(3000, 1, 5, 0), world(3000, 1, 5, 1)
    router = gr.ExpectedGainRouter.paper(0.2).fit(data.local, data.labels, data.strong)
    decision = router.route(new.local)
    ece = gr.evaluation.expected_calibration_error
    assert ece(decision.calibrated, new.labels) < 0.5 * ece(decision.pooled, new.labels)
    diagram = gr.evaluation.reliability_diagram(decision.calibrated, new.labels, bins=10)
    assert diagram.share.sum() == pytest.approx(1)


def test_the_learned_router_finds_a_gain_that_can_be_learned():
    data, new = world(3000, 2, 3, 0), world(3000, 2, 3, 1)
    learned = gr.LearnedGainRouter(0.2, threshold="calibration").fit(data.local, data.labels, data.strong)
    decision = learned.route(new.local)
    weak = decision.weak_prediction
    point = gr.evaluation.operating_point(decision.score, weak, new.strong, new.labels, rate=0.2)
    random = gr.evaluation.operating_point(np.zeros(3000), weak, new.strong, new.labels, rate=0.2)
    assert point.accuracy > random.accuracy + 0.03
    again = gr.LearnedGainRouter(0.2, threshold="calibration").fit(data.local, data.labels, data.strong)
    np.testing.assert_array_equal(decision.score, again.route(new.local).score)


def test_weight_decay_by_cross_validation_errs_less_on_new_samples():
    data, new = world(400, 2, 8, 0), world(2000, 2, 8, 1)
    settings = {"hidden": 16, "epochs": 60, "threshold": "calibration"}

    def error(decay: float | str) -> float:
        router = gr.LearnedGainRouter(weight_decay=decay, **settings).fit(data.local, data.labels, data.strong)
        decision = router.route(new.local)
        gain = (new.strong == new.labels).astype(float) - (decision.weak_prediction == new.labels)
        return float(((decision.score - gain) ** 2).mean())

    assert error("cv") < error(1e-3)
    with pytest.raises(SettingError, match="weight_decay is 'best'"):
        gr.LearnedGainRouter(weight_decay="best")


def test_random_scores_are_uniform_and_differ_by_seed():
    local = world(5000, 2, 3, 0).local
    data = world(100, 2, 3, 1)
    one = gr.RandomRouter(seed=0).fit(data.local, data.labels, data.strong).route(local).score
    two = gr.RandomRouter(seed=1).fit(data.local, data.labels, data.strong).route(local).score
    assert abs(one.mean() - 0.5) < 0.02
    assert abs(np.quantile(one, 0.1) - 0.1) < 0.02
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.05


def test_a_router_of_ones_own_gets_everything_else():
    class Margin(gr.Router):
        def score(self, round_one):
            top = np.sort(round_one.pooled, axis=1)
            return top[:, -2] - top[:, -1]

    class PriorGain(gr.Router):
        def fit_score(self, calibration):
            gain = np.array([calibration.gain[calibration.round_one.weak_prediction == k].mean() for k in range(4)])
            return lambda round_one: gain[round_one.weak_prediction]

    for make in (Margin, PriorGain):
        router = make(budget=0.3).fit(DATA.local, DATA.labels, DATA.strong)
        decision = router.route(NEW.local)
        assert decision.escalate.mean() <= 0.45
        assert router.threshold_for(0.0) == np.inf
    with pytest.raises(gr.errors.ArtifactError, match="a file cannot carry its code"):
        gr.save(router, "never.safetensors")


def test_the_repr_shows_what_differs_from_the_default():
    assert repr(gr.ExpectedGainRouter()) == "ExpectedGainRouter()"
    assert repr(gr.ExpectedGainRouter(0.3, lam=2.0)) == "ExpectedGainRouter(budget=0.3, lam=2.0)"


def test_a_fit_on_clean_data_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong).route(NEW.local)


def test_utility_counts_in_the_curve():
    utility = np.array([[1.0, 0.0], [-5.0, 2.0]])
    weak, strong, labels = np.array([0, 0, 1]), np.array([0, 1, -1]), np.array([0, 1, 1])
    curve = gr.evaluation.tradeoff_curve([1.0, 3.0, 2.0], weak, strong, labels, utility=utility)
    # kept: 1, −5, 2; taken: 1, 2, worst of class 1 = −5
    np.testing.assert_allclose(curve.utility, [-2 / 3, 5 / 3, -2 / 3, -2 / 3])


def test_the_oracles_share():
    data = world(500, 2, 4, 0)
    weak = data.local.mean(axis=0).argmax(axis=1)
    gain = gr.evaluation.oracle_score(weak, data.strong, data.labels)
    oracle = gr.evaluation.tradeoff_curve(gain, weak, data.strong, data.labels)
    flat = gr.evaluation.tradeoff_curve(np.zeros(500), weak, data.strong, data.labels)
    assert gr.evaluation.oracle_share(oracle, oracle) == 1
    assert gr.evaluation.oracle_share(flat, oracle) == pytest.approx(0, abs=1e-9)
