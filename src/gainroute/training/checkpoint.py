"""One file a stage, replaced whole after every epoch: a run killed at any point resumes with the same result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from gainroute._util.files import write_bytes
from gainroute.errors import NotAnArtifactError

__all__ = ["Checkpoint", "CheckpointState", "CheckpointStore", "ModelState", "Stateful", "gather", "scatter"]


class Stateful(Protocol):
    """Anything whose state is a flat dictionary of tensors."""

    def state(self) -> dict[str, Tensor]:
        """A copy or a view of the state."""
        ...

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take up that state."""
        ...


class ModelState:
    """A model as an object whose state a checkpoint keeps."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state(self) -> dict[str, Tensor]:
        """The weights and buffers."""
        return dict(self._model.state_dict())

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Load them."""
        self._model.load_state_dict(tensors)


def gather(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """The states of several objects in one dictionary."""
    return {f"{name}/{key}": value for name, part in parts.items() for key, value in part.state().items()}


def scatter(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor]) -> None:
    """Give each object its part of what `gather` joined."""
    for name, part in parts.items():
        prefix = f"{name}/"
        part.restore({key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)})


@dataclass(frozen=True)
class CheckpointState:
    """What a checkpoint holds: epochs finished, the seconds they took, and the state after them."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The file of one stage; without a path nothing is kept."""

    path: Path | None = None

    def load(self) -> CheckpointState | None:
        """What an earlier run left, or None where there is no file."""
        if self.path is None or not self.path.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return CheckpointState(int(metadata["epochs"]), float(metadata["seconds"]), tensors)
        except (SafetensorError, KeyError, ValueError) as error:
            raise NotAnArtifactError(
                f"checkpoint {self.path} cannot be read ({error}): delete it and the stage starts over"
            ) from error

    def save(self, saved: CheckpointState) -> None:
        """Replace the file."""
        if self.path is None:
            return
        from safetensors.torch import save

        body = {name: tensor.detach().cpu().contiguous() for name, tensor in saved.tensors.items()}
        metadata = {"epochs": str(saved.epochs), "seconds": f"{saved.seconds:.3f}"}
        write_bytes(self.path, save(body, metadata=metadata))


class CheckpointStore:
    """The folder of a run's checkpoints; None keeps nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._given: dict[str, Checkpoint] = {}

    def checkpoint(self, stage: str, *determinants: Any) -> Checkpoint:
        """The file of `stage`. Its name holds a hash of all that determines the result.

        So a changed setting starts the stage anew and never resumes another one's work.
        """
        if self._folder is None:
            return Checkpoint()
        body = json.dumps([stage, *(repr(value) for value in determinants)])
        fingerprint = hashlib.sha256(body.encode()).hexdigest()[:10]
        name = stage.replace(" ", "-")
        self._given[stage] = Checkpoint(self._folder / f"{name}-{fingerprint}.safetensors")
        return self._given[stage]

    def seconds(self) -> dict[str, float]:
        """How long each stage asked for so far took, over all runs that worked on it."""
        found = {stage: checkpoint.load() for stage, checkpoint in self._given.items()}
        return {stage: saved.seconds for stage, saved in found.items() if saved is not None}
