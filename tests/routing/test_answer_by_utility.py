"""With a utility, both routes give the answer expected to be worth most, and the score is about these answers."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import world

import gainroute as gr

DATA, NEW = world(500, 2, 3, 0), world(300, 2, 3, 1)
UTILITY = np.array([[0.0, -1.0, -2.0], [-6.0, 0.0, -1.0], [-4.0, -3.0, 1.0]])


def posterior_of(data) -> np.ndarray:
    """A strong posterior that is unsure enough for the utility to matter."""
    noise = np.random.default_rng(7).dirichlet(np.ones(3), size=len(data.labels))
    return 0.5 * noise + 0.5 * (0.55 * np.eye(3)[data.strong] + 0.15)


def fitted(**settings) -> gr.ExpectedGainRouter:
    router = gr.ExpectedGainRouter(0.3, utility=UTILITY, folds=4, **settings)
    return router.fit(DATA.local, DATA.labels, strong_posterior=posterior_of(DATA))


def best(posterior: np.ndarray, utility: np.ndarray) -> list[int]:
    """Direct computation, sample by sample and answer by answer."""
    return [max(range(3), key=lambda c: sum(p[k] * utility[k, c] for k in range(3))) for p in posterior]


@pytest.mark.parametrize("blend", ["none", "cv"])
def test_both_routes_answer_with_the_largest_expected_utility(blend):
    router = fitted(blend=blend)
    decision = router.route(NEW.local)
    assert decision.weak_prediction.tolist() == best(decision.calibrated, UTILITY)
    assert (decision.weak_prediction != decision.calibrated.argmax(axis=1)).any()
    rows = decision.escalate
    answer = router.answer(decision, posterior_of(NEW)[rows])
    assert answer.prediction[rows].tolist() == best(answer.probabilities[rows], UTILITY)
    assert (answer.prediction[rows] != answer.probabilities[rows].argmax(axis=1)).any()
    np.testing.assert_array_equal(answer.prediction[~rows], decision.weak_prediction[~rows])
    if blend == "none":
        np.testing.assert_array_equal(answer.probabilities[rows], posterior_of(NEW)[rows])


def test_the_score_is_the_gain_of_the_answers_that_are_given():
    router = fitted(blend="none", shrinkage="none")
    answers = np.array(best(posterior_of(DATA), UTILITY))
    confusion = gr.confusion_matrix(DATA.labels, answers, classes=3)
    np.testing.assert_allclose(router.confusion_, confusion)
    decision = router.route(NEW.local)
    for n in range(30):
        kept = sum(decision.calibrated[n, k] * UTILITY[k, decision.weak_prediction[n]] for k in range(3))
        taken = sum(decision.calibrated[n, k] * confusion[k, c] * UTILITY[k, c] for k in range(3) for c in range(3))
        assert decision.score[n] == pytest.approx(taken - kept, abs=1e-12)
    explained = router.explain(NEW.local[:, 0])
    assert explained.weak_prediction == decision.weak_prediction[0]
    assert explained.contribution.sum() == pytest.approx(decision.score[0], abs=1e-12)


def test_answering_by_utility_is_worth_more_than_by_argmax():
    worth = {}
    for answer_by in ("utility", "argmax"):
        router = fitted(answer_by=answer_by)
        decision = router.route(NEW.local)
        answer = router.answer(decision, posterior_of(NEW)[decision.escalate]).prediction
        worth[answer_by] = UTILITY[NEW.labels, answer].mean()
    assert worth["utility"] > worth["argmax"] + 0.05


def test_argmax_keeps_the_most_likely_class_on_both_routes():
    router = fitted(answer_by="argmax", blend="none")
    decision = router.route(NEW.local)
    np.testing.assert_array_equal(decision.weak_prediction, decision.pooled.argmax(axis=1))
    strong = posterior_of(NEW)[decision.escalate]
    np.testing.assert_array_equal(router.answer(decision, strong).prediction[decision.escalate], strong.argmax(axis=1))
    paper = gr.ExpectedGainRouter.paper(utility=UTILITY).fit(DATA.local, DATA.labels, DATA.strong)
    pooled = NEW.local.mean(axis=0)
    np.testing.assert_array_equal(paper.route(NEW.local).weak_prediction, pooled.argmax(axis=1))
    with pytest.raises(gr.errors.SettingError, match="answer_by is 'worth'; allowed are 'utility', 'argmax'"):
        gr.ExpectedGainRouter(answer_by="worth")


def test_answers_of_ones_own_and_bare_strong_answers_are_not_changed():
    router = gr.ExpectedGainRouter(0.3, utility=UTILITY, folds=4)
    own = np.zeros(500, dtype=int)
    router.fit(DATA.local, DATA.labels, DATA.strong, weak_prediction=own)
    decision = router.route(NEW.local, weak_prediction=own[:300])
    assert (decision.weak_prediction == 0).all()
    rows = decision.escalate
    np.testing.assert_array_equal(router.answer(decision, NEW.strong[rows]).prediction[rows], NEW.strong[rows])


def test_without_a_utility_the_setting_does_nothing():
    one, two = (
        gr.ExpectedGainRouter(0.3, folds=4, answer_by=by).fit(DATA.local, DATA.labels, DATA.strong)
        for by in ("utility", "argmax")
    )
    np.testing.assert_array_equal(one.route(NEW.local).score, two.route(NEW.local).score)


def test_missing_answers_stay_missing_and_absent_parties_are_answered():
    strong = np.where(np.arange(500) < 50, -1, DATA.strong)
    router = gr.ExpectedGainRouter(0.3, utility=UTILITY, folds=4, shrinkage="none")
    router.fit(DATA.local, DATA.labels, strong, strong_posterior=posterior_of(DATA))
    assert router.confusion_.sum(axis=1).max() < 1
    present = np.ones((2, 300), dtype=bool)
    present[0, :10] = present[1, 0] = False
    decision = router.route(NEW.local, present=present)
    assert decision.weak_prediction[0] == -1
    assert decision.weak_prediction[1:].tolist() == best(decision.calibrated[1:], UTILITY)


def test_it_is_saved_and_older_files_answer_by_argmax(tmp_path, monkeypatch):
    path = tmp_path / "router.safetensors"
    router = fitted()
    gr.save(router, path)
    again = gr.load(path)
    a, b = router.route(NEW.local), again.route(NEW.local)
    np.testing.assert_array_equal(a.weak_prediction, b.weak_prediction)
    strong = posterior_of(NEW)
    np.testing.assert_array_equal(router.strong_answers(a, strong), again.strong_answers(b, strong))
    old = fitted(answer_by="argmax")
    names = tuple(name for name in old.setting_names() if name != "answer_by")
    monkeypatch.setattr(gr.ExpectedGainRouter, "setting_names", classmethod(lambda cls: names))
    gr.save(old, path)  # as a version without the setting wrote it
    monkeypatch.undo()
    loaded = gr.load(path)
    assert loaded.answer_by == "argmax"
    np.testing.assert_array_equal(loaded.route(NEW.local).weak_prediction, old.route(NEW.local).weak_prediction)
    np.testing.assert_array_equal(loaded.strong_answers(b, strong), old.strong_answers(b, strong))


def test_a_utility_of_the_wrong_shape_is_refused():
    with pytest.raises(gr.errors.ShapeError, match=r"utility has shape \(2, 2\); \(3, 3\) is needed"):
        gr.ExpectedGainRouter(utility=np.eye(2)).fit(DATA.local, DATA.labels, DATA.strong)
