"""Progress of long commands: a bar with the time left in a terminal, one line per step elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gainroute._util.progress import LineProgress
from gainroute.cli._output import console

__all__ = ["ProgressDisplay", "show_progress"]


class ProgressDisplay(Protocol):
    """A `gainroute._util.progress.Progress` that can also print a line."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Begin a task."""
        ...

    def advance(self, note: str = "") -> None:
        """One step of it is done."""
        ...

    def say(self, text: str) -> None:
        """Print a line."""
        ...


class _OneBar:
    """One bar, for the current task."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def start(self, name: str, total: int, done: int = 0) -> None:
        if self._task is not None:
            self.bars.remove_task(self._task)
        self._task = self.bars.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str = "") -> None:
        self.bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        self.bars.console.print(text, soft_wrap=True)


@contextmanager
def show_progress(*, lines: bool = True) -> Iterator[ProgressDisplay]:
    """Show progress on stderr: a bar in a terminal; elsewhere one line per step, or nothing."""
    if not sys.stderr.isatty():
        yield LineProgress(sys.stderr if lines else io.StringIO())
        return
    bar = _OneBar()
    with bar.bars:
        yield bar
