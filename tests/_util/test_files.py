"""Files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gainroute._util.files import replacing
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
