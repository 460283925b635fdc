"""Writing trained models into a run folder, and answering from there: `TrainedParty` and `TrainedFusion`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gainroute._util.damage import naming_damage
from gainroute._util.files import write_bytes, write_json, write_npz
from gainroute.errors import NotAnArtifactError, ShapeError
from gainroute.io.answering_party import AnsweringParty
from gainroute.io.preprocess import Preprocess, preprocess_from_json
from gainroute.io.run_folder import PartyFolder, RunFolder, ServerFolder, read_json
from gainroute.training.models.build import ModelSpec, load_model, save_model
from gainroute.training.optimise import check_device
from gainroute.training.prepare import Prepared, given_labels
from gainroute.training.routes import Routes, predict
from gainroute.training.training_view import forward_all

__all__ = ["TrainedFusion", "TrainedParty", "load_fusion", "load_parties", "renew_party", "write_party", "write_run"]


def write_run(folder: str | os.PathLike[str], routes: Routes, prepared: Prepared) -> RunFolder:
    """Write one folder per party, with the views it can answer for, and one for the server.

    Parameters
    ----------
    folder
        The run folder.
    routes
        The trained models.
    prepared
        The data they were trained on.
    """
    run, strong = RunFolder(folder), routes.strong
    names, classes = list(prepared.train.party_names), list(prepared.class_names)
    served = prepared.calibration.joined(prepared.test) if prepared.whole is None else prepared.whole
    for index, name in enumerate(names):
        write_party(
            run.party(name).path, name, classes, prepared.preprocess[index],
            local=(routes.local_specs[index], routes.local[index]),
            encoder=(strong.encoder_specs[index], strong.encoders[index]),
            ids=served.ids, inputs=served.views[index],
        )  # fmt: skip
    save_model(strong.head, strong.head_spec, run.server.head)
    save_model(routes.masked, routes.masked_spec, run.server.masked_head)
    # Written last: a folder with this file is complete.
    labels = given_labels(classes, integers=prepared.integer_labels)
    write_json(run.description, {"party_names": names, "class_names": labels})
    return run


def write_party(
    folder: str | os.PathLike[str],
    name: str,
    class_names: Sequence[str],
    preprocess: Preprocess,
    *,
    local: tuple[ModelSpec, torch.nn.Module],
    encoder: tuple[ModelSpec, torch.nn.Module],
    ids: npt.NDArray[Any],
    inputs: npt.NDArray[np.float32],
) -> PartyFolder:
    """Write a party's folder: both models with their descriptions, and the preprocessed views it can answer for."""
    party = PartyFolder(folder)
    for (spec, model), path in ((local, party.local_model), (encoder, party.encoder)):
        save_model(model, spec, path)
    write_npz(party.views, {"ids": ids, "x": inputs}, compress=True)
    # Written last: a folder with this file is complete.
    body = {"name": name, "class_names": list(class_names), "preprocess": preprocess.to_json()}
    write_json(party.description, body)
    return party


def renew_party(
    folder: str | os.PathLike[str], models: PartyFolder, *, ids: npt.NDArray[Any], inputs: npt.NDArray[np.float32]
) -> PartyFolder:
    """Write a party's folder with the models of another one, and other views that it can answer for."""
    party = PartyFolder(folder)
    write_bytes(party.local_model, models.local_model.read_bytes())
    write_bytes(party.encoder, models.encoder.read_bytes())
    write_npz(party.views, {"ids": ids, "x": inputs}, compress=True)
    write_bytes(party.description, models.description.read_bytes())  # last, as above
    return party


class TrainedParty(AnsweringParty):
    """Serves posteriors and embeddings from a party's folder with torch.

    Parameters
    ----------
    folder
        ``run/parties/<name>``.
    device
        Where the models run.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        home = PartyFolder(Path(folder))
        body = read_json(home.description)
        self.local = load_model(home.local_model).to(device)
        self.encoder = load_model(home.encoder).to(device)
        self._device = device
        dimension = int(self.encoder.dimension)  # type: ignore[arg-type]  # torch types every attribute alike
        with naming_damage(folder, NotAnArtifactError):
            preprocess = preprocess_from_json(body["preprocess"])
            super().__init__(body["name"], body["class_names"], dimension, preprocess, home.views)

    def _forward(self, inputs: npt.NDArray[np.float32], *, posterior: bool) -> npt.NDArray[np.float32]:
        outputs = forward_all(self.local if posterior else self.encoder, inputs, self._device)
        answers: npt.NDArray[np.float32] = (outputs.softmax(dim=1) if posterior else outputs).numpy()
        return answers


class TrainedFusion:
    """The server's answer from embeddings.

    Parameters
    ----------
    head, masked
        The head for all parties, and the one for any subset.
    device
        Where they run.
    """

    def __init__(self, head: torch.nn.Module, masked: torch.nn.Module, device: str = "cpu") -> None:
        self._head, self._masked, self._device = head.to(device), masked.to(device), device

    def __call__(
        self, embeddings: Sequence[npt.ArrayLike], present: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.float32]:
        """Posteriors (N, K).

        Parameters
        ----------
        embeddings
            One (N, dᵢ) per party, in the order of training.
        present
            (M,) which parties are present. If some are absent, the masked head answers and ignores their embeddings.
        """
        if present is not None and not np.all(present):
            return self.masked(embeddings, present)
        return predict(self._head, _tensors(embeddings), self._device)

    def masked(self, embeddings: Sequence[npt.ArrayLike], present: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Posteriors (N, K) of the masked head, even if all parties are present; absent ones may be of any width."""
        mask = torch.from_numpy(np.asarray(present, dtype=bool))
        if mask.shape != (len(embeddings),) or not mask.any():
            raise ShapeError(f"present is {present!r}: one truth value per party, at least one of them true")
        given = _tensors(embeddings)
        widths: Any = self._masked.dimensions
        filled = [e if there else e.new_zeros(len(e), d) for e, there, d in zip(given, mask, widths, strict=True)]
        return predict(self._masked, filled, self._device, mask)


def _tensors(embeddings: Sequence[npt.ArrayLike]) -> list[torch.Tensor]:
    arrays = [np.asarray(embedding, np.float32) for embedding in embeddings]
    if len({len(array) for array in arrays}) != 1:
        raise ShapeError(f"embeddings of {[len(a) for a in arrays]} samples: all parties answer for the same ones")
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def load_fusion(server_dir: str | os.PathLike[str], device: str = "cpu") -> TrainedFusion:
    """Load the server's heads from ``run/server``."""
    server = ServerFolder(Path(server_dir))
    return TrainedFusion(load_model(server.head), load_model(server.masked_head), device)


def load_parties(run_dir: str | os.PathLike[str], device: str = "cpu") -> list[TrainedParty]:
    """Every party of a run, in the order of training."""
    run, device = RunFolder(run_dir), check_device(device)
    return [TrainedParty(run.party(name).path, device) for name in run.party_names]
