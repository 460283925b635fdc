"""The input files of a job: a folder, a pattern, or a list of files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gainroute.errors import DataError

__all__ = ["InputFiles", "is_job"]

SUFFIXES = (".parquet", ".pq")
WILD = "*?["


def is_job(given: Sequence[Path], out: Path) -> bool:
    """Whether DATA and `--out` ask for many files: a folder, a pattern or several files, or a folder to write to."""
    return len(given) > 1 or out.is_dir() or any(path.is_dir() or _is_pattern(path) for path in given)


@dataclass(frozen=True)
class InputFiles:
    """Files in the order of their names, and the folder that their names in the output are relative to."""

    root: Path
    files: tuple[Path, ...]
    all_below: bool = False  # whether every Parquet file below `root` is an input

    @classmethod
    def find(cls, given: Sequence[Path]) -> InputFiles:
        """Find the files of folders (`.parquet` and `.pq` at any depth), patterns and paths."""
        found = sorted({file for path in given for file in _found(path)}, key=_absolute)
        if len(given) == 1 and given[0].is_dir():
            return cls(given[0], tuple(found), all_below=True)
        if len(given) == 1 and _is_pattern(given[0]):
            parts = given[0].parts
            fixed = next(i for i, part in enumerate(parts) if any(letter in part for letter in WILD))
            return cls(Path(*parts[:fixed]), tuple(found))
        return cls(Path(os.path.commonpath([_absolute(path.parent) for path in found])), tuple(found))

    def relative(self, path: Path) -> Path:
        """The name of a file below `root`."""
        return _absolute(path).relative_to(_absolute(self.root))

    def check_output(self, out: Path) -> None:
        """Refuse a folder whose files would be read as input, or would replace the input."""
        folder = out.resolve()
        for path in self.files:
            if path.resolve().is_relative_to(folder):
                raise DataError(
                    f"the input {path} lies in the folder of the output, {out}; choose another folder with --out"
                )
        if self.all_below and folder.is_relative_to(self.root.resolve()):
            raise DataError(
                f"the folder of the output, {out}, lies in that of the input, {self.root}: the next run would read the "
                "output as input; choose another folder with --out"
            )


def _found(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix in SUFFIXES and not _is_hidden(file.relative_to(path))]
        if not files:
            raise DataError(
                f"the folder {path} holds no .parquet file; name another, or a pattern such as '{path}/*.pq'"
            )
        return files
    if not path.exists() and _is_pattern(path):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = [Path(name) for name in matches if Path(name).is_file()]
        if not files:
            raise DataError(f"no file matches {path}; check the pattern, and quote it against the shell")
        return files
    return [path]


def _is_pattern(path: Path) -> bool:
    return not path.exists() and any(letter in str(path) for letter in WILD)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (without "..", and links are not followed)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
