"""Pools, calibrators, blends, thresholds and routers of the user's own: as objects, by name, saved and loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import fake_package
import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import ArtifactError, SettingError
from gainroute.routing.calibrate import CALIBRATORS, DirichletCalibration
from gainroute.routing.pool import POOLS, LogLinearPooling, MeanPooling
from gainroute.routing.routers import ROUTERS
from gainroute.routing.types import BoolArray, FloatArray, IntArray

DATA = world(300, 2, 3, 0)
NEW = world(100, 2, 3, 1)


@dataclass(frozen=True, eq=False)
class Sharpened:
    power: float

    def __call__(self, posteriors: FloatArray) -> FloatArray:
        raised = posteriors**self.power
        sharpened: FloatArray = raised / raised.sum(axis=1, keepdims=True)
        return sharpened


@dataclass(frozen=True)
class Sharpening:
    power: float = 2.0
    fitted_types = (Sharpened,)

    def fit(self, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> Sharpened:
        return Sharpened(self.power)


@dataclass(frozen=True, eq=False)
class OneParty:
    party: int

    def __call__(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        return np.asarray(local[self.party], dtype=np.float64)


@dataclass(frozen=True)
class FirstParty:
    fitted_types = (OneParty,)

    def fit(self, local: FloatArray, labels: IntArray, weight: FloatArray) -> OneParty:
        return OneParty(0)


class Margin(gr.Router):
    def score(self, round_one: gr.RoundOne) -> FloatArray:
        top = np.sort(round_one.pooled, axis=1)
        margin: FloatArray = top[:, -2] - top[:, -1]
        return margin


def fitted(**settings) -> gr.ExpectedGainRouter:
    return gr.ExpectedGainRouter(0.2, folds=4, **settings).fit(DATA.local, DATA.labels, DATA.strong)


def same(one: gr.Router, two: gr.Router) -> None:
    a, b = one.route(NEW.local), two.route(NEW.local)
    np.testing.assert_array_equal(a.score, b.score)
    np.testing.assert_array_equal(a.weak_prediction, b.weak_prediction)
    assert one.threshold_ == two.threshold_


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (CALIBRATORS, POOLS, ROUTERS):
        monkeypatch.setattr(registry, "_registered", {})
    gr.register_calibrator("sharp", Sharpening)
    gr.register_pool("first-party", FirstParty)
    gr.register_router("margin", Margin)


# ---- objects ------------------------------------------------------------------------------------


def test_built_in_stages_as_objects_give_what_their_names_give() -> None:
    by_name = fitted(lam=1.0)
    same(fitted(calibration=DirichletCalibration(1.0), pooling=LogLinearPooling()), by_name)
    same(fitted(pooling=MeanPooling(), lam=1.0), fitted(pooling="mean", lam=1.0))


def test_a_calibrator_and_a_pool_of_your_own_are_used() -> None:
    decision = fitted(calibration=Sharpening(3.0), pooling=FirstParty()).route(NEW.local)
    np.testing.assert_array_equal(decision.pooled, NEW.local[0])
    np.testing.assert_allclose(decision.calibrated, Sharpened(3.0)(NEW.local[0]))


def test_a_calibrator_that_can_start_warm_is_refitted_in_the_folds() -> None:
    starts: list[object] = []

    class Warm(Sharpening):
        def refit(self, fitted: Sharpened, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> Sharpened:
            starts.append(fitted)
            return fitted

    router = fitted(calibration=Warm(), correction="none")
    assert starts == [router.calibrator_] * 4


def test_a_blend_of_your_own_is_used_if_it_is_better_than_the_strong_route() -> None:
    wrong = np.roll(np.eye(3)[DATA.labels], 1, axis=1)
    unfitted = gr.ExpectedGainRouter(0.2, folds=4, blend=Second())
    router = unfitted.fit(DATA.local, DATA.labels, strong_posterior=wrong, check_class_order=False)
    assert router.blends_
    everything = router.strong_answers(router.route(NEW.local), np.eye(3)[NEW.labels])
    np.testing.assert_array_equal(everything, NEW.local[0].argmax(axis=1))
    right = np.eye(3)[DATA.labels]
    assert (
        not gr.ExpectedGainRouter(0.2, folds=4, blend=Second())
        .fit(DATA.local, DATA.labels, strong_posterior=right)
        .blends_
    )


class Second:
    def fit(self, posteriors: FloatArray, labels: IntArray, weight: FloatArray) -> OneParty:
        return OneParty(1)  # the strong posterior comes first, then party 0


def test_a_threshold_of_your_own_is_given_the_scores_and_the_budget() -> None:
    router = fitted(threshold=lambda scores, budget: float(np.median(scores.score)) + budget)
    assert router.threshold_ == np.median(router.threshold_scores_.score) + 0.2
    assert router.threshold_for(0.5) == np.median(router.threshold_scores_.score) + 0.5


@pytest.mark.parametrize("setting", ["calibration", "pooling"])
def test_what_is_no_stage_is_refused(setting: str) -> None:
    with pytest.raises(SettingError, match=rf"{setting} is 3; allowed are .*, or an instance with fit"):
        gr.ExpectedGainRouter(**{setting: 3})
    with pytest.raises(SettingError, match="or an instance with fit"):
        gr.ExpectedGainRouter(**{setting: Sharpening})
    with pytest.raises(SettingError, match=rf"{setting} is 'sharper'; allowed are .*: install the package"):
        gr.ExpectedGainRouter(**{setting: "sharper"})


# ---- by name, saved and loaded ------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_registered_stages_are_found_by_name_and_saved(tmp_path: Path) -> None:
    router = fitted(calibration="sharp", pooling="first-party")
    same(router, fitted(calibration=Sharpening(), pooling=FirstParty()))
    gr.save(router, tmp_path / "router.safetensors")
    same(gr.load(tmp_path / "router.safetensors"), router)


@pytest.mark.usefixtures("registered")
def test_an_instance_of_a_registered_stage_is_saved_with_its_settings(tmp_path: Path) -> None:
    router = fitted(calibration=Sharpening(3.0))
    gr.save(router, tmp_path / "router.safetensors")
    loaded = gr.load(tmp_path / "router.safetensors")
    same(loaded, router)
    assert loaded.settings()["calibration"] == Sharpening(3.0)


@pytest.mark.usefixtures("registered")
def test_a_registered_router_is_saved_and_loaded(tmp_path: Path) -> None:
    router = Margin(0.3).fit(DATA.local, DATA.labels, DATA.strong)
    gr.save(router, tmp_path / "router.safetensors")
    same(gr.load(tmp_path / "router.safetensors"), router)


@pytest.mark.usefixtures("registered")
def test_a_file_whose_router_is_no_longer_registered_names_its_module(tmp_path, monkeypatch) -> None:
    gr.save(Margin(0.3).fit(DATA.local, DATA.labels, DATA.strong), tmp_path / "router.safetensors")
    monkeypatch.setattr(ROUTERS, "_registered", {})
    with pytest.raises(ArtifactError, match=rf"router is 'margin'; .*install {__name__}, or import the module that"):
        gr.load(tmp_path / "router.safetensors")


def test_what_a_file_cannot_hold_is_refused_when_it_is_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ROUTERS, "_registered", {})
    path = tmp_path / "router.safetensors"
    with pytest.raises(ArtifactError, match=r"Margin is not one of the package's routers .* register it with"):
        gr.save(Margin(0.3).fit(DATA.local, DATA.labels, DATA.strong), path)
    with pytest.raises(ArtifactError, match="the fitted calibrator is a Sharpened, which a file cannot hold"):
        gr.save(fitted(calibration=Unlisted()), path)
    with pytest.raises(ArtifactError, match=r"calibration is Sharpening.*, which a file cannot name"):
        gr.save(fitted(calibration=Sharpening()), path)
    with pytest.raises(ArtifactError, match=r"threshold is <function .*, which a file cannot hold"):
        gr.save(fitted(threshold=lambda scores, budget: math.inf), path)
    assert not path.exists()


class Unlisted:
    def fit(self, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> Sharpened:
        return Sharpened(2.0)


def test_an_installed_package_offers_router_calibrator_and_pool(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(fake_package.install_parts(tmp_path))
    local, path = NEW.local, tmp_path / "router.safetensors"
    their = ROUTERS.get("their-margin")
    router = their(0.3, offset=2.0).fit(DATA.local, DATA.labels, DATA.strong)
    gr.save(router, path)
    same(gr.load(path), router)
    staged = fitted(calibration="their-calibrator", pooling="their-pool")
    gr.save(staged, path)
    same(gr.load(path), staged)
    np.testing.assert_array_equal(staged.route(local).pooled, local[0])


def test_without_the_package_its_router_cannot_be_loaded(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as installed:
        installed.syspath_prepend(fake_package.install_parts(tmp_path))
        router = ROUTERS.get("their-margin")(0.3).fit(DATA.local, DATA.labels, DATA.strong)
        gr.save(router, tmp_path / "router.safetensors")
    with pytest.raises(ArtifactError, match=r"router is 'their-margin'; .*: install their_parts, or import"):
        gr.load(tmp_path / "router.safetensors")


# ---- deciders -----------------------------------------------------------------------------------


def test_routers_and_controllers_are_deciders() -> None:
    router = fitted()
    assert isinstance(router, gr.Decider)
    assert isinstance(gr.BudgetController(router), gr.Decider)


def test_checked_posteriors_are_routed_without_another_check() -> None:
    router = fitted()
    a, b = router.route(NEW.local), router.route(NEW.local, checked=True)
    np.testing.assert_array_equal(a.score, b.score)
    doubled = 2 * NEW.local
    with pytest.raises(gr.errors.PosteriorError):
        router.route(doubled)
    router.route(doubled, checked=True)
