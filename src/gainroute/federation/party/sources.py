"""Where a party's answers come from: a folder of training, anybody's object, or precomputed columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import FileState, file_state
from gainroute._util.hashing import hash_named_files
from gainroute._util.importing import load_callable
from gainroute.errors import DataError, GainrouteError, MissingExtraError
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.party.views import ViewStore
from gainroute.federation.transport.base import ModelDescription
from gainroute.federation.transport.in_process import TextIds
from gainroute.io.party_answers import read_columns
from gainroute.io.run_folder import PartyFolder, RunFolder, hash_version_folder
from gainroute.routing.two_round import Party

__all__ = ["Source", "Version", "open_source", "source_of", "version_of"]

log = logging.getLogger(__name__)

Answer = Callable[[Sequence[str]], npt.ArrayLike]


@dataclass(frozen=True)
class Version:
    """One model version that answers.

    Attributes
    ----------
    model
        Its hash, and the length of its embeddings.
    classes
        Names in the order of the posterior's columns.
    posteriors, embeddings
        Ids as text → (N, K) and (N, d); a row of NaN where the party lacks the sample.
    immediate
        True where an answer is a look-up that takes no time worth a thread.
    """

    model: ModelDescription
    classes: tuple[str, ...]
    posteriors: Answer
    embeddings: Answer
    immediate: bool = False


class Source:
    """Looks for versions at their places, and keeps those that have not changed.

    Parameters
    ----------
    places
        Lists where versions are now.
    files
        The files of a place that tell whether it changed.
    load
        A place → the version.
    """

    def __init__(
        self, places: Callable[[], list[Path]], files: Callable[[Path], list[Path]], load: Callable[[Path], Version]
    ) -> None:
        self._places, self._files, self._load = places, files, load
        self._known: dict[Path, tuple[FileState, Version | None]] = {}

    def scan(self) -> dict[str, Version]:
        """The versions there are, by hash. One that cannot be loaded is logged and left out."""
        known: dict[Path, tuple[FileState, Version | None]] = {}
        for place in self._places():
            state = file_state(*self._files(place))
            before = self._known.get(place)
            known[place] = before if before is not None and before[0] == state else (state, self._try(place))
        self._known = known
        found = {version.model.hash: version for _, version in known.values() if version is not None}
        classes = next(iter(found.values())).classes if found else ()
        for version in list(found.values()):
            if version.classes != classes:
                told = f"{', '.join(version.classes)} instead of {', '.join(classes)}"
                log.error("version left out: its classes differ", extra={"model": version.model.hash, "reason": told})
                del found[version.model.hash]
        return found

    def _try(self, place: Path) -> Version | None:
        try:
            version = self._load(place)
        except (GainrouteError, OSError) as error:
            log.error("version left out", extra={"place": str(place), "reason": str(error)})  # noqa: TRY400
            return None
        except Exception:
            log.exception("version left out", extra={"place": str(place)})
            return None
        log.info("version taken", extra={"place": str(place), "model": version.model.hash})
        return version


def version_of(party: Party, model: str, classes: Sequence[str], dimension: int) -> Version:
    """A version from an object in this process.

    Parameters
    ----------
    party
        Any `gainroute.Party`. If its attribute `immediate` is true, answers need no thread.
    model
        Its hash.
    classes
        Names in the order of the posterior's columns.
    dimension
        Length of its embeddings.
    """
    made = _version(TextIds(party), model, classes, dimension)
    return replace(made, immediate=bool(getattr(party, "immediate", False)))


def source_of(*versions: Version) -> Source:
    """A source of versions that are there already."""
    by_place = {Path(version.model.hash): version for version in versions}
    return Source(lambda: list(by_place), lambda _: [], by_place.__getitem__)


def open_source(settings: SourceSettings, name: str, views: ViewStore | None = None) -> Source:
    """The source that settings name.

    Parameters
    ----------
    settings
        Exactly one of `run`, `factory` and `columns` is given.
    name
        Of the party: which folder of a whole run is its own.
    views
        Where views are found, if not in the source itself.
    """
    if settings.run is not None:
        run = settings.run
        return Source(lambda: _run_places(run, name), _run_files, lambda place: _trained(place, views))
    if settings.columns is not None:
        columns = settings.columns
        return Source(
            lambda: _column_files(columns), lambda place: [place], lambda p: _precomputed(p, settings.classes)
        )
    make = load_callable(settings.factory, "source.factory")
    models = settings.models
    if models is None:
        nowhere = Path()
        return Source(lambda: [nowhere], lambda _: [], lambda _: _made(make, None, views, settings))
    return Source(
        lambda: [place for place in sorted(_listed(models)) if place.is_dir()],
        lambda place: sorted(path for path in place.rglob("*") if path.is_file()),
        lambda place: _made(make, place, views, settings),
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}): name the folder of versions") from error


# ---- a folder that training left --------------------------------------------------------------------


def _run_places(folder: Path, name: str) -> list[Path]:
    versions = (folder, *sorted(_listed(folder)))
    found = [PartyFolder(place) for version in versions for place in (version, RunFolder(version).party(name).path)]
    return [party.path for party in found if party.exists()]


def _run_files(place: Path) -> list[Path]:
    return list(PartyFolder(place).files)


def _trained(place: Path, views: ViewStore | None) -> Version:
    try:
        from gainroute.training.trained_run import TrainedParty
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("serving a trained run", "torch") from None
    party = TrainedParty(place)
    asked: Any = TextIds(party) if views is None else _Viewing(party, views)
    return _version(asked, PartyFolder(place).model_hash(), party.class_names, party.dimension)


class _Viewing:
    """A trained party that looks its views up as it is asked."""

    def __init__(self, party: Any, views: ViewStore) -> None:
        self._party, self._views = party, views

    def posteriors(self, ids: Sequence[str], width: int) -> npt.ArrayLike:
        return self._answer("posteriors", ids, width)

    def embeddings(self, ids: Sequence[str], width: int) -> npt.ArrayLike:
        return self._answer("embeddings", ids, width)

    def _answer(self, what: str, ids: Sequence[str], width: int) -> npt.ArrayLike:
        found = self._views.fetch(ids)
        answers = np.full((len(ids), width), np.nan, np.float32)
        if len(found.positions):
            rows = np.arange(len(found.positions))
            holding = self._party.holding(rows, found.raw)
            answers[found.positions] = getattr(holding, what)(rows)
        return answers


def _version(asked: Any, model: str, classes: Sequence[str], dimension: int) -> Version:
    names = tuple(str(name) for name in classes)
    return Version(
        ModelDescription(model, dimension),
        names,
        lambda ids: asked.posteriors(ids, len(names)),
        lambda ids: asked.embeddings(ids, dimension),
    )


# ---- anybody's object -------------------------------------------------------------------------------


def _made(make: Callable[..., Any], place: Path | None, views: ViewStore | None, settings: SourceSettings) -> Version:
    more: Mapping[str, Any] = {} if views is None else {"views": views}
    party = make(**more) if place is None else make(place, **more)
    for method in ("posteriors", "embeddings"):
        if not callable(getattr(party, method, None)):
            raise DataError(f"{settings.factory} gave a {type(party).__name__} without the method {method}")
    classes = tuple(settings.classes or getattr(party, "class_names", ()))
    dimension = int(settings.dimension or getattr(party, "dimension", 0))
    model = (
        settings.hash or str(getattr(party, "model_hash", "")) or ("" if place is None else hash_version_folder(place))
    )
    for what, value in (("classes", classes), ("dimension", dimension), ("hash", model)):
        if not value:
            names = {"classes": "class_names", "dimension": "dimension", "hash": "model_hash"}
            raise DataError(
                f"{settings.factory} gave a party without {names[what]}: add that attribute, or set source.{what}"
            )
    return version_of(party, model, classes, dimension)


# ---- precomputed columns ----------------------------------------------------------------------------


def _column_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in _listed(path) if file.suffix in (".npz", ".parquet")]
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)  # of two under one hash, the later one counts
    return [path]


def _precomputed(path: Path, classes: Sequence[str]) -> Version:
    found = read_columns(path)
    names = found.class_names or tuple(classes)
    if len(names) != found.posteriors.shape[1]:
        raise DataError(
            f"{path} has posteriors over {found.posteriors.shape[1]} classes and {len(names)} names: put class_names "
            "into the file, or set source.classes"
        )
    return Version(
        ModelDescription(found.model_hash or hash_named_files([("columns", path)]), found.embeddings.shape[1]),
        names,
        lambda ids: found.take(found.posteriors, ids),
        lambda ids: found.take(found.embeddings, ids),
        immediate=True,
    )
