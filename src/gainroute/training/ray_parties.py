"""Split training with each party's encoder in a Ray actor, inside one organisation that holds all views.

The encoders of a batch are then computed side by side, on as many cores or machines as there are parties; embeddings
and gradients travel between them and the server. The result is that of training in one process, with as many threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gainroute._util.engines import check_engine, connected_ray
from gainroute.routing.types import IntArray
from gainroute.training.checkpoint import Stateful
from gainroute.training.models.build import build_model
from gainroute.training.routes import StartParties, TrainingData, encoder_spec, start_in_process, start_party
from gainroute.training.settings import VflSettings
from gainroute.training.stage import TrainingStage

__all__ = ["RayParties", "starting_parties"]

_NONE = np.zeros(0, dtype=np.int64)


class _Actor:
    """One party, in a process of the cluster."""

    def __init__(self, seed: tuple[str, int], data: TrainingData, party: int, fit: VflSettings, threads: int) -> None:
        torch.set_num_threads(threads)
        name, labels = data.party_names[party], torch.from_numpy(data.labels)
        stage = TrainingStage(*seed)
        self._party = start_party(stage, name, data.views[party], labels, data.classes, fit, len(data.party_names))
        self._parts = self._party.state()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._party, method)(*arguments)

    def parts(self) -> list[str]:
        return list(self._parts)

    def state(self, part: str) -> dict[str, Tensor]:
        return self._parts[part].state()

    def restore(self, part: str, tensors: dict[str, Tensor]) -> None:
        self._parts[part].restore(tensors)

    def weights(self) -> dict[str, Tensor]:
        return dict(self._party.encoder.state_dict())


class _RemoteState:
    """A part of an actor's state."""

    def __init__(self, ray: Any, actor: Any, part: str) -> None:
        self._ray, self._actor, self._part = ray, actor, part

    def state(self) -> dict[str, Tensor]:
        return dict(self._ray.get(self._actor.state.remote(self._part)))

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        self._ray.get(self._actor.restore.remote(self._part, tensors))


class RayParties:
    """`HeldParties`, each in an actor of the cluster that `ray` is connected to."""

    def __init__(self, ray: Any, stage: TrainingStage, data: TrainingData, fit: VflSettings, threads: int) -> None:
        self._ray, self._fit, self._data = ray, fit, data
        # No core is reserved: with fewer cores than parties, some share one, instead of waiting for ever.
        start = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Actor).remote
        self._actors = {}
        for party, name in enumerate(data.party_names):
            # A party gets its own view alone.
            views = tuple(view if i == party else view.take(_NONE) for i, view in enumerate(data.views))
            own = TrainingData(views, data.labels, data.classes, data.party_names, data.fingerprint)
            self._actors[name] = start((stage.name, stage.seed), own, party, fit, threads)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return list(self._ray.get([actor.call.remote(method, *arguments) for actor in self._actors.values()]))

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Prepare every view."""
        self._call("begin_epoch", seed, epoch)

    def forward(self, rows: IntArray) -> list[Tensor]:
        """One (B, dᵢ) per party."""
        return self._call("forward", rows)

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """One gradient per party."""
        pairs = zip(self._actors.values(), gradients, strict=True)
        self._ray.get([actor.call.remote("backward", gradient) for actor, gradient in pairs])

    def state(self) -> Mapping[str, Stateful]:
        """Everything, under the names that it has in one process: either resumes the checkpoint of the other."""
        parts = {name: self._ray.get(actor.parts.remote()) for name, actor in self._actors.items()}
        return {
            f"{name}.{part}": _RemoteState(self._ray, actor, part)
            for name, actor in self._actors.items()
            for part in parts[name]
        }

    def end_epoch(self, epoch: int) -> None:
        """Do nothing: the server's checkpoint holds all."""

    def finish(self) -> None:
        """Do nothing: `encoders` returns them in inference mode."""

    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoders, in the order of the parties; the actors end."""
        found = []
        for actor, view in zip(self._actors.values(), self._data.views, strict=True):
            encoder = build_model(encoder_spec(view, self._fit))
            encoder.load_state_dict(self._ray.get(actor.weights.remote()))
            found.append(encoder.eval())
            self._ray.kill(actor)
        return tuple(found)


@contextmanager
def starting_parties(engine: str, threads: int = 1) -> Iterator[StartParties]:
    """What starts the parties of split training: in this process, or on a Ray cluster with that many threads each."""
    if check_engine(engine) == "local":
        yield start_in_process
        return
    with connected_ray() as ray:
        yield lambda stage, data, fit: RayParties(ray, stage, data, fit, max(threads, 1))
