"""Output of commands: results on stdout, notes and errors on stderr, and exit codes."""

from __future__ import annotations

import functools
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from gainroute._util.files import plain
from gainroute.errors import GainrouteError, GainrouteWarning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["budget_text", "console", "guarded", "notes", "percent", "print_json", "resumable", "table"]

P = ParamSpec("P")
PIPED_WIDTH = 160  # if the output is not a terminal


def guarded(command: Callable[P, None], interrupted: str = "interrupted") -> Callable[P, None]:
    """Turn user errors into one paragraph and exit code 2; anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader has gone (`| head`): the parser exits quietly
        except (GainrouteError, OSError) as error:
            typer.echo(f"gainroute: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo(f"gainroute: {interrupted}", err=True)
            raise typer.Exit(130) from None

    return run


def resumable(command: Callable[P, None]) -> Callable[P, None]:
    """`guarded`, for a command that keeps checkpoints."""
    return guarded(command, "interrupted; the same command resumes where it stopped")


@contextmanager
def notes() -> Iterator[list[str]]:
    """Print each GainrouteWarning once, on stderr, and collect them for `--json`."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", GainrouteWarning)
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, GainrouteWarning):
                show(message, category, *rest, **more)
            elif str(message) not in said:
                said.append(str(message))
                typer.echo(f"note: {message}", err=True)

        warnings.showwarning = note
        yield said


def console(*, stderr: bool = False) -> Console:
    """Build a console; piped output is not limited to 80 columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH, highlight=False, markup=False)


def table(*columns: str) -> Table:
    """Build a table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return made


def percent(share: float) -> str:
    """Format a result as a percentage with one decimal; a dash if it is NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def budget_text(share: float) -> str:
    """Format a budget or rate as briefly as possible: 5 %, 12.5 %."""
    return f"{round(100 * share, 1):g} %"


def print_json(result: dict[str, Any]) -> None:
    """Print standard JSON: a number that is not finite becomes null, or the text "inf"."""
    typer.echo(json.dumps(plain(result), indent=2, ensure_ascii=False, allow_nan=False))
