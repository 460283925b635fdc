"""The labels that a party holds: those of aligned samples, and the randomised ones that may leave it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gainroute._util.files import write_npz
from gainroute.errors import DataError, GainrouteError, InputError
from gainroute.federation.formation.plan import FormationPlan, LabelSettings
from gainroute.federation.formation.pseudonyms import PseudonymTable
from gainroute.federation.formation.tasks import Array
from gainroute.federation.party.settings import TrainingSettings
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.tables import read_table
from gainroute.io.views import read_labels
from gainroute.routing.types import IntArray
from gainroute.training.data.splits import stratified_split
from gainroute.training.label_privacy import randomise_labels
from gainroute.training.prepare import encode_labels, split_rows

__all__ = ["PartyLabels", "own_data"]

log = logging.getLogger(__name__)


@contextmanager
def own_data() -> Iterator[None]:
    """Keep errors about the party's own files in its log: their texts may contain a real id or a value."""
    try:
        yield
    except GainrouteError as error:
        log.error("the party's data cannot be used", extra={"reason": str(error)})  # noqa: TRY400
        raise DataError("its own data cannot be used; its log says why") from error


class PartyLabels:
    """The labels of a party's aligned samples.

    Parameters
    ----------
    settings
        Where the file of labels is, and what its holder allows.
    access
        Who sees the labels, as the plan says.
    table
        The aligned samples.
    folder
        Where randomised labels are kept.
    """

    def __init__(self, settings: TrainingSettings, access: LabelSettings, table: PseudonymTable, folder: Path) -> None:
        self._settings, self._access, self._table, self._folder = settings, access, table, folder

    def values(self) -> Array:
        """The true labels, in the order of the pseudonyms."""
        settings, access, names = self._settings, self._access, self._table.ids
        if settings.max_epsilon is not None and not (access.epsilon or np.inf) <= settings.max_epsilon:
            raise InputError(
                f"the plan has labels.access = {access.access!r} with epsilon {access.epsilon}; this party allows "
                f"'private' with at most training.max_epsilon = {settings.max_epsilon:g}"
            )
        if settings.labels is None:
            raise DataError("this party has no labels: set training.labels in its settings")
        with own_data():
            read = read_labels(settings.labels, id_column=settings.id_column, label_column=settings.label_column)
            if read.ids is None:
                raise DataError(f"{settings.labels} has no ids: samples are aligned by id")
            rows = rows_by_id(id_texts(read.ids.tolist()), str(settings.labels))
        lacking = sum(name not in rows for name in names)
        if lacking:
            raise DataError(f"the labels lack {lacking:,} of {len(names):,} aligned samples: add them")
        return read.labels[[rows[name] for name in names]]

    def split(
        self, plan: FormationPlan, known: Sequence[str] = (), trained: IntArray | None = None
    ) -> tuple[tuple[str, ...], bool, list[IntArray]]:
        """Class names, whether labels are integers, and the rows that train, calibrate and test, stratified by class.

        With the models of an earlier version, `known` are its classes and `trained` the rows that trained them: the
        others are split into calibration and test.
        """
        labels, shares = self.values(), (plan.test, plan.calibration, plan.seed)
        integers = labels.dtype.kind in "iu"
        with own_data():  # an error would tell how many samples a class has
            if trained is not None:
                codes = self.given_out(encode_labels(labels, known), len(known))
                others = np.setdiff1d(np.arange(len(codes)), trained)
                share = plan.test / (plan.test + (1 - plan.test) * plan.calibration)
                held, test = stratified_split(codes[others], share, plan.seed)
                return tuple(known), integers, [trained, others[held], others[test]]
            class_names, codes, rows = split_rows(labels, *shares)
        if self._access.epsilon is not None:  # a split stratified by true labels would reveal them
            rows = split_rows(self.given_out(codes, len(class_names)), *shares)[2]
        return class_names, integers, rows

    def given_out(self, codes: IntArray, classes: int) -> IntArray:
        """The labels that may leave the party: as they are, or after randomised response if the plan has an ε.

        Each is drawn once for all runs: repeated draws would reveal it.
        """
        epsilon, names = self._access.epsilon, self._table.pseudonyms
        if epsilon is None:
            return codes
        path = self._folder / f"randomised-{epsilon:g}-{classes}.npz"
        known: dict[str, int] = {}
        if path.exists():
            stored = read_table(path)
            known = dict(zip(stored.objects("pseudonyms"), stored.array("labels").tolist(), strict=True))
        fresh = randomise_labels(codes, classes, epsilon, np.random.default_rng(secrets.randbits(128)))
        known = dict(zip(names, fresh.tolist(), strict=True)) | known
        arrays = {"pseudonyms": list(known), "labels": np.array(list(known.values()), dtype=np.int64)}
        write_npz(path, arrays, compress=True, private=True)
        return np.array([known[name] for name in names], dtype=np.int64)
