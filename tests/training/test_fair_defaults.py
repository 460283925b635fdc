"""Round 1 is trained fairly: a slice of the training part chooses the epoch; logistic regression is the yardstick."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gainroute.errors import SettingError
from gainroute.experiments.pages.headline import yardstick
from gainroute.training.checkpoint import CheckpointStore
from gainroute.training.classifiers import classification, train_classifier
from gainroute.training.data.dataset import Part
from gainroute.training.models.build import ModelSpec
from gainroute.training.prepare import Prepared
from gainroute.training.routes import TrainingData
from gainroute.training.settings import LocalSettings, default_route_settings
from gainroute.training.stage import BestWeights, TrainingStage
from gainroute.training.training_view import TrainingView
from gainroute.training.yardstick import logistic_accuracy

FIT = LocalSettings(epochs=6, batch=16, rate=0.05, hidden=(8,), holdout=0.2)
SPEC = ModelSpec("local-mlp", {"features": 3, "outputs": 2, "widths": [8], "dropout": 0.0})


def view(samples: int = 100, seed: int = 0) -> tuple[TrainingView, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 3)).astype(np.float32)
    labels = torch.from_numpy((x[:, 0] + 0.5 * rng.normal(size=samples) > 0).astype(np.int64))
    return TrainingView(x, np.arange(samples)), labels


def test_no_step_uses_the_samples_that_choose_the_epoch() -> None:
    samples, labels = view()
    stepped, judged = set(), set()
    classify = classification(labels, FIT)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        (stepped if logits.requires_grad else judged).update(rows.tolist())
        return classify(logits, rows)

    train_classifier(TrainingStage("local", 0), SPEC, samples, loss, FIT)
    assert len(judged) == 20
    assert not stepped & judged


def test_the_epoch_with_the_smallest_loss_is_used() -> None:
    model = torch.nn.Linear(1, 1)
    losses = iter([3.0, 1.0, 2.0])
    best = BestWeights(model, lambda: torch.tensor(next(losses)))
    for value in (10.0, 20.0, 30.0):
        model.weight.data.fill_(value)
        best.look()
    best.use()
    assert model.weight.item() == 20.0


def test_a_finished_stage_is_loaded_with_the_weights_it_had_chosen(tmp_path: Path) -> None:
    samples, labels = view()

    def trained() -> dict[str, Tensor]:
        stage = TrainingStage("local", 0, CheckpointStore(tmp_path).checkpoint("local", FIT))
        return dict(train_classifier(stage, SPEC, samples, classification(labels, FIT), FIT).state_dict())

    first, again = trained(), trained()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_few_samples_train_on_all_of_them() -> None:
    samples, labels = view(20)
    seen = set()
    classify = classification(labels, FIT)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        seen.update(rows.tolist())
        return classify(logits, rows)

    train_classifier(TrainingStage("local", 0), SPEC, samples, loss, FIT)
    assert seen == set(range(20))


def test_local_models_are_as_wide_as_the_data_allow() -> None:
    few, many = default_route_settings(100).local, default_route_settings(5000).local
    assert few.hidden[0] < many.hidden[0]
    assert few.holdout == many.holdout == 0.1
    with pytest.raises(SettingError, match=r"holdout is 0\.9"):
        LocalSettings(epochs=1, holdout=0.9)


def test_the_yardstick_is_logistic_regression_on_every_view_pooled() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3
    views = [(rng.normal(size=(600, 300)) + 2 * np.eye(300)[labels]).astype(np.float32) for _ in range(2)]
    parts = [np.arange(0, 300), np.arange(300, 600)]
    data = TrainingData(tuple(TrainingView(x[parts[0]], parts[0]) for x in views), labels[parts[0]], 3, ("a", "b"), "")
    test = Part(parts[1], labels[parts[1]], tuple(x[parts[1]] for x in views))
    narrow = Part(test.ids, test.labels, tuple(x[:, :10] for x in test.views))
    slim = TrainingData(
        tuple(TrainingView(v.clean[:, :10], v.rows) for v in data.views), data.labels, 3, ("a", "b"), ""
    )
    assert logistic_accuracy(Prepared(slim, narrow, narrow, (), ("0", "1", "2"), "")) > 0.9
    assert logistic_accuracy(Prepared(data, test, test, (), ("0", "1", "2"), "")) > 0.5  # projected: 300 features


@pytest.mark.parametrize(("local", "behind"), [(0.66, True), (0.745, False), (0.8, False)])
def test_the_report_says_when_the_local_models_are_behind(local: float, behind: bool) -> None:
    results = {"yardstick": {"local_models": local, "logistic_regression": 0.749}, "test_samples": 1000}
    assert ("behind" in yardstick(results)) is behind
    assert "74.9 %" in yardstick(results)
    assert yardstick({}) == ""
