"""The masked head, for any subset of the parties. Trained on embeddings of the frozen encoders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from gainroute.training.models.build import ModelSpec, build_model
from gainroute.training.optimise import label_loss
from gainroute.training.settings import MaskedSettings
from gainroute.training.stage import TrainingStage

__all__ = ["random_presence", "subsets", "train_masked"]

# For more parties than this, the 2^M − 1 subsets are too many to keep.
_ALL_SUBSETS = 4


def subsets(parties: int) -> list[tuple[int, ...]]:
    """The subsets of parties whose predictions a record keeps.

    All of them for up to four parties; for more, each party alone, all but each, and the nested sequence
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
    stage: TrainingStage, spec: ModelSpec, embeddings: Sequence[Tensor], labels: Tensor, settings: MaskedSettings
) -> nn.Module:
    """Train a fusion head with a random subset of parties present for each sample of each step.

    Parameters
    ----------
    stage
        Name, seed, checkpoint, progress and device.
    spec
        The head.
    embeddings
        Training embeddings, one (N, dᵢ) per party.
    labels
        (N,).
    settings
        Epochs, learning rate and the rest.
    """
    with stage.initial():
        head = build_model(spec).to(stage.device)
    inputs, targets = [embedding.to(stage.device) for embedding in embeddings], labels.to(stage.device)

    def loss(rows: Tensor) -> Tensor:
        present = random_presence(len(rows), len(inputs)).to(stage.device)
        logits = head([embedding[rows] for embedding in inputs], present)
        return label_loss(logits, targets[rows], settings)

    return stage.fit(head, settings, len(labels), lambda _: loss)
