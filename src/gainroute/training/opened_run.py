"""From a run folder to answers in Python: `open_run("run/").predict(views)`. torch is imported when a run is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, MissingExtraError
from gainroute.io.preprocess import Raw
from gainroute.io.run_folder import RunFolder
from gainroute.routing.router import Router
from gainroute.routing.two_round import Prediction, predict_two_round

if TYPE_CHECKING:
    from gainroute.training.trained_run import TrainedFusion, TrainedParty

__all__ = ["OpenedRun", "open_run"]


class OpenedRun:
    """A trained run that answers new views; `open_run` returns it.

    Attributes
    ----------
    router
        The run's calibrated router. It decides, and its classes are those of the run.
    codec
        How embeddings are sent to the fusion head.
    party_names, class_names
        In the order of training, and in column order.
    parties, fusion
        The models: a `gainroute.Party` per view, and the fusion head.
    """

    def __init__(self, router: Router, parties: Sequence[TrainedParty], fusion: TrainedFusion) -> None:
        self.router, self.codec = router, router.provenance_.codec
        self.party_names = tuple(party.name for party in parties)
        self.class_names = parties[0].class_names
        self.parties, self.fusion = tuple(parties), fusion

    def __repr__(self) -> str:
        return f"OpenedRun(parties={', '.join(self.party_names)}; classes={', '.join(self.class_names)})"

    def predict(self, views: Mapping[str, Any] | Sequence[Any]) -> Prediction:
        """Answer new samples in two rounds, as the service would; `prediction` holds labels as training read them.

        Parameters
        ----------
        views
            One view per party, by name or as a list in the order of `party_names`: an array (N, …) or a data frame,
            raw as in training. Row n of every view is the same sample.
        """
        given = dict(views) if isinstance(views, Mapping) else dict(enumerate(views))
        keys: Sequence[Any] = self.party_names if isinstance(views, Mapping) else range(len(self.party_names))
        if set(given) != set(keys):
            found = ", ".join(map(str, given)) if isinstance(views, Mapping) else len(given)
            raise DataError(f"views: {found}; one view per party is needed: {', '.join(self.party_names)}")
        raw = [_raw(given[key], name) for key, name in zip(keys, self.party_names, strict=True)]
        counts = {name: _length(view) for name, view in zip(self.party_names, raw, strict=True)}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(f"samples per view: {found}; row n of every view has to be the same sample")
        rows = np.arange(next(iter(counts.values())))
        holding = [party.holding(rows, view) for party, view in zip(self.parties, raw, strict=True)]
        return predict_two_round(holding, self.fusion, self.router, rows.tolist(), codec=self.codec)


def open_run(run_dir: str | os.PathLike[str], *, device: str = "cpu") -> OpenedRun:
    """Open a folder that `gainroute train` wrote, to answer new views in this process.

    Parameters
    ----------
    run_dir
        The run folder. Its router must have been calibrated with the models in it.
    device
        A torch device.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gainroute.training.run import train_run
    >>> labels = np.arange(200) % 2
    >>> views = {name: labels[:, None] + np.random.default_rng(i).normal(size=(200, 3)) for i, name in enumerate("ab")}
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     np.savez(folder / "y.npz", labels=np.array(["ant", "bee"])[labels])
    ...     for party, x in views.items():
    ...         np.savez(folder / f"{party}.npz", x=x)
    ...     files = [folder / "a.npz", folder / "b.npz"]
    ...     trained = train_run(files, folder / "y.npz", folder / "run", epochs=1)
    ...     run = open_run(folder / "run")
    >>> run
    OpenedRun(parties=a, b; classes=ant, bee)
    >>> run.predict({"a": [[2.0, 2.0, 2.0]], "b": [[2.0, 2.0, 2.0]]}).prediction
    array(['bee'], dtype='<U3')
    """
    try:
        from gainroute.training.run import load_calibrated_router
        from gainroute.training.trained_run import load_fusion, load_parties
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("opening a run", "torch") from None
    router = load_calibrated_router(run_dir)
    return OpenedRun(router, load_parties(run_dir, device), load_fusion(RunFolder(run_dir).server.path, device))


def _raw(view: Any, name: str) -> Raw:
    if isinstance(view, Mapping) or hasattr(view, "columns"):
        return {str(column): _column(view[column]) for column in getattr(view, "columns", view)}
    array = np.asarray(view)
    if array.ndim < 2:
        raise DataError(f"the view of party {name!r} has shape {array.shape}; (N, …) or a data frame is needed")
    return array


def _column(values: Any) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind == "O" and hasattr(values, "isna"):  # pandas marks gaps by a value that cannot be compared
        array = array.copy()
        array[np.asarray(values.isna())] = None
    return array


def _length(raw: Raw) -> int:
    return len(raw) if isinstance(raw, np.ndarray) else len(next(iter(raw.values()), ()))
