"""Progress of long work: shown as lines, as a bar, or not at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

__all__ = ["BarProgress", "LineProgress", "Progress", "ReportedProgress", "show_progress"]


class Progress:
    """Where long work reports its progress: one task at a time, started by name and advanced in equal steps.

    This one shows nothing.
    """

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start the task `name` of `total` steps, `done` of which an earlier run has finished."""

    def advance(self, note: str = "") -> None:
        """Report that one more step is done, with a short note such as the loss."""

    def say(self, text: str) -> None:
        """Report a line of text."""


class LineProgress(Progress):
    """One line per step, for logs, with the seconds since the start."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._began = stream, time.monotonic()
        self._name, self._total, self._done = "", 0, 0

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Remember the task for the lines of its steps."""
        self._name, self._total, self._done = name, total, done

    def advance(self, note: str = "") -> None:
        """Write the step and the note."""
        self._done += 1
        self.say(f"{self._name} {self._done}/{self._total} {note}")

    def say(self, text: str) -> None:
        """Write the text."""
        self._stream.write(f"{time.monotonic() - self._began:8.0f} s  {text}\n")
        self._stream.flush()


class BarProgress(Progress):
    """A bar with the remaining time, for a terminal. Only the current task is shown: a seed has dozens of them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True, highlight=False, markup=False),
            transient=True,
        )
        self._task: Any = None

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Replace the bar by that of the new task."""
        if self._task is not None:
            self.bars.remove_task(self._task)
        self._task = self.bars.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str = "") -> None:
        """Move the bar by one step."""
        self.bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        """Print the text above the bar."""
        self.bars.console.print(text, soft_wrap=True)


class ReportedProgress(Progress):
    """Progress that is passed on: `report` gets stage, total, steps done and the note, at the start and per step.

    Parameters
    ----------
    report
        Receives the state, and may return a text that is shown with the note.
    shown
        Where progress is also shown; by default nowhere.
    """

    def __init__(self, report: Callable[[Mapping[str, Any]], str | None], shown: Progress | None = None) -> None:
        self._report, self._shown = report, shown or Progress()
        self._state: dict[str, Any] = {}

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Report the task."""
        self._state = {"stage": name, "total": total, "done": done, "note": ""}
        self._shown.start(name, total, done)
        self._report(self._state)

    def advance(self, note: str = "") -> None:
        """Report the step."""
        self._state = {**self._state, "done": self._state["done"] + 1, "note": note}
        more = self._report(self._state)
        self._shown.advance("; ".join(filter(None, [note, more])))

    def say(self, text: str) -> None:
        """Show the text."""
        self._shown.say(text)


@contextmanager
def show_progress(*, lines: bool = True) -> Iterator[Progress]:
    """Show progress on stderr: a bar in a terminal; elsewhere one line per step, or nothing."""
    if not sys.stderr.isatty():
        yield LineProgress(sys.stderr) if lines else Progress()
        return
    bar = BarProgress()
    with bar.bars:
        yield bar
