"""What is fuzzed. Each target reads an input as the software does, and raises only what it promises to raise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.fuzz.targets.artifacts import heads, routers, runs, signatures
from tests.fuzz.targets.base import Target
from tests.fuzz.targets.grpc_door import grpc
from tests.fuzz.targets.messages import messages
from tests.fuzz.targets.service import http, requests
from tests.fuzz.targets.tables import npz, parquet, records, settings

__all__ = ["TARGETS", "Target"]

TARGETS: dict[str, Callable[[Path], AbstractContextManager[Target]]] = {
    made.__name__: made
    for made in (http, requests, grpc, messages, routers, heads, runs, settings, npz, parquet, records, signatures)
}
