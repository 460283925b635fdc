"""The paper's equations, computed a second time, plainly and independently, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from synthetic import world

import gainroute as gr


def plain_dirichlet(p, labels, lam, eps):
    """Eq. 15 and 16 by a general-purpose optimiser on scalar-by-scalar formulas."""
    n, k = p.shape
    features = np.log(p + eps)

    def objective(phi):
        weight, bias = phi[: k * k].reshape(k, k), phi[k * k :]
        logits = features @ weight.T + bias
        top = logits.max(axis=1)
        log_m = logits - (top + np.log(np.exp(logits - top[:, None]).sum(axis=1)))[:, None]
        value = -log_m[np.arange(n), labels].sum()
        residual = np.exp(log_m)
        residual[np.arange(n), labels] -= 1
        value += lam * (((weight - np.eye(k)) ** 2).sum() + (bias**2).sum())
        gradient_weight = residual.T @ features + 2 * lam * (weight - np.eye(k))
        return value, np.concatenate([gradient_weight.ravel(), residual.sum(axis=0) + 2 * lam * bias])

    start = np.concatenate([np.eye(k).ravel(), np.zeros(k)])
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return found.x[: k * k].reshape(k, k), found.x[k * k :], objective


@pytest.mark.parametrize(("k", "n", "lam"), [(2, 300, 1.0), (10, 800, 0.3), (40, 600, 1.0), (100, 500, 3.0)])
@pytest.mark.parametrize("case", ["plain", "rare class", "exact zeros"])
def test_the_dirichlet_fit_reaches_the_optimum_an_independent_solver_finds(k, n, lam, case):
    data = world(n, 2, k, seed=k)
    pooled, labels = data.local.mean(axis=0), data.labels.copy()
    labels[:k] = np.arange(k)
    if case == "rare class":
        labels[labels == 0] = 1
        labels[0] = 0
    if case == "exact zeros":
        pooled = np.where(pooled < 0.3 / k, 0, pooled)
        pooled /= pooled.sum(axis=1, keepdims=True)
    weight, bias, objective = plain_dirichlet(pooled, labels, lam, 1e-6)
    fitted = gr.fit_dirichlet(pooled, labels, lam=lam, eps=1e-6)
    theirs = objective(np.concatenate([weight.ravel(), bias]))[0]
    ours = objective(np.concatenate([fitted.weight.ravel(), fitted.bias]))[0]
    assert ours <= theirs * (1 + 1e-8)


def test_every_equation_of_the_paper_router():
    data, new = world(600, 3, 5, seed=1), world(150, 3, 5, seed=2)
    budget = 0.25
    router = gr.ExpectedGainRouter.paper(budget=budget).fit(data.local, data.labels, data.strong)

    k = 5
    pooled = sum(data.local) / 3  # eq. 1
    weight, bias, _ = plain_dirichlet(pooled, data.labels, 1.0, 1e-6)  # eq. 16
    reliability = []
    for c in range(k):  # eq. 14
        of_class = data.labels == c
        reliability.append((data.strong[of_class] == c).sum() / of_class.sum())

    def score(p):
        logits = weight @ np.log(p + 1e-6) + bias  # eq. 15
        m = np.exp(logits) / np.exp(logits).sum()
        guess = int(np.argmax(p))  # eq. 2
        return sum(m[c] * (reliability[c] - (guess == c)) for c in range(k))  # eq. 18

    calibration_scores = np.array([score(p) for p in pooled])
    ranked = np.sort(calibration_scores)[::-1]
    threshold = ranked[int(np.floor(600 * budget))]
    new_scores = np.array([score(p) for p in sum(new.local) / 3])

    decision = router.route(new.local)
    np.testing.assert_allclose(router.reliability_, reliability, atol=1e-12)
    np.testing.assert_allclose(decision.score, new_scores, atol=1e-5)
    np.testing.assert_allclose(router.threshold_, threshold, atol=1e-5)
    np.testing.assert_array_equal(decision.escalate, new_scores > threshold)  # eq. 19
    np.testing.assert_array_equal(decision.weak_prediction, (sum(new.local) / 3).argmax(axis=1))

    answer = router.answer(decision, new.strong[decision.escalate])  # eq. 5
    np.testing.assert_array_equal(
        answer.prediction, np.where(new_scores > threshold, new.strong, decision.weak_prediction)
    )


def test_metrics_are_those_of_the_paper():
    data = world(300, 2, 4, seed=3)
    weak = data.local.mean(axis=0).argmax(axis=1)
    score = np.random.default_rng(0).random(300)
    tau = 0.6
    sent = score > tau
    gain = (data.strong == data.labels).astype(int) - (weak == data.labels)
    final = np.where(sent, data.strong, weak)

    point = gr.evaluation.operating_point(score, weak, data.strong, data.labels, threshold=tau)
    assert point.accuracy == pytest.approx((final == data.labels).mean())
    assert point.escalation_rate == sent.mean()
    assert point.precision == pytest.approx((gain[sent] == 1).mean())
    assert point.neutral == pytest.approx((gain[sent] == 0).mean())
    np.testing.assert_array_equal(gr.evaluation.oracle_score(weak, data.strong, data.labels), gain)


def test_the_features_of_the_learned_router():
    from gainroute.routing.learned_gain import gain_features
    from gainroute.routing.types import RoundOne

    local = world(20, 3, 4, seed=5).local
    pooled = local.mean(axis=0)
    z = gain_features(RoundOne(local, pooled, pooled.argmax(axis=1), pooled))
    assert z.shape == (20, 4 + 3 + 1 + 3)
    for n in range(20):
        expected = list(pooled[n])
        expected += [-(p[n] * np.log(p[n])).sum() for p in local]
        expected += [-(pooled[n] * np.log(pooled[n])).sum()]
        expected += [(p[n] * np.log(p[n] / pooled[n])).sum() for p in local]
        np.testing.assert_allclose(z[n], expected, atol=1e-10)


def test_the_defer_score_and_its_canonical_point():
    rng = np.random.default_rng(0)
    outputs = rng.dirichlet(np.ones(5), size=(2, 300))  # K = 4 classes and the defer output
    labels, strong = rng.integers(4, size=300), rng.integers(4, size=300)
    router = gr.DeferRouter.canonical().fit(outputs, labels, strong)
    decision = router.route(outputs)
    mean = outputs.mean(axis=0)
    np.testing.assert_allclose(decision.score, mean[:, 4] - mean[:, :4].max(axis=1))
    np.testing.assert_array_equal(decision.escalate, mean.argmax(axis=1) == 4)
    np.testing.assert_array_equal(decision.weak_prediction, mean[:, :4].argmax(axis=1))
    assert gr.DeferRouter(0.3).fit(outputs, labels, strong).route(outputs).escalate.mean() == pytest.approx(
        0.3, abs=0.01
    )


def test_communication_cost():
    assert gr.communication_cost(40, [512, 512], 0.25) == 2 * 40 * 4 + 0.25 * 2 * 512 * 4
    assert gr.communication_cost(10, [64, 128], 1, "float16", "int8") == 2 * 10 * 2 + 192
    assert gr.communication_cost(10, [64, 128], 0) == 80
