"""Reading audit trails: a party's files and the table of a decision log, verified line by line."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gainroute.errors import DataError
from gainroute.federation.audit_chain import START, AuditKey, chained, key_path, read_head

__all__ = ["Trail", "audit_body", "entries", "find_sample", "guess_key", "heads", "trail_files", "verify"]

MAGIC = b"SQLite format 3\0"
COLUMNS = ("time", "who", "request_id", "action", "before", "after", "number")
Line = tuple[str, bytes]  # where it is, and its bytes with the line end


@dataclass
class Trail:
    """What was found in an audit trail.

    Attributes
    ----------
    lines, unchained, torn
        All lines; those that older versions wrote without a chain; incomplete ones that the next line acknowledges.
    first, last
        Numbers of the first and last chained line; 0 if there is none.
    head
        ``<number>:<chain>`` of the last line: keep it elsewhere, and later lines cannot be removed unnoticed.
    problem
        The first line that is not as it was written, and why; empty if there is none.
    incomplete
        Whether the last line is incomplete, and not acknowledged yet.
    """

    lines: int = 0
    unchained: int = 0
    torn: int = 0
    first: int = 0
    last: int = 0
    head: str = ""
    problem: str = ""
    incomplete: bool = False

    @property
    def status(self) -> str:
        """``intact``, ``broken``, or ``not chained``, where nothing could be verified."""
        return "broken" if self.problem else "intact" if self.first else "not chained"


# ---- files --------------------------------------------------------------------------------------


def _is_decision_log(path: Path) -> bool:
    """Whether a file is a coordinator's decision log, by its content."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); name files of an audit trail") from error


def trail_files(paths: Sequence[Path]) -> list[Path]:
    """The files of a trail in the order in which they were written; keys and heads are left out."""
    found = [path for path in paths if path.suffix not in (".key", ".head")]
    if not found:
        raise DataError("no file of an audit trail was given; name audit.jsonl and the files it was rotated to")
    return sorted(found, key=lambda path: (_first_number(path), path.name))


def _first_number(path: Path) -> int:
    with _opened(path) as lines:
        return next((found[0] for line in lines if (found := chained(line.rstrip(b"\n")))), 0)


def _opened(path: Path) -> Any:
    _is_decision_log(path)  # raises if it cannot be read
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _lines(paths: Sequence[Path]) -> Iterator[Line]:
    for path in trail_files(paths):
        if _is_decision_log(path):
            yield from _rows(path)
            continue
        with _opened(path) as lines:
            for number, line in enumerate(lines, 1):
                yield f"{path}:{number}", line


def audit_body(row: Mapping[str, Any], *, first: bool) -> str:
    """The text of a row of the audit table that its chain value authenticates; `first` if it starts the chain."""
    start = {"prev": START} if first else {}
    return json.dumps(start | {name: row[name] for name in COLUMNS})


def _rows(path: Path) -> Iterator[Line]:
    """Rows of a decision log's audit table, as lines; those of older versions have no chain."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            connection.row_factory = sqlite3.Row
            first = True
            for row in connection.execute("SELECT * FROM audit ORDER BY number"):
                found = dict(row)
                line = audit_body(found, first=first)
                if found.get("chain"):
                    line = f'{line[:-1]}, "chain": "{found["chain"]}"}}'
                    first = False
                yield f"{path}, audit entry {row['number']}", f"{line}\n".encode()
    except sqlite3.Error as error:
        raise DataError(f"{path}: its audit entries cannot be read ({error}); name a decision log") from error


def guess_key(paths: Sequence[Path]) -> Path:
    """Where the key of some files should be: beside them, named as the file that they were rotated from."""
    first = trail_files(paths)[0]
    keys = [key for key in first.parent.glob("*.key") if first.name.startswith(key.stem)]
    return max(keys, key=lambda key: len(key.name), default=key_path(first))


def heads(paths: Sequence[Path]) -> dict[int, str]:
    """The heads that a party keeps beside its files. Read them before the files, which may be growing."""
    found = {read_head(path) for path in paths}
    return dict(head for head in found if head is not None)


# ---- verifying ----------------------------------------------------------------------------------


def verify(paths: Sequence[Path], key: AuditKey, expected: Mapping[int, str] | None = None) -> Trail:
    """Verify an audit trail up to its first broken line.

    Parameters
    ----------
    paths
        Its files in any order: those of a party, also compressed, or one decision log.
    key
        The key it was written with.
    expected
        Chain values by number that are known from elsewhere: each must be there.
    """
    trail, chain = Trail(), ""
    known = dict(expected or {})
    pending: list[Line] = []  # lines without a chain value, after one that has one
    for where, line in _lines(paths):
        trail.lines += 1
        found = chained(line.rstrip(b"\n"))
        if found is None:
            if chain:
                pending.append((where, line))
            else:
                trail.unchained += 1
            continue
        number, value, body = found
        problem = _gap(trail, chain, pending, number, line)
        if problem is None and key.link(chain or _previous(line), body) != value:
            problem = (where, "it was changed, or written with another key")
        if problem is None and known.pop(number, value) != value:
            problem = (where, "its chain value is not that of the head that was kept")
        if problem is not None:
            trail.problem = f"{problem[0] or where}: {problem[1]}"
            return trail
        trail.torn += len(pending)
        trail.first, trail.last, trail.head = trail.first or number, number, f"{number}:{value}"
        chain, pending = value, []
    latest = max(known, default=0)
    if pending and (len(pending) > 1 or pending[0][1].endswith(b"\n")):
        trail.problem = f"{pending[0][0]}: it is not chained"
    elif latest > trail.last:
        trail.problem = (
            f"after line number {trail.last}: the end is missing, {latest - trail.last:,} lines up to number {latest}, "
            "which is known to have been written"
        )
    trail.incomplete = bool(pending) and not trail.problem
    return trail


def _gap(trail: Trail, chain: str, pending: Sequence[Line], number: int, line: bytes) -> tuple[str, str] | None:
    """Where and why a line does not follow the one before it; None if it does. An empty place is its own."""
    if not chain:
        previous = _previous(line)
        if not previous or (trail.unchained and previous != START):
            return "", f"the lines before number {number} are missing"
        return None
    torn = _field(line, "torn")
    if pending:
        rest = b"\n".join(part.rstrip(b"\n") for _, part in pending)
        if torn != hashlib.sha256(rest).hexdigest():
            return pending[0][0], "it is not chained"
    elif torn:
        return "", "the incomplete line that it acknowledges is missing"
    if number != trail.last + 1 or _field(line, "prev") not in (None, chain):
        return "", f"number {number} follows number {trail.last}: lines are missing, or were moved"
    return None


def _field(line: bytes, name: str) -> Any:
    if f'"{name}": '.encode() not in line:
        return None
    try:
        return json.loads(line).get(name)
    except ValueError:
        return None


def _previous(line: bytes) -> str:
    """The chain value before a line that is the first of its file; empty if it does not say."""
    return str(_field(line, "prev") or "")


# ---- looking up ---------------------------------------------------------------------------------


def entries(paths: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The readable lines of a trail, and where they are."""
    for where, line in _lines(paths):
        try:
            found = json.loads(line)
        except ValueError:
            continue  # incomplete
        if isinstance(found, dict):
            yield where, found


def find_sample(paths: Sequence[Path], key: AuditKey, sample: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that name a sample."""
    for where, entry in entries(paths):
        named = entry.get("samples") or (json.loads(entry["before"]) if entry.get("action") == "delete" else {}).get(
            "sample"
        )
        if key.names(sample, str(named or "")):
            yield where, {name: value for name, value in entry.items() if name != "samples"}
