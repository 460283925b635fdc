"""Answers of trained routes: of models in memory, or of the parties of a run as they will be served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import nn

from gainroute.routing.payload import round_trip
from gainroute.routing.types import IntArray, LabelArray
from gainroute.training.data.dataset import Part
from gainroute.training.defer import pool_defer
from gainroute.training.masked import subsets
from gainroute.training.route_answers import DeferAnswers, LocalAnswers, RouteAnswers
from gainroute.training.routes import Routes, TrainingData
from gainroute.training.trained_run import TrainedFusion, TrainedParty
from gainroute.training.training_view import forward_all

__all__ = ["answer", "answer_as_served", "answer_defer", "answer_locally", "answer_subsets"]

Float32 = npt.NDArray[np.float32]


def answer(routes: Routes, part: Part, device: str = "cpu") -> RouteAnswers:
    """Answer every sample of a part by all models in memory: both routes, all subsets, learning to defer.

    Parameters
    ----------
    routes
        The trained models.
    part
        Samples with preprocessed views.
    device
        Where the models run.
    """
    local = _posteriors(routes, part.views, device)
    embeddings = [embedding.numpy() for embedding in routes.strong.embed(part.views, device)]
    fusion = TrainedFusion(routes.strong.head, routes.masked, device)
    defer = answer_defer(routes.defer, part.views, device)
    by_subset = answer_subsets(fusion, embeddings)
    return RouteAnswers.from_posteriors(part.ids, part.labels, local, fusion(embeddings), by_subset, defer)


def answer_locally(routes: Routes, data: TrainingData, device: str = "cpu") -> LocalAnswers:
    """Round 1 on the samples that the local classifiers were trained on."""
    return LocalAnswers(data.labels, _posteriors(routes, [view.clean for view in data.views], device))


def _posteriors(routes: Routes, views: Sequence[Float32], device: str) -> Float32:
    pairs = zip(routes.local, views, strict=True)
    return np.stack([forward_all(model, view, device).softmax(dim=1).numpy() for model, view in pairs])


def answer_as_served(
    parties: Sequence[TrainedParty], fusion: TrainedFusion, ids: LabelArray, labels: IntArray, codec: str
) -> RouteAnswers:
    """Answer samples as a coordinator will receive the answers, with embeddings sent through a codec.

    Every party is asked once per sample for its posterior and once for its embedding.

    Parameters
    ----------
    parties, fusion
        Of a run.
    ids, labels
        (N,); every party has these samples.
    codec
        One of `gainroute.routing.payload.CODECS`.
    """
    local = np.stack([party.posteriors(ids.tolist()) for party in parties])
    sent = [round_trip(party.embeddings(ids.tolist()), codec) for party in parties]
    return RouteAnswers.from_posteriors(ids, labels, local, fusion(sent), answer_subsets(fusion, sent))


def answer_defer(
    models: Mapping[str, Sequence[nn.Module]], views: Sequence[Float32], device: str = "cpu"
) -> dict[str, DeferAnswers]:
    """Answers of learning to defer, by α as a record names it."""
    return {
        alpha: pool_defer([forward_all(model, view, device) for model, view in zip(trained, views, strict=True)])
        for alpha, trained in models.items()
    }


def answer_subsets(fusion: TrainedFusion, embeddings: Sequence[Float32]) -> dict[tuple[int, ...], IntArray]:
    """The answers of the masked head for every subset of parties that a record keeps."""
    everyone = np.arange(len(embeddings))
    return {
        chosen: fusion.masked(embeddings, np.isin(everyone, chosen)).argmax(axis=1).astype(np.int64)
        for chosen in subsets(len(embeddings))
    }
