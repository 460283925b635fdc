"""What a party keeps: a table of ids and pseudonyms that only it may read, and that notices changed data."""

from __future__ import annotations

import re
import stat
import unicodedata

import numpy as np
import pytest

from gainroute._util.files import kept_secret, write_npz
from gainroute.errors import DataError, InputError, StorageError
from gainroute.federation.formation import pseudonyms
from gainroute.federation.formation.groups import P256
from gainroute.federation.formation.pseudonyms import PseudonymTable, fingerprint

IDS, VIEWS = ["b", "7", "Zoë"], np.arange(6.0).reshape(3, 2)
NAMES = tuple(f"{n:032x}" for n in range(3))
TABLE = PseudonymTable(tuple(IDS), NAMES, fingerprint(IDS, VIEWS))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_saved_table_is_read_back_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "new" / "pseudonyms.npz"
    TABLE.save(path)
    assert PseudonymTable.load(path) == TABLE
    assert mode(path) == 0o600
    assert [*path.parent.iterdir()] == [path]


def test_a_table_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "pseudonyms.npz"
    TABLE.save(path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="No space left"):
        PseudonymTable(("x",), NAMES[:1], "f").save(path)
    assert PseudonymTable.load(path) == TABLE
    assert [*tmp_path.iterdir()] == [path]


def test_ids_and_pseudonyms_are_looked_up_both_ways():
    assert TABLE.pseudonyms_of([7, unicodedata.normalize("NFD", "Zoë")]) == [NAMES[1], NAMES[2]]
    assert TABLE.ids_of([NAMES[2], NAMES[0]]) == ["Zoë", "b"]
    with pytest.raises(InputError, match="id 'c' is not among the 3 aligned samples"):
        TABLE.pseudonyms_of(["b", "c"])
    with pytest.raises(InputError, match="pseudonym 'b' is not among the 3 aligned samples"):
        TABLE.ids_of(["b"])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"ids": IDS, "pseudonyms": NAMES}, "has no 'fingerprint'"),
        ({"ids": IDS, "pseudonyms": NAMES[:2], "fingerprint": "f"}, "3 ids and 2 pseudonyms"),
        ({"ids": ["b", "b", "c"], "pseudonyms": NAMES, "fingerprint": "f"}, "id 'b' occurs more than once"),
        ({"ids": IDS, "pseudonyms": NAMES[:1] * 3, "fingerprint": "f"}, "pseudonym '0+' occurs more than once"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, arrays, said):
    write_npz(tmp_path / "t.npz", arrays)
    with pytest.raises(DataError, match=said):
        PseudonymTable.load(tmp_path / "t.npz")


def test_a_truncated_table_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    TABLE.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="truncated or damaged"):
        PseudonymTable.load(path)


def test_data_in_another_order_are_the_same_data(monkeypatch):
    monkeypatch.setattr(pseudonyms, "ROWS", 2)
    table = PseudonymTable(tuple(IDS), NAMES, fingerprint(IDS, VIEWS))
    table.require_unchanged(["Zoë", 7, "b"], VIEWS[[2, 1, 0]])


@pytest.mark.parametrize(
    ("ids", "views"),
    [
        (IDS, VIEWS + np.array([0, 1e-12])),
        (IDS, VIEWS.astype(np.float32)),
        (IDS, VIEWS[:, :1]),
        (IDS[:2], VIEWS[:2]),
        (["b", "7", "other"], VIEWS),
        (["7", "b", "Zoë"], VIEWS),
    ],
)
def test_changed_data_are_refused(ids, views):
    TABLE.require_unchanged(IDS, VIEWS)
    with pytest.raises(DataError, match="the data have changed since the alignment"):
        TABLE.require_unchanged(ids, views)


def test_columns_of_a_table_have_a_fingerprint_too():
    columns = {"age": np.array([30, 41, 52]), "town": np.array(["Ulm", None, "Bonn"], dtype=object)}
    table = PseudonymTable(tuple(IDS), NAMES, fingerprint(IDS, columns))
    moved = {name: columns[name][[2, 0, 1]] for name in ("town", "age")}
    table.require_unchanged(["Zoë", "b", "7"], moved)
    for changed in (
        columns | {"town": np.array(["Ulm", None, "Köln"], dtype=object)},
        columns | {"more": columns["age"]},
        {"age": columns["age"]},
    ):
        with pytest.raises(DataError, match="the data have changed since the alignment"):
            table.require_unchanged(IDS, changed)


def test_views_without_a_fingerprint_are_refused():
    with pytest.raises(InputError, match="3 ids and 2 views"):
        fingerprint(IDS, VIEWS[:2])


def test_a_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "keys" / "alignment.key"
    key = kept_secret(path, P256.new_key)
    assert kept_secret(path, P256.new_key) == key
    assert len(key) == 32
    assert mode(path) == 0o600
    path.chmod(0o640)
    with pytest.raises(DataError, match=re.escape(f"others may read it (mode 640): chmod 600 {path}")):
        kept_secret(path, P256.new_key)


def test_a_damaged_secret_is_refused(tmp_path):
    path = tmp_path / "alignment.key"
    path.touch(0o600)
    with pytest.raises(DataError, match="holds 0 bytes and not 32"):
        kept_secret(path, P256.new_key)
    with pytest.raises(DataError, match="cannot be read"):
        kept_secret(tmp_path, P256.new_key)
