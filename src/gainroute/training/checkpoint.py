"""One file per stage, replaced after every epoch: a run killed at any point resumes with the same result."""

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

_FORMAT = 2  # of a checkpoint; files of another format have other names and are not resumed


class Stateful(Protocol):
    """Anything whose state is a flat dictionary of tensors."""

    def state(self) -> dict[str, Tensor]:
        """The state, copied or not."""
        ...

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Set the state."""
        ...


class ModelState:
    """The state of a model."""

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
    """Restore each object from its part of what `gather` returned."""
    for name, part in parts.items():
        prefix = f"{name}/"
        part.restore({key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)})


@dataclass(frozen=True)
class CheckpointState:
    """The content of a checkpoint: finished epochs, the seconds they took, and the state after them."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The file of one stage; without a path nothing is saved."""

    path: Path | None = None

    def load(self) -> CheckpointState | None:
        """The state that an earlier run saved, or None if there is no file."""
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
                f"checkpoint {self.path} cannot be read ({error}): delete it, and the stage starts again"
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
    """The folder of a run's checkpoints; None saves nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._given: dict[str, Checkpoint] = {}

    def checkpoint(self, stage: str, *determinants: Any) -> Checkpoint:
        """The file of `stage`. Its name contains a hash of everything that determines the result.

        A changed setting therefore starts the stage again, and never resumes a checkpoint of other settings.
        """
        if self._folder is None:
            return Checkpoint()
        body = json.dumps([_FORMAT, stage, *(repr(value) for value in determinants)])
        fingerprint = hashlib.sha256(body.encode()).hexdigest()[:10]
        name = stage.replace(" ", "-")
        self._given[stage] = Checkpoint(self._folder / f"{name}-{fingerprint}.safetensors")
        return self._given[stage]

    def seconds(self) -> dict[str, float]:
        """The seconds that each stage took, over all runs that worked on it."""
        found = {stage: checkpoint.load() for stage, checkpoint in self._given.items()}
        return {stage: saved.seconds for stage, saved in found.items() if saved is not None}
