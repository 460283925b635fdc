"""Training of a classifier on one party's own view: the Round-1 models, and those that may defer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import derive, label_loss
from gainroute.training.settings import FitSettings, LocalSettings
from gainroute.training.stage import BatchLoss, BestWeights, TrainingStage
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["Loss", "classification", "train_classifier"]

_FEWEST = 8  # held-out samples that can choose an epoch

Loss = Callable[[Tensor, Tensor], Tensor]
"""From logits (B, outputs) and the training rows (B,) they belong to, to a scalar."""


def classification(labels: Tensor, fit: FitSettings) -> Loss:
    """The loss of a classifier with these labels."""
    return lambda logits, rows: label_loss(logits, labels[rows], fit)


def train_classifier(
    stage: TrainingStage, spec: ModelSpec, view: TrainingView, loss: Loss, fit: LocalSettings
) -> nn.Module:
    """Train a model from its description, or resume, or only load it if it is finished; in inference mode.

    Parameters
    ----------
    stage
        Name, seed, checkpoint, progress and device.
    spec
        The model.
    view
        The training samples.
    loss
        A closure over the labels, and whatever else it needs, by row.
    fit
        Epochs, learning rate, the share of samples held out to choose the epoch, and the rest.
    """
    with stage.initial():
        model = place(build_model(spec), stage.device)

    def losses(epoch: int) -> BatchLoss:
        inputs = to_tensor(view.epoch(stage.view_seed, epoch, augment=fit.augment), stage.device)
        return lambda rows: loss(model(inputs[used[rows]]), used[rows])

    count = len(view.clean)
    held = int(fit.holdout * count)
    order = np.random.default_rng(derive(stage.seed, "holdout")).permutation(count)
    if held < _FEWEST:
        held, order = 0, np.arange(count)
    used, unused = (torch.from_numpy(part).to(stage.device) for part in (order[held:], order[:held]))
    clean = to_tensor(view.clean[order[:held]], stage.device)
    best = BestWeights(model, lambda: loss(model(clean), unused)) if held else None
    return stage.fit(model, fit, count - held, losses, best)
