"""A party whose models are ONNX files, run by onnxruntime; torch is not needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.damage import naming_damage
from gainroute.errors import ArtifactError, MissingExtraError, NotAnArtifactError
from gainroute.io.answering_party import AnsweringParty
from gainroute.io.preprocess import preprocess_from_json
from gainroute.io.run_folder import OnnxFolder, read_json

__all__ = ["TOLERANCE", "OnnxParty", "open_session"]

TOLERANCE = 1e-5  # largest difference between the answers of a model and of its export to ONNX
_BATCH = 512


class OnnxParty(AnsweringParty):
    """Serves posteriors and embeddings from a folder with ``local.onnx`` and ``encoder.onnx``.

    The folder is one that `gainroute export` wrote, or holds models of your own: each takes a batch of views (N, …) in
    float32, and its first output is (N, K) posteriors or (N, d) embeddings. `name` and `class_names`, in column order,
    are needed if the folder does not say them. Of `threads`, 0 leaves the choice to onnxruntime.
    """

    def __init__(
        self, folder: str | os.PathLike[str], name: str = "", *, class_names: Sequence[str] = (), threads: int = 1
    ) -> None:
        home = OnnxFolder(Path(folder))
        models = home.local_model, home.encoder
        self._local, self._encoder = (open_session(_existing(path), threads) for path in models)
        preprocess = None
        if home.description.is_file():
            body = read_json(home.description)
            with naming_damage(home.description, NotAnArtifactError):
                name, class_names = body["name"], body["class_names"]
                preprocess = preprocess_from_json(body["preprocess"])
        classes, dimension = map(_width, (self._local, self._encoder), models)
        if len(class_names) != classes:
            raise ArtifactError(
                f"{home.local_model} has posteriors over {classes} classes, but {len(class_names)} names are given: "
                "set source.classes, or export the run again"
            )
        super().__init__(name, class_names, dimension, preprocess, home.views)

    def _forward(self, inputs: npt.NDArray[np.float32], *, posterior: bool) -> npt.NDArray[np.float32]:
        session = self._local if posterior else self._encoder
        takes = session.get_inputs()[0]
        whole = np.ascontiguousarray(inputs, dtype=np.float32)
        if len(takes.shape) == 2:  # a model of feature vectors reads the values of an image in a row
            whole = whole.reshape(len(whole), -1)
        outputs = [session.run(None, {takes.name: whole[i : i + _BATCH]})[0] for i in range(0, len(whole), _BATCH)]
        return np.concatenate(outputs)


def open_session(source: Path | bytes, threads: int = 1) -> Any:
    """Open an ONNX model, from its file or its content, with onnxruntime."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError("serving ONNX files", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only: warnings about optimisations are of no use to an operator
    content, name = (source, "the ONNX model") if isinstance(source, bytes) else (str(source), str(source))
    try:
        # From the path, not from bytes, where there is one: large models keep their weights in files beside it.
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base class of their own
        raise NotAnArtifactError(f"{name} cannot be read by onnxruntime ({error}): export or copy it again") from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ArtifactError(f"{path} is not there: name a folder with local.onnx and encoder.onnx")
    return path


def _width(session: Any, path: Path) -> int:
    shape = session.get_outputs()[0].shape
    if len(shape) != 2 or not isinstance(shape[1], int):
        raise NotAnArtifactError(f"{path}: its first output has shape {shape}; (N, a fixed number of values) is needed")
    return int(shape[1])
