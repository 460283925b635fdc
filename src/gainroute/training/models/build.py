"""Models from a description that fits in JSON, and their files (safetensors, never pickle)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from gainroute._util.files import write_bytes
from gainroute.errors import ArtifactError, NotAnArtifactError, SettingError
from gainroute.training.models.encoders import MLPEncoder, ResNet18
from gainroute.training.models.fusion import FusionHead
from gainroute.training.models.local import LocalCNN, LocalMLP

__all__ = ["KINDS", "ModelSpec", "build_model", "load_model", "save_model"]

_MODELS: dict[str, type[nn.Module]] = {
    "local-cnn": LocalCNN,
    "local-mlp": LocalMLP,
    "resnet18": ResNet18,
    "mlp-encoder": MLPEncoder,
    "fusion": FusionHead,
}
KINDS = tuple(_MODELS)


@dataclass(frozen=True)
class ModelSpec:
    """The kind of a model and the options of its constructor: numbers, strings and lists."""

    kind: str
    options: dict[str, Any]


def build_model(spec: ModelSpec) -> nn.Module:
    """A freshly initialised model, drawn from torch's current random state."""
    if spec.kind not in _MODELS:
        raise SettingError(f"model kind {spec.kind!r} is unknown: one of {', '.join(KINDS)}")
    return _MODELS[spec.kind](**spec.options)


def save_model(model: nn.Module, spec: ModelSpec, path: str | os.PathLike[str]) -> None:
    """Write `path` (safetensors): the weights, and the description as metadata."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_bytes(path, save(tensors, metadata={"gainroute_model": json.dumps(asdict(spec))}))


def load_model(path: str | os.PathLike[str]) -> nn.Module:
    """Read a model that `save_model` wrote, in inference mode."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise ArtifactError(f"{path} does not exist: name a model file that `save_model` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise NotAnArtifactError(f"{path} is not a safetensors file ({error}): copy or train it again") from error
    if "gainroute_model" not in metadata:
        raise NotAnArtifactError(f"{path} has no description of a gainroute model: name a file that `save_model` wrote")
    model = build_model(ModelSpec(**json.loads(metadata["gainroute_model"])))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise NotAnArtifactError(f"{path} holds weights that do not fit its description: {error}") from error
    return model.eval()
