"""The layout of a run folder, and the hashes that identify its models. Nothing else knows these paths.

::

    run/
      run.json                      party names and class names, in order
      parties/<name>/party.json     preprocessing and class names
      parties/<name>/local.safetensors, encoder.safetensors
      parties/<name>/views.npz      the party's views by id, preprocessed
      server/head.safetensors, masked.safetensors
      server/router.safetensors     the calibrated router, with the hashes of all models
      record.npz, results.json, report.html
      run.sig                       the signature, if it was signed; parts and single files have their own (<file>.sig)
      work/                         checkpoints, and which run they belong to
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from gainroute._util.damage import naming_damage
from gainroute._util.files import write_bytes
from gainroute._util.hashing import hash_contents, hash_named_files
from gainroute.errors import ArtifactError, DataError, NotAnArtifactError
from gainroute.routing.payload import check_codec
from gainroute.routing.types import Provenance

__all__ = [
    "SERVER",
    "OnnxFolder",
    "PartyFolder",
    "RunFolder",
    "ServerFolder",
    "hash_version_folder",
    "read_json",
    "signature_file",
]

PathLike = str | os.PathLike[str]
SERVER = "server"  # the holder of the fusion head, in a provenance
SIGNATURE = "run.sig"


class PartyFolder:
    """``run/parties/<name>``, in a run or copied to the party's own machine."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.description = self.path / "party.json"  # preprocessing and class names
        self.local_model = self.path / "local.safetensors"  # the Round-1 classifier
        self.encoder = self.path / "encoder.safetensors"  # the Round-2 encoder
        self.views = self.path / "views.npz"  # the party's views by id, preprocessed
        self.model_files = self.description, self.local_model, self.encoder
        self.files = *self.model_files, self.views  # all that its answers depend on

    def exists(self) -> bool:
        """Whether this is a party's folder."""
        return self.description.is_file()

    def model_hash(self) -> str:
        """Hash of weights, preprocessing and classes; not of the views, which change."""
        return hash_named_files((file.name, file) for file in self.model_files)


class OnnxFolder:
    """A party's models as ONNX files: ``<out>/<name>`` as `gainroute export` writes it, or one of your own."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.local_model = self.path / "local.onnx"  # the Round-1 classifier: a batch of views → posteriors (N, K)
        self.encoder = self.path / "encoder.onnx"  # the Round-2 encoder: a batch of views → embeddings (N, d)
        self.description = self.path / "party.json"  # as in the run; without it the models take views as they are
        self.export = self.path / "export.json"  # what was exported and how closely it agrees; not for your own models
        self.views = self.path / "views.npz"  # the party's views by id, preprocessed
        self.files = self.local_model, self.encoder, self.description, self.export, self.views

    def exists(self) -> bool:
        """Whether this is a folder with ONNX models."""
        return self.local_model.is_file() and self.encoder.is_file()

    def content_hash(self) -> str:
        """Hash of the models and the preprocessing as they are in the folder."""
        files = (self.local_model, self.encoder, self.description)
        return hash_named_files((file.name, file) for file in files if file.is_file())

    def model_hash(self) -> str:
        """Hash of the run's models that the export was verified against; that of the files for models of your own.

        Raises ArtifactError if the files are not those that were verified.
        """
        if not self.export.is_file():
            return self.content_hash()
        body = read_json(self.export)
        if body.get("content_hash") != self.content_hash():
            raise ArtifactError(
                f"{self.path} holds other files than `gainroute export` verified; export the run again, or remove "
                f"{self.export.name} to serve them as models of your own"
            )
        return str(body["model_hash"])


class ServerFolder:
    """``run/server``, in a run or copied to the coordinator's own machine."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.head = self.path / "head.safetensors"  # the fusion head for all parties
        self.masked_head = self.path / "masked.safetensors"  # the fusion head for any subset of the parties
        self.heads = self.head, self.masked_head
        self.router = self.path / "router.safetensors"  # the calibrated router

    def model_hash(self) -> str:
        """Hash of both heads."""
        return hash_contents(*self.heads)


class RunFolder:
    """A folder that training writes.

    Examples
    --------
    >>> RunFolder("run").party("front").encoder.as_posix()
    'run/parties/front/encoder.safetensors'
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.description = self.path / "run.json"  # written last, so that a folder with this file is complete
        self.server = ServerFolder(self.path / "server")
        self.record = self.path / "record.npz"  # the answers of both routes on the held-out parts
        self.results = self.path / "results.json"  # every figure of the report
        self.report = self.path / "report.html"
        self.work = self.path / "work"  # checkpoints, from which an interrupted run is resumed

    def claim(
        self,
        fingerprint: str,
        *,
        overwrite: bool = False,
        remedy: str = "choose another folder, or replace it with --overwrite",
    ) -> None:
        """Reserve the folder for the run of this fingerprint; raises DataError if it holds another one.

        The fingerprint is that of data and settings: the run with the same one is resumed. With `overwrite`, everything
        that belongs to another run is deleted.
        """
        owner = self.work / "fingerprint"
        held = owner.read_text() if owner.is_file() else None
        if held != fingerprint and (self.exists() or held is not None):
            if not overwrite:
                raise DataError(f"{self.path} holds another run, of other data or settings; {remedy}")
            for file in (self.description, self.record, self.results, self.report):
                file.unlink(missing_ok=True)
            for folder in (self.path / "parties", self.server.path, self.work):
                shutil.rmtree(folder, ignore_errors=True)
        write_bytes(owner, fingerprint.encode())

    def party(self, name: str) -> PartyFolder:
        """The folder of one party."""
        return PartyFolder(self.path / "parties" / name)

    def exists(self) -> bool:
        """Whether this is a complete run folder."""
        return self.description.is_file()

    def read(self) -> dict[str, Any]:
        """Read the run's description: `party_names` and `class_names`, in order."""
        if not self.exists():
            raise NotAnArtifactError(
                f"{self.path} is not a run (it has no {self.description.name}); name a folder that `gainroute train` "
                "has written"
            )
        return read_json(self.description)

    @property
    def party_names(self) -> tuple[str, ...]:
        """Names of the parties, in the order of training."""
        with naming_damage(self.description, NotAnArtifactError):
            names = tuple(str(name) for name in self.read()["party_names"])
            wrong = [name for name in names if name in ("", ".", "..") or "/" in name or not name.isprintable()]
            if wrong:
                raise ValueError(f"party_names has {wrong[0][:60]!r}, which cannot be the name of a folder")
        return names

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in column order."""
        return tuple(map(str, self.labels))

    @property
    def labels(self) -> list[int] | list[str]:
        """Labels as training read them, integers or texts, in column order."""
        with naming_damage(self.description, NotAnArtifactError):
            labels: list[int] | list[str] = list(self.read()["class_names"])
        return labels

    def provenance(self, codec: str) -> Provenance:
        """Hashes of every party's models and of the server's heads, with the codec of embeddings."""
        models = {name: self.party(name).model_hash() for name in self.party_names}
        return Provenance({**models, SERVER: self.server.model_hash()}, check_codec(codec))


def hash_version_folder(folder: PathLike) -> str:
    """Hash of a folder: all its files except hidden ones and its signature."""
    root = Path(folder)
    files = [path for path in root.rglob("*") if path.is_file() and path != root / SIGNATURE]
    named = [(path.relative_to(root).as_posix(), path) for path in files]
    kept = [(name, path) for name, path in named if not any(part.startswith(".") for part in name.split("/"))]
    if not kept:
        raise DataError(f"{root} contains no file: a version is a folder with a model inside")
    return hash_named_files(kept)


def signature_file(path: Path) -> Path:
    """Where the signature of a file or folder is."""
    return path / SIGNATURE if path.is_dir() else path.with_name(f"{path.name}.sig")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a run."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise NotAnArtifactError(
            f"{path} cannot be read ({error}); name a folder that `gainroute train` has written"
        ) from error
    if not isinstance(body, dict):
        raise NotAnArtifactError(f"{path} contains no JSON object; name a folder that `gainroute train` has written")
    return body
