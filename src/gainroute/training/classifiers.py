"""Training of a classifier on one party's own view: the Round-1 nets, and those that may defer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gainroute._util.progress import Progress
from gainroute.training.checkpoint import Checkpoint, ModelState, Stateful
from gainroute.training.epochs import run_epochs
from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import Stepper, batches, derive, seeded, steps_in
from gainroute.training.settings import FitSettings
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["Loss", "train_classifier"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""From logits (B, outputs) and the training rows (B,) they belong to, to a scalar."""


def train_classifier(
    spec: ModelSpec,
    view: TrainingView,
    loss: Loss,
    fit: FitSettings,
    *,
    name: str,
    seed: int,
    checkpoint: Checkpoint,
    progress: Progress,
    device: str = "cpu",
) -> nn.Module:
    """Train a model from its description, or resume, or only load it where it is finished.

    Parameters
    ----------
    spec
        The model.
    view
        The training samples.
    loss
        Closes over labels, and whatever else it needs, by row.
    fit
        Epochs, rate and the rest.
    name
        Of the stage: it names the progress bar and separates this stage's randomness from the others'.
    seed
        The seed of the run.
    checkpoint, progress, device
        Where state is kept, who is told, and where it runs.

    Returns
    -------
    nn.Module
        In inference mode.
    """
    with seeded(seed, name, "initial"):
        model = place(build_model(spec), device)
    count = len(view.clean)
    stepper = Stepper([model], fit, steps_in(count, fit))
    parts: dict[str, Stateful] = {"model": ModelState(model), "stepper": stepper}

    def epoch(number: int) -> float:
        inputs = to_tensor(view.epoch(derive(seed, name), number, augment=fit.augment), device)
        model.train()
        losses = []
        for rows in batches(count, fit.batch, derive(seed, name, "order", number)):
            index = torch.from_numpy(rows).to(device)
            value = loss(model(inputs[index]), index)
            value.backward()  # type: ignore[no-untyped-call]
            stepper.step()
            losses.append(value.item())
        return sum(losses) / len(losses)

    run_epochs(epoch, fit.epochs, parts, name=name, seed=seed, checkpoint=checkpoint, progress=progress)
    return model.eval()
