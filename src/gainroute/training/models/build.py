"""Models from a description that fits in JSON, and their files (safetensors, never pickle)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gainroute._util.files import write_bytes
from gainroute.errors import ArtifactError, NotAnArtifactError, SettingError, ShapeError
from gainroute.training.models.encoders import MLPEncoder, ResNet18
from gainroute.training.models.fusion import FusionHead
from gainroute.training.models.local import LocalCNN, LocalMLP
from gainroute.training.models.onnx_classifier import OnnxClassifier

__all__ = ["KINDS", "ConcatenatedHead", "ModelSpec", "build_model", "load_model", "save_model"]


@dataclass(frozen=True)
class ModelSpec:
    """The kind of a model and the options of its constructor: numbers, strings and lists."""

    kind: str
    options: dict[str, Any]


class ConcatenatedHead(nn.Module):
    """A fusion head that is a classifier of all embeddings in a row; `model` is its `ModelSpec`, as a dictionary."""

    def __init__(self, *, dimensions: Sequence[int], model: dict[str, Any]) -> None:
        super().__init__()
        self.dimensions = tuple(dimensions)
        self.classify = build_model(ModelSpec(**model))

    def forward(self, embeddings: Sequence[Tensor], present: Tensor | None = None) -> Tensor:
        """Logits (N, K) of embeddings, one (N, dᵢ) per party; all parties have to be present."""
        found = tuple(embedding.shape[1] for embedding in embeddings)
        if found != self.dimensions or (present is not None and not present.all()):
            raise ShapeError(f"embeddings of {found} values: the head needs all parties, with {self.dimensions}")
        logits: Tensor = self.classify(torch.cat(list(embeddings), dim=1))
        return logits


_MODELS: dict[str, type[nn.Module]] = {
    "local-cnn": LocalCNN,
    "local-mlp": LocalMLP,
    "resnet18": ResNet18,
    "mlp-encoder": MLPEncoder,
    "fusion": FusionHead,
    "onnx": OnnxClassifier,
    "concatenated": ConcatenatedHead,
}
KINDS = tuple(_MODELS)


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
    from safetensors import safe_open

    if not Path(path).is_file():
        raise ArtifactError(f"{path} does not exist: name a model file that `save_model` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # SafetensorError, and whatever unknown types lead to
        raise NotAnArtifactError(f"{path} is not a safetensors file ({error}): copy or train it again") from error
    if "gainroute_model" not in metadata:
        raise NotAnArtifactError(f"{path} has no description of a gainroute model: name a file that `save_model` wrote")
    try:
        spec = ModelSpec(**json.loads(metadata["gainroute_model"]))
        _check_shapes(spec, tensors)
        model = build_model(spec)
        model.load_state_dict(tensors)
    except Exception as error:  # whatever a damaged description leads to
        raise NotAnArtifactError(
            f"{path} holds weights that do not fit its description ({error!r}): copy or train it again"
        ) from error
    return model.eval()


def _check_shapes(spec: ModelSpec, tensors: dict[str, torch.Tensor]) -> None:
    with torch.device("meta"):  # without memory: a damaged description may name any size
        needed = {name: tuple(tensor.shape) for name, tensor in build_model(spec).state_dict().items()}
    differing = set(needed.items()) ^ {(name, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if differing:
        raise ValueError(f"these are different or missing: {sorted(differing)[:4]}")
