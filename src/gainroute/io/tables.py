"""The reader of `.npz` and Parquet files, for everything that is stored by name: posteriors, views, answers, labels.

Nothing in a file can run code: `.npz` files are read with `allow_pickle=False`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_bytes, write_npz
from gainroute.errors import DataError, GainrouteError, MissingExtraError
from gainroute.routing.types import BoolArray, FloatArray

__all__ = [
    "ColumnTable", "PathLike", "arrow_table", "file_format", "naming_parquet_damage", "read_table", "write_parquet",
    "write_plain_npz",
]  # fmt: skip

PathLike = str | os.PathLike[str]
LAST_CHARACTER = 0x10FFFF  # of Unicode


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """Arrays by name, as a file holds them. Every method names the file in its errors."""

    source: str  # the file
    format: str  # "npz" or "parquet"
    columns: Mapping[str, Any]  # numpy arrays of any shape (`.npz`), or pyarrow columns of one length (Parquet)
    names: tuple[str, ...]  # everything the file holds, read or not
    metadata: Mapping[str, str] = field(default_factory=dict)  # texts by name, next to the columns of a Parquet file
    first_row: int = 0  # of the file, for messages: a piece of a table has its rows from here on

    @classmethod
    def from_arrow(cls, table: Any, source: str, first_row: int = 0) -> ColumnTable:
        """The columns of a pyarrow table; `source` is the file or whatever else messages should name."""
        metadata = {key.decode(): text.decode(errors="replace") for key, text in (table.schema.metadata or {}).items()}
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return cls(source, "parquet", columns, tuple(table.column_names), metadata, first_row)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def require(self, *names: str, remedy: str) -> None:
        """Raise DataError unless the file holds these names."""
        missing = [name for name in names if name not in self.columns]
        if missing:
            what = "column " if self.format == "parquet" else ""
            held = ", ".join(self.names) or "nothing"
            raise DataError(f"{self.source} has no {what}{missing[0]!r}; it has {held}: {remedy}")

    def type_name(self, name: str) -> str:
        """The type of a column, for messages."""
        column = self.columns[name]
        return str(column.dtype if isinstance(column, np.ndarray) else column.type)

    def is_list(self, name: str) -> bool:
        """Whether every row of a column is a list."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column.ndim == 2
        import pyarrow.types as kinds

        kind = column.type
        return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))

    def is_number(self, name: str) -> bool:
        """Whether every row of a column is one number, or null."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column.ndim == 1 and column.dtype.kind in "fiu"
        import pyarrow.types as kinds

        tests = (kinds.is_floating, kinds.is_integer, kinds.is_decimal, kinds.is_null)
        return any(test(column.type) for test in tests)

    def objects(self, name: str) -> list[Any]:
        """A column as Python objects, None for null."""
        column = self.columns[name]
        return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())

    def numbers(self, name: str) -> FloatArray:
        """A column of numbers as float64, NaN for null."""
        column = self.columns[name]
        return np.asarray(column if isinstance(column, np.ndarray) else column.to_numpy(), dtype=np.float64)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A column as an array: times become integers; a column with nulls becomes objects with None."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column
        import pyarrow as pa

        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pa.types.is_temporal(kind):
            column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise DataError(
                f"{self.source}: column {name!r} is of type {kind}: numbers, texts, booleans and times are read"
            )
        # Through Python objects: a gap stays None, and an integer column with gaps does not become floats.
        if column.null_count:
            return np.array([*column.to_pylist(), None], dtype=object)[:-1]
        return np.asarray(column.to_numpy(zero_copy_only=False))

    def matrix(self, name: str) -> tuple[npt.NDArray[Any], BoolArray]:
        """A column of lists as (N, K), and which rows are present, (N,); rows of NaN for null.

        K is 0 where every row is null.
        """
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column, np.ones(len(column), dtype=bool)
        import pyarrow.compute as pc

        if not self.is_list(name):
            raise DataError(f"{self.source}: {name} is of type {column.type}; one list of numbers per row is needed")
        array = column.combine_chunks()
        if hasattr(array, "chunks"):  # an old pyarrow returns a chunked array of one chunk
            array = array.chunk(0)
        present = array.is_valid().to_numpy(zero_copy_only=False)
        kept = array.drop_null() if array.null_count else array
        lengths = pc.list_value_length(kept).to_numpy(zero_copy_only=False)
        size = int(lengths[0]) if len(kept) else max(getattr(array.type, "list_size", 0), 0)
        if (lengths != size).any():
            found = ", ".join(map(str, np.unique(lengths)[:5]))
            row = self.first_row + int(np.flatnonzero(present)[np.flatnonzero(lengths != size)[0]])
            raise DataError(
                f"{self.source}: the lists of {name} have {found} entries, row {row} is the first to differ; all need "
                "the same number"
            )
        values = kept.flatten().to_numpy(zero_copy_only=False)
        if len(kept) and values.dtype.kind not in "fiu":
            kind = kept.type.value_type
            raise DataError(f"{self.source}: {name} holds lists of {kind}; one list of numbers per row is needed")
        dtype = values.dtype if values.dtype.kind == "f" else np.float64
        if len(kept) == len(array):
            return values.astype(dtype).reshape(len(kept), size), present
        filled = np.full((len(present), size), np.nan, dtype=dtype)
        filled[present] = values.reshape(len(kept), size)
        return filled, present

    def take(self, rows: Sequence[int]) -> ColumnTable:
        """The same table with these rows of every column."""
        taken = {name: c[rows] if isinstance(c, np.ndarray) else c.take(rows) for name, c in self.columns.items()}
        return replace(self, columns=taken)


def file_format(path: PathLike) -> str:
    """Return "npz" or "parquet", by the first bytes of a file."""
    file = Path(path)
    if file.is_dir():
        raise DataError(f"{file} is a folder; name an .npz or Parquet file")
    try:
        with file.open("rb") as opened:
            start = opened.read(4)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; name an .npz or Parquet file") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); check the file and its permissions") from error
    if start == b"PAR1":
        return "parquet"
    if start.startswith(b"PK"):
        return "npz"
    raise DataError(
        f"{file} is neither .npz nor Parquet (it starts with {start!r}); write it with numpy.savez, or as Parquet"
    )


def read_table(path: PathLike, only: Collection[str] | None = None) -> ColumnTable:
    """Read an `.npz` or Parquet file, by its first bytes, into memory; `only` are the names to read, by default all."""
    return (_read_npz if file_format(path) == "npz" else _read_parquet)(path, only)


def _read_npz(path: PathLike, only: Collection[str] | None) -> ColumnTable:
    try:
        # numpy leaves a file open that it cannot read, so it is opened and closed here.
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            wanted = [name for name in file.files if only is None or name in only]
            arrays = {name: _read_array(file, name, path) for name in wanted}
            return ColumnTable(str(path), "npz", arrays, tuple(file.files))
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds, depending on where the damage is
        raise DataError(
            f"{path} is not an .npz file, or truncated or damaged ({error}); write it again with numpy.savez"
        ) from error


def _read_array(file: Mapping[str, Any], name: str, path: PathLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(file[name])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path}: {name} is an object array, and reading one could run code; only arrays of numbers or texts are "
            f"read: store it as one, such as np.asarray({name}, dtype=str), or with −1 in place of None"
        ) from None
    if array.dtype.kind == "U" and array.nbytes:
        codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max() > LAST_CHARACTER:
            raise DataError(f"{path}: {name} holds characters that do not exist; the file is damaged: write it again")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _read_parquet(path: PathLike, only: Collection[str] | None) -> ColumnTable:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    with naming_parquet_damage(path), pq.ParquetFile(path) as file:
        names = tuple(file.schema_arrow.names)
        table = file.read(None if only is None else [name for name in names if name in only])
    return replace(ColumnTable.from_arrow(table, str(path)), names=names)


@contextmanager
def naming_parquet_damage(path: PathLike) -> Iterator[None]:
    """Raise DataError, which names the file, for whatever pyarrow raises in this block while it reads the file."""
    try:
        yield
    except GainrouteError:
        raise
    except Exception as error:  # ArrowException, OSError, and whatever damage leads to
        if "lists to be of size" in str(error):  # pyarrow before 26, on null in a column of fixed-size lists
            raise DataError(
                f"{path}: this pyarrow cannot read null in a column of fixed-size lists ({error}); upgrade to "
                "pyarrow ≥ 26, or write a plain list column"
            ) from error
        raise DataError(f"{path} is not a Parquet file, or truncated ({error}); write it again") from error


def write_parquet(path: PathLike, columns: Mapping[str, Any]) -> None:
    """Write arrays as one Parquet table, as `arrow_table` builds it."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet", "parquet") from None
    out = io.BytesIO()
    pq.write_table(arrow_table(columns), out)
    write_bytes(path, out.getvalue())


def write_plain_npz(arrays: Mapping[str, Any], path: PathLike) -> None:
    """Write arrays; those of objects (labels and None) become texts or integers, read without running code."""
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    for name, value in plain.items():
        if value.dtype == object:
            numbers = all(v is None or (isinstance(v, int) and v >= 0) for v in value.tolist())
            texts = ["" if v is None else str(v) for v in value.tolist()]
            plain[name] = np.array([int(text or -1) for text in texts] if numbers else texts)
    write_npz(path, plain)


def arrow_table(columns: Mapping[str, Any]) -> Any:
    """Build a pyarrow table: (N, K) becomes a list column, a single number is repeated in every row.

    Numbers become 64-bit numbers. Columns of pyarrow stay as they are.
    """
    import pyarrow as pa

    own = (pa.Array, pa.ChunkedArray)
    n = max(len(v) for v in columns.values() if isinstance(v, own) or np.ndim(v))
    table = {}
    for name, value in columns.items():
        if isinstance(value, own):
            table[name] = value
            continue
        array = np.full(n, value) if np.ndim(value) == 0 else np.asarray(value)
        if array.ndim == 2:
            table[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        else:
            wide: Any = {"b": np.bool_, "i": np.int64, "f": np.float64}.get(array.dtype.kind)
            table[name] = pa.array(array.tolist() if wide is None else array.astype(wide, copy=False))
    return pa.table(table)
