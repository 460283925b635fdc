"""Files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gainroute._util.files import kept_secret, replacing
from gainroute.errors import DataError, StorageError


def test_a_file_is_replaced_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def stop_in_between() -> None:
        with replacing(path) as out:
            out.write(b"half")
            raise DataError("a bad row")

    with pytest.raises(DataError, match="a bad row"):
        stop_in_between()
    assert path.read_bytes() == b"before"
    with replacing(path) as out:
        out.write(b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(StorageError, match=r"x could not be written \(Is a directory\)"), replacing(tmp_path / "x"):
        pass


def test_a_secret_that_another_process_creates_in_between_is_the_one_of_both(tmp_path):
    path = tmp_path / "keys" / "chain.key"

    def slow() -> bytes:
        assert kept_secret(path, lambda: b"theirs".ljust(32)) == b"theirs".ljust(32)
        return b"ours".ljust(32)

    assert kept_secret(path, slow) == b"theirs".ljust(32)
    assert path.read_bytes() == b"theirs".ljust(32)
    assert [file.name for file in path.parent.iterdir()] == ["chain.key"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_secret_is_created_where_files_have_one_name_only(tmp_path, monkeypatch):
    def link(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", link)
    path = tmp_path / "chain.key"
    assert kept_secret(path, lambda: bytes(32)) == bytes(32)
    assert [file.name for file in tmp_path.iterdir()] == ["chain.key"]
