"""What trained routes answer on views: the arrays that a record keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gainroute.routing.types import IntArray, LabelArray
from gainroute.training.defer import pool_defer
from gainroute.training.masked import subsets
from gainroute.training.route_answers import RouteAnswers
from gainroute.training.routes import Routes, predict
from gainroute.training.training_view import forward_all

__all__ = ["answer"]


def answer(
    routes: Routes,
    views: Sequence[npt.NDArray[np.float32]],
    ids: LabelArray,
    labels: IntArray,
    device: str = "cpu",
) -> RouteAnswers:
    """Both routes on standardised views, all of them in both rounds.

    Parameters
    ----------
    routes
        What was trained.
    views
        One a party, (N, …), aligned with `ids` and `labels`.
    ids, labels
        (N,).
    device
        Where it runs.
    """
    local = np.stack(
        [
            forward_all(model, view, device).softmax(dim=1).numpy()
            for model, view in zip(routes.local, views, strict=True)
        ]
    )
    embeddings = routes.strong.embed(views, device)
    strong = predict(routes.strong.head, embeddings, device)
    answers = {}
    for chosen in subsets(len(views)):
        present = torch.zeros(len(views), dtype=torch.bool)
        present[list(chosen)] = True
        answers[chosen] = predict(routes.masked, embeddings, device, present).argmax(axis=1).astype(np.int64)
    defer = {
        alpha: pool_defer([forward_all(model, view, device) for model, view in zip(models, views, strict=True)])
        for alpha, models in routes.defer.items()
    }
    return RouteAnswers(
        ids,
        labels,
        local,
        strong,
        local.mean(axis=0, dtype=np.float64).argmax(axis=1).astype(np.int64),
        strong.argmax(axis=1).astype(np.int64),
        answers,
        defer,
    )
