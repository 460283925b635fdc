"""The clients of the soak: a bounded rate of requests, retried until they are answered. Every answer is kept."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.soak.federation import HOST, INFER

__all__ = ["Answered", "Load", "Refused"]

CLIENTS = 4
PAUSE_SECONDS = 0.2  # between the requests of a client: about twenty requests per second in total
MOST_IDS = 16
RETRY_SECONDS = 0.25
TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 90.0  # for one request, retries included; a restart on a busy machine takes a while


@dataclass(frozen=True, eq=False)
class Answered:
    """One answered request: its samples and the outputs.

    It was sent first at `first`, for the last of `tries` times at `began`, and answered at `ended` (monotonic seconds).
    """

    first: float
    tries: int
    began: float
    ended: float
    ids: Sequence[str]
    label: Sequence[int]
    escalated: Sequence[bool]
    score: Sequence[float]
    route: Sequence[str]
    decision_id: Sequence[str]
    probabilities: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Refused:
    """A request that was refused: when, and by which status; ``connection`` if the coordinator was not reached."""

    at: float
    why: str


@dataclass(eq=False)
class Load:
    """Clients in threads.

    Attributes
    ----------
    port
        Port of the coordinator.
    ids
        Samples to request.
    tokens
        Tokens of the clients, which take turns.
    answered
        Every answer, in no order.
    refused
        Refused requests; each was sent again.
    wrong
        Unexpected events: other statuses, invalid replies, requests given up.
    """

    port: int
    ids: Sequence[str]
    tokens: Sequence[str]
    answered: list[Answered] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:  # noqa: PYI034 (Self is newer than Python 3.10)
        self._threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS + TIMEOUT_SECONDS)

    def _client(self, number: int) -> None:
        rng = random.Random(number)  # noqa: S311 (which samples are asked for is no secret)
        headers = {"Authorization": f"Bearer {self.tokens[number % len(self.tokens)]}"}
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_SECONDS)
        try:
            while not self._stopping.is_set():
                self._until_answered(connection, headers, rng.sample(self.ids, rng.randint(1, MOST_IDS)))
                self._stopping.wait(PAUSE_SECONDS * rng.uniform(0.5, 1.5))
        except Exception as error:  # noqa: BLE001 (a client that has ended must be noticed)
            self._note_wrong(f"client {number} ended: {error!r}")
        finally:
            connection.close()

    def _until_answered(self, connection: http.client.HTTPConnection, headers: dict[str, str], ids: list[str]) -> None:
        """Send a request until it is answered. A request in flight at the end is still answered."""
        first = time.monotonic()
        for tries in itertools.count(1):
            wait = self._ask(connection, headers, ids, first, tries)
            if wait is None:
                return
            if time.monotonic() + wait > first + PATIENCE_SECONDS:
                self._note_wrong(f"a request was refused for {PATIENCE_SECONDS:g} s and given up")
                return
            time.sleep(wait)

    def _ask(
        self, connection: http.client.HTTPConnection, headers: dict[str, str], ids: list[str], first: float, tries: int
    ) -> float | None:
        """Send a request once; return the seconds to wait before the next attempt, None if none is needed."""
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
        began = time.monotonic()
        try:
            connection.request("POST", INFER, json.dumps(body).encode(), headers)
            reply = connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._note_refused("connection")
            return RETRY_SECONDS
        ended = time.monotonic()
        if reply.status == 503:
            self._note_refused("503")
            return max(RETRY_SECONDS, float(reply.headers.get("Retry-After", 0)))
        if reply.status != 200:
            self._note_wrong(f"status {reply.status}: {data[:200].decode(errors='replace')}")
            return None
        answer = Answered(first, tries, began, ended, ids, **_read(data, ids))
        with self._lock:
            self.answered.append(answer)
        return None

    def _note_refused(self, why: str) -> None:
        with self._lock:
            self.refused.append(Refused(time.monotonic(), why))

    def _note_wrong(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)


def _read(data: bytes, ids: list[str]) -> dict[str, Any]:
    outputs: dict[str, Any] = {output["name"]: output["data"] for output in json.loads(data)["outputs"]}
    probabilities = np.array(outputs.pop("probabilities"), np.float32).reshape(len(ids), -1)
    del outputs["class"]  # the label by name
    short = [name for name, values in outputs.items() if len(values) != len(ids)]
    if short:
        raise ValueError(f"{len(ids)} samples were asked for, and {short[0]} has {len(outputs[short[0]])} values")
    return outputs | {"probabilities": probabilities}
