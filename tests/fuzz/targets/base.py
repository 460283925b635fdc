"""What a target is, and how one reads files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gainroute.errors import GainrouteError
from tests.fuzz.mutate import Mutate

ROOT = Path(__file__).parents[3]


class ServerError(Exception):
    """The service answered with status 500, or with something that is not HTTP."""


@dataclass(frozen=True)
class Target:
    """How to make, change and try inputs. `run` returns what happened, in one word; other errors are crashes."""

    seeds: list[bytes]
    mutate: Mutate
    run: Callable[[bytes], str]


def read_by(function: Callable[[Path], Any], suffix: str, folder: Path) -> Callable[[bytes], str]:
    """Read an input from a file; an error that gainroute promises is a refusal."""
    path = folder / f"input{suffix}"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                function(path)
            except GainrouteError:
                return "refused"
        return "read"

    return run
