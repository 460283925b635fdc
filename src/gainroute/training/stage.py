"""A stage of training: resume, run seeded epochs, write a checkpoint after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gainroute._util.progress import Progress
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import Checkpoint, CheckpointState, ModelState, Stateful, gather, scatter
from gainroute.training.optimise import Stepper, batches, derive, seeded, steps_in
from gainroute.training.settings import FitSettings

__all__ = ["BatchLoss", "BestWeights", "TrainingStage"]

BatchLoss = Callable[[Tensor], Tensor]
"""From the training rows of a batch, (B,), to its loss."""


class BestWeights:
    """The weights of the epoch with the smallest loss on samples that no step uses; kept in the checkpoint.

    Parameters
    ----------
    model
        The model that is trained.
    loss
        Returns its loss on these samples.
    """

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor]) -> None:
        self._model, self._loss = model, loss
        self._best: dict[str, Tensor] = {"loss": torch.tensor(float("inf"))}

    def look(self) -> None:
        """Compare the weights after an epoch with the best so far."""
        self._model.eval()
        with torch.inference_mode():
            loss = self._loss().cpu()
        if not loss >= self._best["loss"]:
            self._best = {f"model.{name}": value.clone() for name, value in self._model.state_dict().items()}
            self._best["loss"] = loss.clone()

    def use(self) -> None:
        """Give the model its best weights."""
        self._model.load_state_dict({name[6:]: value for name, value in self._best.items() if name != "loss"})

    def state(self) -> dict[str, Tensor]:
        """The best weights and their loss."""
        return self._best

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Set them."""
        self._best = tensors


@dataclass(frozen=True)
class TrainingStage:
    """One model, or one set of models, that is trained as a unit.

    Attributes
    ----------
    name
        Names the progress bar, and separates the randomness of this stage from that of others.
    seed
        Of the run.
    checkpoint, progress
        Where state is kept, and where progress is reported.
    device
        A torch device.
    """

    name: str
    seed: int
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    progress: Progress = field(default_factory=Progress)
    device: str = "cpu"

    @property
    def view_seed(self) -> int:
        """The seed of augmentation."""
        return derive(self.seed, self.name)

    def initial(self, *holder: str) -> AbstractContextManager[None]:
        """Torch's random state for drawing the initial weights, of one holder of the stage's models if named."""
        return seeded(self.seed, self.name, "initial", *holder)

    def batches(self, count: int, fit: FitSettings, epoch: int) -> Iterator[IntArray]:
        """The rows of every batch of an epoch."""
        return batches(count, fit.batch, derive(self.seed, self.name, "order", epoch))

    def run(self, epoch: Callable[[int], float], epochs: int, parts: Mapping[str, Stateful]) -> None:
        """Run the remaining epochs.

        Parameters
        ----------
        epoch
            Runs the epoch of that number and returns its mean loss.
        epochs
            How many there are in all.
        parts
            Everything that an epoch changes.
        """
        done, seconds = 0, 0.0
        saved = self.checkpoint.load()
        if saved is not None:
            done, seconds = saved.epochs, saved.seconds
            scatter(parts, saved.tensors)
        if done < epochs:
            self.progress.start(self.name, epochs, done)
        for number in range(done, epochs):
            began = time.perf_counter()
            # Every epoch draws from a seed of its own, so no random state has to be saved.
            with seeded(self.seed, self.name, number):
                loss = epoch(number)
            seconds += time.perf_counter() - began
            self.checkpoint.save(CheckpointState(number + 1, seconds, gather(parts)))
            self.progress.advance(f"loss {loss:.3f}")

    def fit(
        self,
        model: nn.Module,
        settings: FitSettings,
        count: int,
        losses: Callable[[int], BatchLoss],
        best: BestWeights | None = None,
    ) -> nn.Module:
        """Train one model, and return it in inference mode.

        Parameters
        ----------
        model
            On its device.
        settings
            Epochs, learning rate and the rest.
        count
            Number of training samples.
        losses
            The loss of a batch, by epoch.
        best
            Chooses the epoch whose weights are used; by default the last.
        """
        stepper = Stepper([model], settings, steps_in(count, settings))

        def epoch(number: int) -> float:
            loss_of, values = losses(number), []
            model.train()
            for rows in self.batches(count, settings, number):
                loss = loss_of(torch.from_numpy(rows).to(self.device))
                loss.backward()  # type: ignore[no-untyped-call]
                stepper.step()
                values.append(loss.item())
            if best is not None:
                best.look()
            return sum(values) / len(values)

        parts: dict[str, Stateful] = {"model": ModelState(model), "stepper": stepper}
        self.run(epoch, settings.epochs, parts if best is None else {**parts, "best": best})
        if best is not None:
            best.use()
        return model.eval()
