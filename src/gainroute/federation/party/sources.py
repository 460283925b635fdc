"""Where the models of a party come from: a trained run, ONNX files, a factory, or files of precomputed answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import FileState, file_state
from gainroute._util.hashing import hash_named_files
from gainroute._util.importing import load_callable
from gainroute.errors import DataError, GainrouteError, MissingExtraError
from gainroute.federation.party.model import ModelVersion, version_of
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.party.views import ViewSource
from gainroute.federation.pki.signatures import Trust, verified
from gainroute.federation.transport.base import ModelDescription
from gainroute.io.answering_party import AnsweringParty
from gainroute.io.party_answers import read_columns
from gainroute.io.run_folder import OnnxFolder, PartyFolder, RunFolder, hash_version_folder, signature_file

__all__ = ["ModelSource", "open_source", "source_of"]

log = logging.getLogger(__name__)


class ModelSource:
    """Finds model versions in files and folders, and loads those that are new or have changed.

    Parameters
    ----------
    places
        Returns the files or folders that hold a version each.
    files
        Returns the files of a place whose change means a new version.
    load
        Loads the version at a place.
    """

    def __init__(
        self,
        places: Callable[[], list[Path]],
        files: Callable[[Path], list[Path]],
        load: Callable[[Path], ModelVersion],
    ) -> None:
        self._places, self._files, self._load = places, files, load
        self._known: dict[Path, tuple[FileState, ModelVersion | None]] = {}

    def scan(self) -> dict[str, ModelVersion]:
        """Return the versions by hash. One that cannot be loaded is logged and skipped."""
        known: dict[Path, tuple[FileState, ModelVersion | None]] = {}
        for place in self._places():
            state = file_state(*self._files(place))
            before = self._known.get(place)
            known[place] = before if before is not None and before[0] == state else (state, self._try(place))
        self._known = known
        found = {version.model.hash: version for _, version in known.values() if version is not None}
        classes = next(iter(found.values())).classes if found else ()
        for version in list(found.values()):
            if version.classes != classes:
                reason = f"{', '.join(version.classes)} instead of {', '.join(classes)}"
                log.error("version skipped: its classes differ", extra={"model": version.model.hash, "reason": reason})
                del found[version.model.hash]
        return found

    def _try(self, place: Path) -> ModelVersion | None:
        try:
            version = self._load(place)
        except (GainrouteError, OSError) as error:
            log.error("version skipped", extra={"place": str(place), "reason": str(error)})  # noqa: TRY400
            return None
        except Exception:
            log.exception("version skipped", extra={"place": str(place)})
            return None
        log.info("version loaded", extra={"place": str(place), "model": version.model.hash})
        return version


def source_of(*versions: ModelVersion) -> ModelSource:
    """Return a source of versions that already exist."""
    by_place = {Path(version.model.hash): version for version in versions}
    return ModelSource(lambda: list(by_place), lambda _: [], by_place.__getitem__)


def open_source(
    settings: SourceSettings,
    name: str,
    views: ViewSource | None = None,
    threads: int = 1,
    trust: Trust | None = None,
) -> ModelSource:
    """Return the source that the settings select.

    Parameters
    ----------
    settings
        With exactly one of `run`, `onnx`, `factory` and `columns`.
    name
        Name of the party, which selects its folder in a complete run.
    views
        Where views are found, unless the model has them itself.
    threads
        Threads that onnxruntime computes with; 0 leaves the choice to it.
    trust
        With it, a version has to be signed; a factory without `models` is installed code, and needs no signature.
    """
    run, onnx, columns, models = settings.run, settings.onnx, settings.columns, settings.models
    if run is not None:
        return ModelSource(
            lambda: _party_folders(run, name),
            lambda place: [*PartyFolder(place).files, signature_file(place)],
            lambda place: _trained(place, views, trust),
        )
    if onnx is not None:
        return ModelSource(
            lambda: _onnx_folders(onnx, name),
            lambda place: [*OnnxFolder(place).files, signature_file(place)],
            lambda place: _onnx(place, name, settings, views, threads, trust),
        )
    if columns is not None:
        return ModelSource(
            lambda: _answer_files(columns),
            lambda place: [place, signature_file(place)],
            lambda place: _precomputed(place, settings.classes, trust),
        )
    make = load_callable(settings.factory, "source.factory")
    given = {} if views is None else {"views": views}
    if models is None:
        nowhere = Path(settings.factory)
        return ModelSource(lambda: [nowhere], lambda _: [], lambda _: _described(make(**given), settings, None))
    copies = ExitStack()  # verified copies stay until the process ends: the object may read more files later

    def from_folder(place: Path) -> ModelVersion:
        folder = copies.enter_context(verified(place, trust))
        return _described(make(folder, **given), settings, folder)

    return ModelSource(
        lambda: [place for place in sorted(_listed(models)) if place.is_dir()],
        lambda place: sorted(path for path in place.rglob("*") if path.is_file()),
        from_folder,
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}): name the folder of versions") from error


# ---- a trained run ----------------------------------------------------------------------------------


def _party_folders(folder: Path, name: str) -> list[Path]:
    versions = (folder, *sorted(_listed(folder), key=_in_order))  # of two with the same models, the later counts
    found = [PartyFolder(place) for version in versions for place in (version, RunFolder(version).party(name).path)]
    return [party.path for party in found if party.exists()]


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Sort numbers in names by value: v9 comes before v10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", path.name)]


def _trained(place: Path, views: ViewSource | None, trust: Trust | None) -> ModelVersion:
    try:
        from gainroute.training.trained_run import TrainedParty
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("serving a trained run", "torch") from None
    with verified(place, trust) as folder:
        return _answering(TrainedParty(folder), PartyFolder(folder).model_hash(), views)


def _answering(party: AnsweringParty, model: str, views: ViewSource | None) -> ModelVersion:
    answering = party if views is None else _WithViews(party, views)
    return version_of(answering, model, party.class_names, party.dimension)


class _WithViews:
    """A party whose views are looked up at each request."""

    def __init__(self, party: AnsweringParty, views: ViewSource) -> None:
        self._party, self._views = party, views

    def posteriors(self, ids: Sequence[str], /) -> npt.ArrayLike:
        return self._answer("posteriors", ids, len(self._party.class_names))

    def embeddings(self, ids: Sequence[str], /) -> npt.ArrayLike:
        return self._answer("embeddings", ids, self._party.dimension)

    def _answer(self, what: str, ids: Sequence[str], width: int) -> npt.ArrayLike:
        found = self._views.fetch(ids)
        answers = np.full((len(ids), width), np.nan, np.float32)
        if len(found.positions):
            rows = np.arange(len(found.positions))
            answers[found.positions] = getattr(self._party.holding(rows, found.raw), what)(rows)
        return answers


# ---- ONNX files -------------------------------------------------------------------------------------


def _onnx_folders(folder: Path, name: str) -> list[Path]:
    def party_in(place: Path) -> Path | None:  # in an export of a complete run the party has a subfolder
        return next((path for path in (place / name, place) if OnnxFolder(path).exists()), None)

    single = party_in(folder)
    if single is not None:
        return [single]
    return [found for version in sorted(_listed(folder)) if (found := party_in(version)) is not None]


def _onnx(
    place: Path, name: str, settings: SourceSettings, views: ViewSource | None, threads: int, trust: Trust | None
) -> ModelVersion:
    from gainroute.io.onnx_party import OnnxParty

    with verified(place, trust) as folder:
        party = OnnxParty(folder, name, class_names=settings.classes, threads=threads)
        return _answering(party, OnnxFolder(folder).model_hash(), views)


# ---- a factory --------------------------------------------------------------------------------------


def _described(party: Any, settings: SourceSettings, place: Path | None) -> ModelVersion:
    """Wrap the object that a factory returned; the settings take precedence over its own description."""
    for method in ("posteriors", "embeddings"):
        if not callable(getattr(party, method, None)):
            raise DataError(f"{settings.factory} returned a {type(party).__name__} without the method {method}")
    classes = tuple(settings.classes or getattr(party, "class_names", ()))
    dimension = int(settings.dimension or getattr(party, "dimension", 0))
    model = settings.hash or str(getattr(party, "model_hash", ""))
    if not model and place is not None:
        model = hash_version_folder(place)
    for attribute, setting, value in (
        ("class_names", "classes", classes), ("dimension", "dimension", dimension), ("model_hash", "hash", model),
    ):  # fmt: skip
        if not value:
            raise DataError(
                f"{settings.factory} returned a party without {attribute}: add that attribute, or set source.{setting}"
            )
    return version_of(party, model, classes, dimension)


# ---- precomputed answers ----------------------------------------------------------------------------


def _answer_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in _listed(path) if file.suffix in (".npz", ".parquet")]
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)  # of two with one hash, the newer one is used
    return [path]


def _precomputed(path: Path, classes: Sequence[str], trust: Trust | None) -> ModelVersion:
    with verified(path, trust) as file:
        found = read_columns(file)
        model = found.model_hash or hash_named_files([("columns", file)])
    names = found.class_names or tuple(classes)
    if len(names) != found.posteriors.shape[1]:
        raise DataError(
            f"{path} has posteriors over {found.posteriors.shape[1]} classes and {len(names)} names: add class_names "
            "to the file, or set source.classes"
        )
    return ModelVersion(
        ModelDescription(model, found.embeddings.shape[1]),
        names,
        lambda ids: found.take(found.posteriors, ids),
        lambda ids: found.take(found.embeddings, ids),
        immediate=True,
    )
