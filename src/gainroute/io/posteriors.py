"""Posterior files: the answers of both routes for a set of samples, read from `.npz` or Parquet, and written back.

An `.npz` file holds `local_posteriors` (M, N, K), and where they are known `labels`, `strong_prediction`,
`strong_posterior` (N, K), `weak_prediction`, `sample_weight`, `present` (M, N), `ids` and `class_names`. A Parquet
file holds one row per sample; or there is one Parquet file per party, joined by an id (see `load_outcomes`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from warnings import warn

import numpy as np

from gainroute._util.damage import names_damage
from gainroute.errors import DataError, GainrouteWarning
from gainroute.io.posterior_columns import as_labels, join, read_known, read_parties, read_party_files
from gainroute.io.tables import ColumnTable, PathLike, file_format, read_table, write_plain_npz
from gainroute.routing.inputs import as_local_posteriors, as_present, check_posteriors
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import BoolArray, FloatArray, IntArray, LabelArray

__all__ = ["Outcomes", "for_router", "load_outcomes", "save_outcomes"]

NAMED = ("labels", "strong_prediction", "weak_prediction")
BY_SAMPLE = (*NAMED, "strong_posterior", "ids", "sample_weight")
COLUMN = {"labels": "label", "ids": "id"}  # Parquet, with one row per sample, uses the singular


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Local posteriors, strong answers and labels of N samples; None for what a file does not contain.

    Labels and predictions are column numbers, or names out of `class_names`.
    """

    local_posteriors: FloatArray  # (M, N, K); rows of an absent party may hold anything
    labels: LabelArray | None = None
    strong_prediction: LabelArray | None = None  # −1 (None) means no answer
    strong_posterior: FloatArray | None = None  # (N, K)
    ids: LabelArray | None = None
    class_names: LabelArray | None = None  # (K,), in column order
    weak_prediction: LabelArray | None = None
    sample_weight: FloatArray | None = None
    present: BoolArray | None = None  # (M, N), which party answered which sample; None if all did
    party_names: tuple[str, ...] = ()
    source: str = "the data"  # the file, for messages

    def __post_init__(self) -> None:
        n = len(self)
        for name in BY_SAMPLE:
            value = getattr(self, name)
            if value is not None and (value.ndim == 0 or len(value) != n):
                raise DataError(
                    f"{self.source}: {name} has shape {value.shape} for {n} samples; one entry per sample is needed, "
                    "in the order of the posteriors"
                )
        if self.present is not None:
            object.__setattr__(self, "present", as_present(self.present, self.local_posteriors.shape[:2]))
        if not self.party_names:
            object.__setattr__(self, "party_names", tuple(f"party {i}" for i in range(len(self.local_posteriors))))

    def __len__(self) -> int:
        return int(self.local_posteriors.shape[1])

    def require(self, *names: str) -> None:
        """Raise DataError unless the file contained these."""
        has = [key for key in _KEYS if getattr(self, key) is not None]
        for name in names:
            also = " (or strong_posterior)" if name == "strong_prediction" else ""
            if name not in has and not (also and "strong_posterior" in has):
                raise DataError(
                    f"{self.source} has no {name}{also}; it has {', '.join(has)}: add {name}, one entry per sample "
                    f"(in Parquet the column {COLUMN.get(name, name)!r})"
                )

    def take(self, rows: IntArray | BoolArray) -> Outcomes:
        """Return the samples of these rows."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in BY_SAMPLE}
        kept = {name: None if value is None else value[rows] for name, value in kept.items()}
        present = None if self.present is None else self.present[:, rows]
        return replace(self, local_posteriors=self.local_posteriors[:, rows], present=present, **kept)

    def complete(self) -> Outcomes:
        """Return the samples that all parties answered, and warn about the others."""
        if self.present is None:
            return self
        whole = np.asarray(self.present.all(axis=0))
        if not whole.any():
            raise DataError(
                f"{self.source}: every one of the {len(self)} samples lacks a party; complete ones are needed"
            )
        warn(
            f"{int((~whole).sum())} of {len(self)} samples of {self.source} lack a party and are left out",
            GainrouteWarning,
            stacklevel=2,
        )
        return self.take(whole)

    def in_labels(self, names: LabelArray | None, classes: int) -> Outcomes:
        """Return labels and predictions as a router fitted with `classes=names` takes them.

        That is as names, or, where `names` is None, as column numbers. A file may hold either. Columns in another order
        than the router's are matched by their class names.
        """
        own = self.class_names
        if own is not None and names is not None and list(map(str, own)) != list(map(str, names)):
            return self._in_order_of(names).in_labels(names, classes)
        given = names if own is None else own
        reader, plain, writer = Labels(classes, given), Labels(classes, None), Labels(classes, names)
        changed: dict[str, Any] = {}
        for field in NAMED:
            value = getattr(self, field)
            if value is None:
                continue
            texts = value.dtype.kind in "OUS" and any(isinstance(v, str) for v in value.tolist())
            if texts and given is None:
                raise DataError(
                    f"{self.source}: {field} holds text ({_some(value)}) and no class names are known; add class_names "
                    "in column order (--classes no,yes), or use column numbers 0 … K−1"
                )
            if texts:  # numpy cannot write None among texts: an empty text stands for it
                value = np.array([None if v in ("", None) else v for v in value.tolist()], dtype=object)
            numbers = given is not None and value.dtype.kind in "iubf" and given.dtype.kind not in "iuf"
            missing = field == "strong_prediction"
            integers = self._integer_names(field, given) if numbers else None
            encode = plain.encode if given is None or numbers else reader.encode
            if integers is not None:
                encode = Labels(classes, integers).encode
            changed[field] = writer.decode(encode(value, f"{self.source}: {field}", missing=missing))
        return replace(self, class_names=given, **changed)

    def _integer_names(self, field: str, names: LabelArray | None) -> LabelArray | None:
        """Class names as integers, if names such as "1" … "15" are what integers in a field stand for.

        None if they are column numbers. Integers that could be either are refused.
        """
        value = getattr(self, field)
        texts = [] if names is None else [str(name) for name in names.tolist()]
        columns = list(range(len(texts)))
        if value is None or value.dtype.kind not in "iuf" or not all(t.removeprefix("-").isdecimal() for t in texts):
            return None
        integers = [int(text) for text in texts]
        if list(map(str, integers)) != texts or integers == columns:
            return None
        found = value[~np.isnan(value) & (value != -1)] if field == "strong_prediction" else value
        if np.isin(found, columns).all():
            if np.isin(found, integers).all():
                raise DataError(
                    f"{self.source}: {field} holds integers that could be class names ({_some(texts)}) or column "
                    f"numbers 0 … {len(texts) - 1}; write them as text, or class_names as integers"
                )
            return None
        return np.array(integers)

    def _in_order_of(self, names: LabelArray) -> Outcomes:
        """Bring the columns, and labels that are column numbers, into the order of these class names."""
        own = [] if self.class_names is None else [str(name) for name in self.class_names.tolist()]
        wanted = [str(name) for name in names.tolist()]
        if sorted(own) != sorted(wanted):
            raise DataError(
                f"{self.source} has the classes {_some(own)}, the router was fitted with {_some(names)}; use a file "
                "with the router's classes, or fit again"
            )
        k = len(own)
        order = [own.index(name) for name in wanted]
        named = self.in_labels(self.class_names, k)
        extra = range(k, self.local_posteriors.shape[2])  # the wish to defer
        strong = self.strong_posterior
        return replace(
            named,
            local_posteriors=self.local_posteriors[..., [*order, *extra]],
            strong_posterior=None if strong is None else strong[:, order],
            class_names=names,
        )


_KEYS = tuple(f.name for f in fields(Outcomes) if f.name not in ("party_names", "source"))


@names_damage()
def load_outcomes(
    paths: PathLike | Sequence[PathLike],
    labels: PathLike | None = None,
    on: str | None = None,
    *,
    class_names: Sequence[Any] | None = None,
) -> Outcomes:
    """Read posteriors, and everything else the files contain.

    `paths` is one `.npz` or Parquet file, or one Parquet file per party, in the order of the parties. Those are joined
    with `labels`, a Parquet file with `label`, `strong_prediction` and anything else known, by the column `on`, which
    identifies a sample in every file; samples that are not in all files are left out, with a warning. `class_names`
    are the classes in column order, if the file does not contain them.

    In Parquet the posterior of a party is a list column `posterior_<party>` (null: the party is absent), or number
    columns `posterior_<party>_<class>`, or for two classes one number column `posterior_<party>` with P(class 1).
    Number columns whose names can be read both ways are read as classes if they sum to one.
    """
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not files:
        raise DataError("no file was given; pass one .npz or Parquet file, or one Parquet file per party")
    names = None if class_names is None else np.asarray(class_names)
    formats = [file_format(path) for path in [*files, *([] if labels is None else [labels])]]
    if len(formats) == 1 and on is None:
        if formats[0] == "npz":
            return _named(_from_npz(read_table(files[0], only=_KEYS), names))
        table = read_table(files[0])
        return _named(Outcomes(**read_parties(table, names), **read_known(table), source=table.source))
    if on is None:
        raise DataError(
            f"{len(formats)} files were given and nothing to join them by; name the column that identifies a sample: "
            "--on customer_id"
        )
    if "npz" in formats:
        raise DataError(
            f"{[*files, labels][formats.index('npz')]} is an .npz file; joining by {on!r} takes Parquet files: an .npz "
            "holds all parties and the labels in one file"
        )
    return _named(_read_joined(files, labels, on, names))


def save_outcomes(outcomes: Outcomes, path: PathLike) -> None:
    """Write an `.npz` file that `load_outcomes` reads back, completely or not at all."""
    arrays = {name: getattr(outcomes, name) for name in _KEYS}
    write_plain_npz({name: value for name, value in arrays.items() if value is not None}, path)


def for_router(router: Router, outcomes: Outcomes, first_row: int = 0) -> tuple[Outcomes, LabelArray | None]:
    """Check the posteriors, convert labels to the router's, and return the weak prediction it needs, if any.

    `first_row` is the row of the file at which these samples start, for messages.
    """
    name = f"{outcomes.source}: local_posteriors"
    local = as_local_posteriors(
        outcomes.local_posteriors,
        parties=router.n_parties_,
        classes=router.n_classes_ + router.extra_columns,
        name=name,
    )
    check_posteriors(local, outcomes.present, name, first_row)
    known = outcomes.in_labels(router.classes, router.n_classes_)
    if router.own_weak_prediction_:
        known.require("weak_prediction")
        return known, known.weak_prediction
    if known.weak_prediction is not None:
        warn(
            f"weak_prediction in {known.source} is not used: the router was fitted without one, on the argmax of the "
            "pooled posterior",
            GainrouteWarning,
            stacklevel=2,
        )
    return known, None


# ---- inside -------------------------------------------------------------------------------------


def _from_npz(table: ColumnTable, names: LabelArray | None) -> Outcomes:
    table.require("local_posteriors", remedy="add the parties' posteriors, (M, N, K), under that name")
    found = {key: table.array(key) for key in _KEYS if key in table}
    local = as_local_posteriors(found.pop("local_posteriors"), name=f"{table.source}: local_posteriors")
    if names is not None:
        held = found.get("class_names")
        if held is not None and held.tolist() != names.tolist() and sorted(map(str, held)) == sorted(map(str, names)):
            raise DataError(
                f"{table.source} holds class_names {_some(held)}, and the classes were given as {_some(names)}; the "
                "file knows the order of its columns: leave out --classes"
            )
        found["class_names"] = names
    return Outcomes(local, **found, source=table.source)  # type: ignore[arg-type]


def _named(outcomes: Outcomes) -> Outcomes:
    """Names of classes as integers where the labels are integers: integer labels come back as integers."""
    integers = outcomes._integer_names("labels", outcomes.class_names)
    return outcomes if integers is None else replace(outcomes, class_names=integers)


def _read_joined(paths: Sequence[PathLike], labels: PathLike | None, on: str, names: LabelArray | None) -> Outcomes:
    files = [*([] if labels is None else [labels]), *paths]
    joined, unmatched = join([read_table(path) for path in files], on)
    ids = as_labels(joined[0].objects(on))
    if any(unmatched):
        counts = ", ".join(f"{count} of {path}" for path, count in zip(files, unmatched, strict=True) if count)
        warn(
            f"samples whose {on} is not in every file are left out: {counts}; {len(ids)} are in all",
            GainrouteWarning,
            stacklevel=4,
        )
    found = read_party_files(joined[len(joined) - len(paths) :], on, names)
    known = {} if labels is None else read_known(joined[0])
    return Outcomes(**found, **(known | {"ids": ids}), source=", ".join(map(str, files)))


def _some(values: Any, most: int = 6) -> str:
    items = [str(v) for v in np.asarray(values).tolist()]
    return ", ".join(items[:most]) + (f", … ({len(items)} in all)" if len(items) > most else "")
