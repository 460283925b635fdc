"""Training of a classifier on one party's own view: the Round-1 models, and those that may defer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import label_loss
from gainroute.training.settings import FitSettings
from gainroute.training.stage import BatchLoss, TrainingStage
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["Loss", "classification", "train_classifier"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""From logits (B, outputs) and the training rows (B,) they belong to, to a scalar."""


def classification(labels: Tensor, fit: FitSettings) -> Loss:
    """The loss of a classifier with these labels."""
    return lambda logits, rows: label_loss(logits, labels[rows], fit)


def train_classifier(
    stage: TrainingStage, spec: ModelSpec, view: TrainingView, loss: Loss, fit: FitSettings
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
        Epochs, learning rate and the rest.
    """
    with stage.initial():
        model = place(build_model(spec), stage.device)

    def losses(epoch: int) -> BatchLoss:
        inputs = to_tensor(view.epoch(stage.view_seed, epoch, augment=fit.augment), stage.device)
        return lambda rows: loss(model(inputs[rows]), rows)

    return stage.fit(model, fit, len(view.clean), losses)
