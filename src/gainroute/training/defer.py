"""Learning to defer: K + 1 outputs per party, with the frozen VFL route as the expert."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gainroute.training.classifiers import Loss
from gainroute.training.route_answers import DeferAnswers

__all__ = ["alpha_key", "defer_loss", "pool_defer"]


def alpha_key(alpha: float, *, crossfit: bool = False) -> str:
    """The name of an α in a record.

    Examples
    --------
    >>> alpha_key(0.5), alpha_key(1.0), alpha_key(1.0, crossfit=True)
    ('0.5', '1', '1-crossfit')
    """
    return f"{alpha:g}-crossfit" if crossfit else f"{alpha:g}"


def defer_loss(labels: Tensor, expert_correct: Tensor, alpha: float) -> Loss:
    """The paper's loss: −α log p⁺[y] − 1[ŷ_VFL = y] log p⁺[def], averaged over the batch.

    Parameters
    ----------
    labels
        (N,) classes of all training rows.
    expert_correct
        (N,) True if the frozen VFL route is right on that row.
    alpha
        Weight of the classification term.
    """
    reward = expert_correct.float()

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        log = logits.log_softmax(dim=1)
        classify = log.gather(1, labels[rows, None]).squeeze(1)
        return -(alpha * classify + reward[rows] * log[:, -1]).mean()

    return loss


def pool_defer(logits: Sequence[Tensor]) -> DeferAnswers:
    """Average the parties' (N, K + 1) posteriors, and return score and prediction of each sample."""
    pooled: npt.NDArray[np.float64] = (
        torch.stack([party.double().softmax(dim=1) for party in logits]).mean(dim=0).numpy()
    )
    score = pooled[:, -1] - pooled[:, :-1].max(axis=1)
    return DeferAnswers(score.astype(np.float32), pooled[:, :-1].argmax(axis=1).astype(np.int64), score > 0)
