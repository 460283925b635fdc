"""How long work reports itself: a tiny protocol, a silent implementation and one that draws bars."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LineProgress", "NoProgress", "Progress", "RichProgress"]


class Progress(Protocol):
    """What long work tells of itself: one task at a time, begun by name and advanced in equal steps."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Begin the task `name` of `total` steps, `done` of which an earlier run has left finished."""
        ...

    def advance(self, note: str = "") -> None:
        """One step is done; `note` is a short word on it, such as the loss."""
        ...


class NoProgress:
    """Says nothing."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Ignore the task."""

    def advance(self, note: str = "") -> None:
        """Ignore the step."""


class LineProgress:
    """One line a step, for logs.

    Parameters
    ----------
    stream
        Where lines are written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._began = stream, time.monotonic()
        self._name, self._total, self._done = "", 0, 0

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Remember the task; its steps name it."""
        self._name, self._total, self._done = name, total, done

    def advance(self, note: str = "") -> None:
        """Write where the task stands."""
        self._done += 1
        self.say(f"{self._name} {self._done}/{self._total} {note}")

    def say(self, text: str) -> None:
        """Write a line, with the seconds since the beginning before it."""
        self._stream.write(f"{time.monotonic() - self._began:8.0f} s  {text}\n")
        self._stream.flush()


class RichProgress:
    """Bars with time left, in a terminal; a context manager.

    Parameters
    ----------
    console
        Where to draw; the standard error stream unless given.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console or Console(stderr=True),
        )
        self._task = self._bars.add_task("", total=0, note="", visible=False)

    def __enter__(self) -> RichProgress:  # noqa: PYI034 (Self is of Python 3.11)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Begin a bar below the former ones."""
        self._task = self._bars.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str = "") -> None:
        """Move the newest bar by one step."""
        self._bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
