"""The second head: any subset of parties may be present. Trained on embeddings of the frozen encoders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gainroute._util.progress import Progress
from gainroute.training.checkpoint import Checkpoint, ModelState, Stateful
from gainroute.training.epochs import run_epochs
from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import Stepper, batches, derive, seeded, steps_in
from gainroute.training.settings import MaskedSettings

__all__ = ["random_presence", "subsets", "train_masked"]

# Beyond this many parties the 2^M − 1 subsets are too many to keep.
_ALL_SUBSETS = 4


def subsets(parties: int) -> list[tuple[int, ...]]:
    """The subsets whose predictions a record keeps.

    All of them up to four parties; beyond that each party alone, each left out, and the nested order
    (0,), (0, 1), … up to all.

    Examples
    --------
    >>> subsets(2)
    [(0,), (1,), (0, 1)]
    >>> len(subsets(4)), len(subsets(6))
    (15, 16)
    """
    everyone = tuple(range(parties))
    if parties <= _ALL_SUBSETS:
        return [chosen for size in range(1, parties + 1) for chosen in combinations(everyone, size)]
    alone = [(i,) for i in everyone]
    without = [tuple(j for j in everyone if j != i) for i in everyone]
    nested = [everyone[:size] for size in range(1, parties + 1)]
    return list(dict.fromkeys([*alone, *without, *nested]))


def random_presence(count: int, parties: int) -> Tensor:
    """(count, parties) random masks: the number present is uniform on 1 … M, then which ones."""
    present = torch.rand(count, parties).argsort(dim=1).argsort(dim=1)
    return present < torch.randint(1, parties + 1, (count, 1))


def train_masked(
    spec: ModelSpec,
    embeddings: Sequence[Tensor],
    labels: Tensor,
    settings: MaskedSettings,
    *,
    seed: int,
    checkpoint: Checkpoint,
    progress: Progress,
    device: str = "cpu",
) -> nn.Module:
    """Train a fusion head with a random subset of parties present for each sample of each step.

    Parameters
    ----------
    spec
        The head.
    embeddings
        Cached training embeddings, one (N, dᵢ) a party.
    labels
        (N,).
    settings, seed, checkpoint, progress, device
        As in `train_classifier`.
    """
    name = "masked head"
    with seeded(seed, name, "initial"):
        head = build_model(spec).to(device)
    count = len(labels)
    stepper = Stepper([head], settings, steps_in(count, settings))
    parts: dict[str, Stateful] = {"head": ModelState(head), "stepper": stepper}
    inputs = [embedding.to(device) for embedding in embeddings]
    labels = labels.to(device)

    def epoch(number: int) -> float:
        head.train()
        losses = []
        for rows in batches(count, settings.batch, derive(seed, name, "order", number)):
            index = torch.from_numpy(rows).to(device)
            present = random_presence(len(rows), len(inputs)).to(device)
            logits = head([embedding[index] for embedding in inputs], present)
            loss = functional.cross_entropy(logits, labels[index], label_smoothing=settings.label_smoothing)
            loss.backward()  # type: ignore[no-untyped-call]
            stepper.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    run_epochs(epoch, settings.epochs, parts, name=name, seed=seed, checkpoint=checkpoint, progress=progress)
    return head.eval()
