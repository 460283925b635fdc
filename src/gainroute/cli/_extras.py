"""Optional dependencies: what to install where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gainroute.errors import MissingExtraError

__all__ = ["needing"]

OPTIONAL = {
    "torch", "sklearn", "onnxruntime", "onnxscript", "matplotlib", "tomli",
    "cryptography", "fastapi", "google", "grpc", "grpc_health", "grpc_reflection", "prometheus_client", "starlette",
    "uvicorn",
}  # fmt: skip


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Raise `MissingExtraError`, which names the remedy, where an optional dependency of `what` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in OPTIONAL:
            raise
        raise MissingExtraError(what, extra) from error
