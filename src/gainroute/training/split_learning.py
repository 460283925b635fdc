"""Split training (VFL): views and encoders stay with their party; embeddings are sent up, gradients come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import ModelState, Stateful
from gainroute.training.optimise import Stepper, label_loss, steps_in
from gainroute.training.settings import VflSettings
from gainroute.training.stage import TrainingStage
from gainroute.training.training_view import TrainingView, place, to_tensor

__all__ = ["FusionServer", "HeldParties", "InProcessParties", "TrainingParties", "TrainingParty", "train_split"]


class TrainingParties(Protocol):
    """All parties in split training, in the order of the head: in this process, or each in its own organisation."""

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Prepare the views of this epoch; `seed` is that of augmentation."""
        ...

    def forward(self, rows: IntArray) -> list[Tensor]:
        """The embeddings of these training rows: values only, the graphs stay with the parties."""
        ...

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Apply the gradients of the server's loss with respect to the embeddings just sent."""
        ...

    def state(self) -> Mapping[str, Stateful]:
        """What the server's checkpoint keeps of the parties; nothing if they keep checkpoints of their own."""
        ...

    def end_epoch(self, epoch: int) -> None:
        """Note that an epoch is complete; called before the server writes its checkpoint."""
        ...

    def finish(self) -> None:
        """Switch to inference mode."""
        ...


class HeldParties(TrainingParties, Protocol):
    """Parties whose encoders the caller may have, because all of them are his."""

    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoders, in the order of the parties."""
        ...


class TrainingParty:
    """One party in split training: encoder, view and optimiser.

    Parameters
    ----------
    encoder
        View in, embedding out; has `dimension`.
    view, labels
        The training samples and their labels. Labels are used only for the loss at the encoder.
    settings
        How it is optimised.
    share
        The weight of the loss at this encoder: settings.auxiliary divided by the number of parties.
    auxiliary
        The linear classifier of that loss, discarded after training; None for no such loss.
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
        """Add the gradient of the loss at the encoder to that of the server, and step."""
        assert self._sent is not None, "forward comes first"  # noqa: S101 (for the type checker)
        embedding, index = self._sent
        self._sent = None
        if self._auxiliary is None:
            embedding.backward(gradient)  # type: ignore[no-untyped-call]
        else:
            logits = self._auxiliary(embedding)
            local = self._share * label_loss(logits, self._labels[index], self._settings)
            torch.autograd.backward([embedding, local], [gradient, None])
        self._stepper.step()

    def train_alone(self, stage: TrainingStage) -> None:
        """Train the encoder with the loss of its own classifier, without gradients of a server; or resume."""
        zero = torch.zeros(())

        def epoch(number: int) -> float:
            self.begin_epoch(stage.view_seed, number)
            for rows in stage.batches(len(self._labels), self._settings, number):
                self.backward(zero.expand_as(self.forward(rows)))
            return 0.0

        stage.run(epoch, self._settings.epochs, self.state())

    def state(self) -> dict[str, Stateful]:
        """What a checkpoint keeps of this party."""
        parts: dict[str, Stateful] = {"encoder": ModelState(self.encoder), "stepper": self._stepper}
        if self._auxiliary is not None:
            parts["auxiliary"] = ModelState(self._auxiliary)
        return parts

    def finish(self) -> None:
        """Switch to inference mode."""
        self.encoder.eval()


class InProcessParties:
    """`TrainingParties` in this process, by name."""

    def __init__(self, parties: Mapping[str, TrainingParty]) -> None:
        self._parties = dict(parties)

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Prepare every view."""
        for party in self._parties.values():
            party.begin_epoch(seed, epoch)

    def forward(self, rows: IntArray) -> list[Tensor]:
        """One (B, dᵢ) per party."""
        return [party.forward(rows) for party in self._parties.values()]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """One gradient per party."""
        for party, gradient in zip(self._parties.values(), gradients, strict=True):
            party.backward(gradient)

    def state(self) -> dict[str, Stateful]:
        """Everything: one checkpoint serves all."""
        return {f"{name}.{key}": part for name, party in self._parties.items() for key, part in party.state().items()}

    def end_epoch(self, epoch: int) -> None:
        """Do nothing: the server's checkpoint holds all."""

    def finish(self) -> None:
        """Switch to inference mode."""
        for party in self._parties.values():
            party.finish()

    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoders, in the order of the parties."""
        return tuple(party.encoder for party in self._parties.values())


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
        loss = label_loss(self.head(leaves), target, self._settings)
        loss.backward()  # type: ignore[no-untyped-call]
        self._stepper.step()
        return loss.item(), [leaf.grad for leaf in leaves if leaf.grad is not None]

    def state(self) -> dict[str, Stateful]:
        """What a checkpoint keeps of the server."""
        return {"head": ModelState(self.head), "stepper": self._stepper}


def train_split(
    stage: TrainingStage, parties: TrainingParties, server: FusionServer, count: int, settings: VflSettings
) -> None:
    """Train encoders and head together on `count` aligned samples, or resume.

    Parameters
    ----------
    stage
        Name, seed, checkpoint and progress.
    parties, server
        Changed in place: afterwards they hold the trained models, in inference mode.
    count
        Number of training samples.
    settings
        Epochs, batch size and the rest.
    """
    parts = {**{f"server.{key}": part for key, part in server.state().items()}, **parties.state()}

    def epoch(number: int) -> float:
        losses = []
        parties.begin_epoch(stage.view_seed, number)
        for rows in stage.batches(count, settings, number):
            loss, gradients = server.step(parties.forward(rows), rows)
            parties.backward(gradients)
            losses.append(loss)
        parties.end_epoch(number)
        return sum(losses) / len(losses)

    stage.run(epoch, settings.epochs, parts)
    server.head.eval()
    parties.finish()
