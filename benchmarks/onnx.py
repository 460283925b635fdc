"""A party's models in onnxruntime against eager torch: CPU time per request, one thread."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import Row, interleaved, row
from gainroute._util.files import write_json, write_npz
from gainroute.io.onnx_party import OnnxParty
from gainroute.io.preprocess import fit_preprocess
from gainroute.io.run_folder import PartyFolder
from gainroute.training.export import export_party
from gainroute.training.models.build import ModelSpec, build_model, save_model
from gainroute.training.optimise import seeded
from gainroute.training.trained_run import TrainedParty

__all__ = ["run"]

CLASSES, SAMPLES = 10, 128
KINDS: dict[str, tuple[tuple[int, ...], ModelSpec, ModelSpec]] = {
    "64 features": (
        (64,),
        ModelSpec("local-mlp", {"features": 64, "outputs": CLASSES, "widths": [16]}),
        ModelSpec("mlp-encoder", {"features": 64, "width": 16}),
    ),
    "16 × 16 images": (
        (1, 16, 16),
        ModelSpec("local-cnn", {"channels": 1, "size": 16, "outputs": CLASSES}),
        ModelSpec("resnet18", {"channels": 1, "width": 16, "stem": "3x3-pool"}),
    ),
}


def run() -> Iterator[Row]:
    """Measure posteriors and embeddings of 1 and 64 samples by id, alternating between the two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                yield from _rows(kind, Path(folder))
    finally:
        torch.set_num_threads(before)


def _rows(kind: str, folder: Path) -> Iterator[Row]:
    shape, local, encoder = KINDS[kind]
    home = PartyFolder(folder / "torch")
    raw = np.random.default_rng(0).normal(size=(SAMPLES, *shape)).astype(np.float32)
    with seeded(0, "bench"):
        for spec, path in ((local, home.local_model), (encoder, home.encoder)):
            save_model(build_model(spec), spec, path)
    preprocess = fit_preprocess(raw).to_json()
    names = [str(k) for k in range(CLASSES)]
    write_json(home.description, {"name": "bench", "class_names": names, "preprocess": preprocess})
    write_npz(home.views, {"ids": np.arange(SAMPLES), "x": raw})
    difference = max(export_party(home.path, folder / "onnx")["difference"].values())
    ours, other = OnnxParty(folder / "onnx"), TrainedParty(home.path)
    yield row(f"{kind}: largest difference of an answer", difference, None, difference, "<= 1e-5")
    for size, repeats in ((1, 200), (64, 30)):
        ids = list(range(size))
        for what in ("posteriors", "embeddings"):
            calls = [partial(_cpu, partial(getattr(party, what), ids)) for party in (ours, other)]
            quick, slow = interleaved(calls, repeats)
            yield row(f"{kind}: {what}, batch {size}, ms", 1e3 * quick, 1e3 * slow, slow / quick, ">= 1")


def _cpu(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
