"""Split training (VFL): views and encoders stay inside a party, embeddings go up, gradients come down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from gainroute._util.progress import Progress
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import Checkpoint, ModelState, Stateful
from gainroute.training.epochs import run_epochs
from gainroute.training.optimise import Stepper, batches, derive, steps_in
from gainroute.training.settings import VflSettings
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["FusionServer", "InProcessParty", "TrainingParty", "train_split"]


class TrainingParty(Protocol):
    """What a party does in split training; apart from `gainroute.routing.two_round.Party`, which only serves."""

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Make the view of this epoch ready."""
        ...

    def forward(self, rows: IntArray) -> Tensor:
        """The embeddings of these training rows: values only, no graph leaves the party."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """Take the gradient of the server's loss with respect to the embeddings just sent, and step."""
        ...


class InProcessParty:
    """A training party in this process.

    Parameters
    ----------
    encoder
        View in, embedding out; has `dimension`.
    view, labels
        The training samples and their labels. Labels serve the loss at the encoder; without it they
        are not looked at.
    settings
        How it is optimised.
    share
        The weight of the loss at this encoder: settings.auxiliary over the number of parties.
    auxiliary
        The linear classifier of that loss, thrown away after training; None for none.
    device
        Where the encoder runs.
    """

    def __init__(
        self,
        encoder: nn.Module,
        view: TrainingView,
        labels: Tensor,
        settings: VflSettings,
        *,
        auxiliary: nn.Module | None = None,
        share: float = 0.0,
        device: str = "cpu",
    ) -> None:
        self.encoder = place(encoder, device)
        self._auxiliary = auxiliary.to(device) if auxiliary is not None else None
        self._view, self._labels, self._settings = view, labels.to(device), settings
        self._share, self._device = share, device
        models = [self.encoder] if self._auxiliary is None else [self.encoder, self._auxiliary]
        self._stepper = Stepper(models, settings, steps_in(len(view.clean), settings))
        self._inputs: Tensor | None = None
        self._sent: tuple[Tensor, Tensor] | None = None

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Alter the view anew, if it is to be altered."""
        view = self._view.epoch(seed, epoch, augment=self._settings.augment)
        self._inputs = to_tensor(view, self._device)
        self.encoder.train()

    def forward(self, rows: IntArray) -> Tensor:
        """Encode these rows; the graph stays here."""
        assert self._inputs is not None, "begin_epoch comes first"  # noqa: S101 (for the type checker)
        index = torch.from_numpy(rows).to(self._device)
        embedding: Tensor = self.encoder(self._inputs[index])
        self._sent = (embedding, index)
        return embedding.detach()

    def backward(self, gradient: Tensor) -> None:
        """Join the server's gradient with that of the loss at the encoder, and step."""
        assert self._sent is not None, "forward comes first"  # noqa: S101 (for the type checker)
        embedding, index = self._sent
        self._sent = None
        if self._auxiliary is None:
            embedding.backward(gradient)  # type: ignore[no-untyped-call]
        else:
            smoothing = self._settings.label_smoothing
            logits = self._auxiliary(embedding)
            local = self._share * functional.cross_entropy(logits, self._labels[index], label_smoothing=smoothing)
            torch.autograd.backward([embedding, local], [gradient, None])
        self._stepper.step()

    def kept(self) -> dict[str, Stateful]:
        """What a checkpoint keeps of this party."""
        parts: dict[str, Stateful] = {"encoder": ModelState(self.encoder), "stepper": self._stepper}
        if self._auxiliary is not None:
            parts["auxiliary"] = ModelState(self._auxiliary)
        return parts


class FusionServer:
    """The server in split training: holds the fusion head and the labels, never a view.

    Parameters
    ----------
    head
        The fusion head.
    labels
        (N,) labels of the training rows.
    settings
        How it is optimised.
    device
        Where the head runs.
    """

    def __init__(self, head: nn.Module, labels: Tensor, settings: VflSettings, device: str = "cpu") -> None:
        self.head = head.to(device)
        self._labels, self._settings, self._device = labels.to(device), settings, device
        self._stepper = Stepper([self.head], settings, steps_in(len(labels), settings))

    def step(self, embeddings: Sequence[Tensor], rows: IntArray) -> tuple[float, list[Tensor]]:
        """One step on a batch: the loss, and its gradient with respect to each party's embeddings."""
        leaves = [embedding.detach().requires_grad_() for embedding in embeddings]
        target = self._labels[torch.from_numpy(rows).to(self._device)]
        self.head.train()
        loss = functional.cross_entropy(self.head(leaves), target, label_smoothing=self._settings.label_smoothing)
        loss.backward()  # type: ignore[no-untyped-call]
        self._stepper.step()
        return loss.item(), [leaf.grad for leaf in leaves if leaf.grad is not None]

    def kept(self) -> dict[str, Stateful]:
        """What a checkpoint keeps of the server."""
        return {"head": ModelState(self.head), "stepper": self._stepper}


def train_split(
    parties: Sequence[InProcessParty],
    server: FusionServer,
    count: int,
    settings: VflSettings,
    *,
    name: str,
    seed: int,
    checkpoint: Checkpoint,
    progress: Progress,
) -> None:
    """Train encoders and head together on `count` aligned samples; resumes from `checkpoint`.

    Parameters
    ----------
    parties, server
        Changed in place: afterwards they hold the trained models, in inference mode.
    count
        Number of training samples.
    settings
        Epochs, batch and the rest.
    name, seed, checkpoint, progress
        As in `train_classifier`.
    """
    parts = {f"server.{key}": part for key, part in server.kept().items()}
    for index, party in enumerate(parties):
        parts |= {f"party{index}.{key}": part for key, part in party.kept().items()}

    def epoch(number: int) -> float:
        losses = []
        for party in parties:
            party.begin_epoch(derive(seed, name), number)
        for rows in batches(count, settings.batch, derive(seed, name, "order", number)):
            embeddings = [party.forward(rows) for party in parties]
            loss, gradients = server.step(embeddings, rows)
            for party, gradient in zip(parties, gradients, strict=True):
                party.backward(gradient)
            losses.append(loss)
        return sum(losses) / len(losses)

    run_epochs(epoch, settings.epochs, parts, name=name, seed=seed, checkpoint=checkpoint, progress=progress)
    server.head.eval()
    for party in parties:
        party.encoder.eval()
