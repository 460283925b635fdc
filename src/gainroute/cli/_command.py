"""How a command runs: its arguments, its errors and exit codes, its notes, and the extras it needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from gainroute.errors import GainrouteError, GainrouteWarning, MissingExtraError

__all__ = ["Command", "ResumableCommand", "needing", "notes"]

OPTIONAL = {
    "torch", "sklearn", "onnxruntime", "onnxscript", "skl2onnx", "matplotlib", "tomli",
    "cryptography", "fastapi", "google", "grpc", "grpc_health", "grpc_reflection", "prometheus_client", "starlette",
    "uvicorn",
}  # fmt: skip


class Command(TyperCommand):
    """A command of gainroute.

    An option whose metavar ends with `...` takes every value that follows it, up to the next option. User errors become
    one paragraph and exit code 2; anything else is a bug and keeps its traceback.
    """

    interrupted = "interrupted"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat an option before each of its values, which is how options with several values are parsed."""
        lists = [p for p in self.params if getattr(p, "multiple", False) and str(p.metavar).endswith("...")]
        many = {name for parameter in lists for name in parameter.opts}
        spread: list[str] = []
        taking: str | None = None
        for i, arg in enumerate(args):
            if arg == "--":
                spread += args[i:]
                break
            if arg in many:
                taking = arg
                if i + 1 == len(args) or args[i + 1].startswith("-"):
                    spread.append(arg)  # no value follows: the parser reports it
            elif taking is not None and not arg.startswith("-"):
                spread += [taking, arg]
            else:
                taking = None
                spread.append(arg)
        return super().parse_args(ctx, spread)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and map its errors to exit codes."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader has gone (`| head`): the parser exits quietly
        except (GainrouteError, OSError) as error:
            typer.echo(f"gainroute: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo(f"gainroute: {self.interrupted}", err=True)
            raise typer.Exit(130) from None


class ResumableCommand(Command):
    """A command that keeps checkpoints."""

    interrupted = "interrupted; the same command resumes where it stopped"


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Raise `MissingExtraError`, which names the remedy, where an optional dependency of `what` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in OPTIONAL:
            raise
        raise MissingExtraError(what, extra) from error


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
