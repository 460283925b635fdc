"""From the models of a run to ONNX files, verified on the run's own views."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gainroute._util.files import write_bytes, write_json
from gainroute.errors import ArtifactError, DataError
from gainroute.io.onnx_party import TOLERANCE, OnnxParty
from gainroute.io.run_folder import OnnxFolder, PartyFolder, RunFolder
from gainroute.training.models.onnx_classifier import OnnxClassifier
from gainroute.training.run import load_calibrated_router
from gainroute.training.trained_run import TrainedParty

__all__ = ["export_party", "export_run"]


def export_run(run_dir: str | os.PathLike[str], out_dir: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Export every party of a run as ONNX files: one folder per party below `out_dir`.

    Parameters
    ----------
    run_dir
        A folder that `gainroute train` wrote, with a router that fits its models.
    out_dir
        Where the folders go.

    Returns
    -------
    dict
        For each party what its ``export.json`` holds, see `export_party`.
    """
    run = RunFolder(run_dir)
    load_calibrated_router(run.path)
    return {name: export_party(run.party(name).path, Path(out_dir) / name) for name in run.party_names}


def export_party(folder: str | os.PathLike[str], out_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Export one party's models, and compare their answers with torch's for all views in its folder.

    Parameters
    ----------
    folder
        ``run/parties/<name>``, with its views.
    out_dir
        The folder to write.

    Returns
    -------
    dict
        What ``export.json`` holds: `model_hash` of the run's models, `content_hash` of the exported files, the number
        of `samples` compared, the largest `difference` of a posterior and of an embedding (relative where values
        exceed 1), and the versions.

    Raises
    ------
    ArtifactError
        If an answer differs by more than `TOLERANCE`; nothing that could be served is left.
    """
    home, out = PartyFolder(Path(folder)), OnnxFolder(Path(out_dir))
    party = TrainedParty(home.path)
    if not party.ids:
        raise DataError(f"{home.views} holds no views, which the export is verified on: copy it from the run")
    out.export.unlink(missing_ok=True)
    one = torch.from_numpy(party.inputs[:2])
    if isinstance(party.local, OnnxClassifier):
        write_bytes(out.local_model, party.local.content)
    else:
        write_bytes(out.local_model, _to_onnx(nn.Sequential(party.local, nn.Softmax(dim=1)), one))
    write_bytes(out.encoder, _to_onnx(party.encoder, one))
    shutil.copyfile(home.description, out.description)
    shutil.copyfile(home.views, out.views)
    exported, ids = OnnxParty(out.path), party.ids
    difference = {
        "posterior": _difference(exported.posteriors, party.posteriors, ids),
        "embedding": _difference(exported.embeddings, party.embeddings, ids),
    }
    if max(difference.values()) > TOLERANCE:
        for file in out.files:
            file.unlink(missing_ok=True)
        raise ArtifactError(f"{out.path}: answers differ from torch's by {difference}; at most {TOLERANCE} is allowed")
    body = {
        "model_hash": home.model_hash(), "content_hash": out.content_hash(), "samples": len(ids),
        "difference": difference, "versions": _versions(),
    }  # fmt: skip
    write_json(out.export, body)
    return body


def _difference(ours: Callable[[Any], Any], theirs: Callable[[Any], Any], ids: list[Any]) -> float:
    expected = np.asarray(theirs(ids), np.float64)
    return float(np.max(np.abs(ours(ids) - expected) / np.maximum(1, np.abs(expected))))


def _versions() -> dict[str, str]:
    import onnxruntime

    return {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}


def _to_onnx(model: nn.Module, inputs: Tensor) -> bytes:
    batch = torch.export.Dim("batch", min=1)
    with _quiet():
        program = torch.onnx.export(
            model.eval(), (inputs,), input_names=["view"], output_names=["answer"], dynamic_shapes=({0: batch},),
            dynamo=True, verbose=False,
        )  # fmt: skip
        assert program is not None  # noqa: S101 (for the type checker)
        body: bytes = program.model_proto.SerializeToString()
    return body


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of parts of itself and of torchvision, which is not used."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
