"""Samples that lack parties: routed by the calibration for those present, as if there were no other parties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import World, world

import gainroute as gr
from gainroute.errors import NotAnArtifactError, SettingError, TooFewSamplesError

SUBSETS = ((0, 1), (0, 2), (2,))


@pytest.fixture(scope="module")
def data() -> World:
    return world(1200, 3, 4)


@pytest.fixture(scope="module")
def router(data: World) -> gr.Router:
    fit = data.take(np.arange(600))
    whole = gr.ExpectedGainRouter(0.3, threshold="calibration", lam=1.0).fit(fit.local, fit.labels, fit.strong)
    return gr.fit_subsets(whole, fit.local, fit.labels, dict.fromkeys(SUBSETS, fit.strong))


@pytest.fixture(scope="module")
def present() -> np.ndarray:
    """In turn: everyone, no party 2, no party 1, party 2 alone, party 1 alone (which nothing is fitted for), nobody."""
    kinds = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 0, 0]], dtype=bool)
    return kinds[np.arange(600) % 6].T


def test_each_sample_is_routed_as_by_a_router_of_those_present_alone(
    data: World, router: gr.Router, present: np.ndarray
) -> None:
    local = data.local[:, 600:]
    decision = router.route(local, present=present)
    assert decision.subset is not None
    for number, subset in enumerate(((0, 1, 2), *SUBSETS)):
        rows = np.flatnonzero(decision.subset == number)
        rows = rows[~decision.incomplete[rows]]
        alone = router if number == 0 else router.subset_routers_[subset]
        expected = alone.route(local[list(subset)][:, rows])
        assert len(rows) == 100
        assert expected.escalate.any()
        for name in ("escalate", "score", "weak_prediction", "pooled", "calibrated"):
            np.testing.assert_array_equal(getattr(decision, name)[rows], getattr(expected, name))
    left = np.flatnonzero(decision.incomplete)
    np.testing.assert_array_equal(np.unique(left % 6), [4, 5])
    assert not decision.escalate[left].any()
    strong = np.eye(4)[data.strong[600:]][decision.escalate]
    answer = router.answer(decision, strong)
    np.testing.assert_array_equal(answer.escalated, decision.escalate)
    np.testing.assert_array_equal(answer.prediction[decision.escalate], data.strong[600:][decision.escalate])
    np.testing.assert_array_equal(answer.prediction[~decision.escalate], decision.weak_prediction[~decision.escalate])


def test_without_absent_parties_nothing_changes(data: World, router: gr.Router) -> None:
    found = router.route(data.local[:, 600:])
    assert found.subset is None
    np.testing.assert_array_equal(
        found.escalate, router.route(data.local[:, 600:], present=np.ones((3, 600), bool)).escalate
    )


def test_a_saved_router_routes_absent_parties_alike(
    data: World, router: gr.Router, present: np.ndarray, tmp_path: Path
) -> None:
    gr.save(router, tmp_path / "router.safetensors")
    loaded = gr.load(tmp_path / "router.safetensors")
    assert list(loaded.subset_routers_) == list(SUBSETS)
    found, expected = (r.route(data.local[:, 600:], present=present) for r in (loaded, router))
    for name in ("escalate", "score", "weak_prediction", "calibrated", "subset", "incomplete"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_the_budget_holds_whoever_is_present(data: World, router: gr.Router, present: np.ndarray) -> None:
    controller = gr.BudgetController(router, 0.2)
    repeated = np.tile(np.arange(600), 10)
    decision = controller.route(data.local[:, 600 + repeated], present=present[:, repeated])
    routed = ~decision.incomplete
    assert controller.samples == routed.sum()
    assert abs(decision.escalate[routed].mean() - 0.2) <= controller.bound(int(routed.sum()))
    assert decision.subset is not None
    above = decision.score > decision.thresholds
    np.testing.assert_array_equal(decision.escalate[routed], above[routed])
    shares = [decision.escalate[routed & (decision.subset == number)].mean() for number in range(4)]
    np.testing.assert_allclose(shares, 0.2, atol=0.08)  # on its own scale, each subset gets its share


class Fusion:
    """Answers with the class that the embeddings present carry."""

    def __call__(self, embeddings: list[np.ndarray]) -> np.ndarray:
        return self.masked(embeddings, np.ones(len(embeddings), dtype=bool))

    def masked(self, embeddings: list[np.ndarray], present: np.ndarray) -> np.ndarray:
        total = np.sum([e for e, there in zip(embeddings, present, strict=True) if there], axis=0)
        return total / total.sum(axis=1, keepdims=True)


class Table:
    def __init__(self, posteriors: np.ndarray, embeddings: np.ndarray) -> None:
        self.tables, self.asked = (posteriors, embeddings), list[int]()

    def posteriors(self, ids: list[int]) -> np.ndarray:
        return self.tables[0][ids]

    def embeddings(self, ids: list[int]) -> np.ndarray:
        self.asked = ids
        return self.tables[1][ids]


def test_two_rounds_ask_and_fuse_those_present_alone(data: World, router: gr.Router, present: np.ndarray) -> None:
    local = np.where(present[:, :, None], data.local[:, 600:], np.nan)
    parties = [Table(posteriors, np.eye(4)[data.strong[600:]]) for posteriors in local]
    found = gr.predict_two_round(parties, Fusion(), router, list(range(600)), codec="float32")
    decision = router.route(local, present=present)
    np.testing.assert_array_equal(found.escalated, decision.escalate)
    np.testing.assert_array_equal(found.prediction[found.escalated], data.strong[600:][found.escalated])
    for party, there in zip(parties, present, strict=True):
        np.testing.assert_array_equal(party.asked, np.flatnonzero(decision.escalate & there))
    size = present.sum(axis=0) * np.where(decision.escalate, 4 * 8 + 4 * 4, 4 * 8)
    np.testing.assert_array_equal(found.bytes, size)
    with pytest.raises(SettingError, match="masked"):
        gr.predict_two_round(parties, lambda e: e[0], router, list(range(600)))


def test_what_cannot_be_calibrated_is_refused(data: World, router: gr.Router) -> None:
    few = data.take(np.arange(90))
    with pytest.raises(TooFewSamplesError, match=r"subset \(0,\) has 90 calibration samples; at least 100"):
        gr.fit_subsets(router, few.local, few.labels, {(0,): few.strong})
    for subset in ((), (0, 1, 2), (1, 0), (3,), (0, 0)):
        with pytest.raises(SettingError, match="is not a set of 1 to 2 parties"):
            gr.fit_subsets(router, data.local, data.labels, {subset: data.strong})
    pooled = gr.ExpectedGainRouter(pooled_only=True, threshold="calibration", lam=1.0, blend="none")
    pooled.fit(data.local, data.labels, data.strong)
    with pytest.raises(SettingError, match="pooled_only"):
        gr.fit_subsets(pooled, data.local, data.labels, {(0,): data.strong})


def test_a_damaged_subset_is_refused(router: gr.Router, tmp_path: Path) -> None:
    path = tmp_path / "router.safetensors"
    gr.save(router, path)
    path.write_bytes(path.read_bytes().replace(rb"\"parties\": [0, 1]", rb"\"parties\": [0, 9]"))
    with pytest.raises(NotAnArtifactError, match="damaged"):
        gr.load(path)
