"""What a party keeps of an alignment: its key, and the table of real ids and pseudonyms. Both stay with the party."""

from __future__ import annotations

import hashlib
import hmac
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gainroute._util.arrays import shown
from gainroute._util.files import write_npz
from gainroute.errors import DataError, InputError, SettingError
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.preprocess import Raw
from gainroute.io.tables import read_table

__all__ = ["REALIGN", "PseudonymTable", "comparable_ids", "fingerprint"]

LONGEST = 256
REALIGN = "restore it, or delete it and align again"  # if a secret is damaged
ROWS = 4096


def comparable_ids(ids: Sequence[Any]) -> list[str]:
    """Convert ids to the text that parties compare, so that the same id is equal however it is encoded.

    Whole numbers become decimal digits, bytes are decoded as UTF-8, and composed and decomposed characters become the
    same (Unicode NFC). Raises InputError for text that only looks like another: spaces around it, invisible
    characters, characters that were lost in an earlier conversion. The message contains the id: keep it in the party.
    """
    texts = id_texts(ids)
    for text in texts:
        if not 0 < len(text) <= LONGEST or text != text.strip() or not text.isprintable() or "\ufffd" in text:
            raise InputError(
                f"id {shown(text[:LONGEST])} is empty, longer than {LONGEST} characters, has spaces around it, or "
                "contains invisible or undecodable characters, and might not match at another party; clean the ids"
            )
    return [text if text.isascii() else unicodedata.normalize("NFC", text) for text in texts]


def fingerprint(ids: Sequence[Any], views: Raw) -> str:
    """SHA-256 of ids and their views, whatever the order of the rows.

    Parameters
    ----------
    ids
        N texts or whole numbers, all different.
    views
        An array of N rows, or columns of a table with N rows each, as `read_view` reads them.
    """
    texts = comparable_ids(ids)
    columns = sorted(views.items()) if isinstance(views, Mapping) else [("", views)]
    digest = hashlib.sha256()
    for name, column in columns:
        if len(column) != len(texts):
            raise InputError(f"{len(texts):,} ids and {len(column):,} views; every sample needs both")
        digest.update(f"{name!r} {column.dtype.str} {column.shape}\n".encode())
    order = sorted(range(len(texts)), key=texts.__getitem__)
    for start in range(0, len(order), ROWS):  # in parts, because views may be larger than the memory
        rows = order[start : start + ROWS]
        digest.update(repr([texts[row] for row in rows]).encode())
        for _, column in columns:
            part = column[rows]
            digest.update(repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class PseudonymTable:
    """The aligned samples of one party, ordered by pseudonym: the same order at every party.

    Attributes
    ----------
    ids
        The real ids, as the party's data have them.
    pseudonyms
        The names of the same samples in the federation.
    fingerprint
        Of all ids and views that the party aligned, see `fingerprint`.
    """

    ids: tuple[str, ...]
    pseudonyms: tuple[str, ...]
    fingerprint: str

    @cached_property
    def _by_id(self) -> dict[str, str]:
        return dict(zip(comparable_ids(self.ids), self.pseudonyms, strict=True))

    @cached_property
    def _by_pseudonym(self) -> dict[str, str]:
        return dict(zip(self.pseudonyms, self.ids, strict=True))

    def pseudonyms_of(self, ids: Sequence[Any]) -> list[str]:
        """The pseudonyms of real ids; raises InputError for an id that is not aligned."""
        return _look_up(self._by_id, comparable_ids(ids), "id")

    def ids_of(self, pseudonyms: Sequence[str]) -> list[str]:
        """The real ids of pseudonyms; raises InputError for an unknown pseudonym."""
        return _look_up(self._by_pseudonym, pseudonyms, "pseudonym")

    def require_unchanged(self, ids: Sequence[Any], views: Raw) -> None:
        """Raise DataError if ids or views differ from those that were aligned."""
        found = fingerprint(ids, views)
        if not hmac.compare_digest(found, self.fingerprint):
            raise DataError(
                f"the data have changed since the alignment: their fingerprint is {found[:12]}…, that of the aligned "
                f"data {self.fingerprint[:12]}…; restore the data, or align again"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as an `.npz` file that only its owner may read, completely or not at all."""
        arrays = {"ids": self.ids, "pseudonyms": self.pseudonyms, "fingerprint": self.fingerprint}
        write_npz(path, arrays, compress=True, private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PseudonymTable:
        """Read a table that `save` wrote."""
        file = read_table(path)
        file.require("ids", "pseudonyms", "fingerprint", remedy="name the file that the alignment wrote")
        ids, pseudonyms = id_texts(file.objects("ids")), id_texts(file.objects("pseudonyms"))
        rows_by_id(ids, str(path))
        rows_by_id(pseudonyms, str(path), "pseudonym")
        if len(ids) != len(pseudonyms):
            raise DataError(f"{path}: {len(ids):,} ids and {len(pseudonyms):,} pseudonyms; align again")
        return cls(tuple(ids), tuple(pseudonyms), str(file.array("fingerprint")))

    @classmethod
    def of_federation(cls, folder: Path, name: str | None = None) -> PseudonymTable:
        """Read a party's table of one federation, from the folder in its settings `training.folder`.

        The name may be omitted if the party is in one federation only.
        """
        aligned = sorted(path.parent.name for path in folder.glob("*/aligned.npz"))
        if not aligned:
            raise DataError(f"{folder} holds no aligned ids; `gainroute federate` at the coordinator aligns them")
        if name not in aligned and (name or len(aligned) > 1):
            raise SettingError(f"--federation is {name or 'missing'}; this party is in {', '.join(aligned)}: name one")
        return cls.load(folder / (name or aligned[0]) / "aligned.npz")


def _look_up(table: dict[str, str], names: Sequence[str], what: str) -> list[str]:
    try:
        return [table[name] for name in names]
    except KeyError as error:
        raise InputError(f"{what} {shown(error.args[0])} is not among the {len(table):,} aligned samples") from None
