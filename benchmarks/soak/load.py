"""The clients of the soak: a bounded rate of requests, retried until they are answered. Every answer is kept."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.soak.federation import HOST, MODEL_NAME

__all__ = ["Answered", "Load"]

CLIENTS = 4
PAUSE_SECONDS = 0.2  # between the requests of a client: about twenty requests per second in total
MOST_IDS = 16
RETRY_SECONDS = 0.25
TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 90.0  # for one request, retries included; a restart on a busy machine takes a while


@dataclass(frozen=True, eq=False)
class Answered:
    """One answered request: its samples, the outputs, and when it was sent and answered (monotonic seconds)."""

    began: float
    ended: float
    ids: Sequence[str]
    label: Sequence[int]
    escalated: Sequence[bool]
    score: Sequence[float]
    route: Sequence[str]
    decision_id: Sequence[str]
    probabilities: npt.NDArray[np.float32]


@dataclass(eq=False)
class Load:
    """Clients in threads.

    Attributes
    ----------
    port
        Port of the coordinator.
    ids
        Samples to request.
    answered
        Every answer, in no order.
    refused
        Number of refused requests by status; ``connection`` if the coordinator could not be reached.
    wrong
        Unexpected events: other statuses, invalid replies, requests given up.
    """

    port: int
    ids: Sequence[str]
    answered: list[Answered] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    retried: int = 0
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
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_SECONDS)
        try:
            while not self._stopping.is_set():
                self._until_answered(connection, rng.sample(self.ids, rng.randint(1, MOST_IDS)))
                self._stopping.wait(PAUSE_SECONDS * rng.uniform(0.5, 1.5))
        except Exception as error:  # noqa: BLE001 (a client that has ended must be noticed)
            self._note_wrong(f"client {number} ended: {error!r}")
        finally:
            connection.close()

    def _until_answered(self, connection: http.client.HTTPConnection, ids: list[str]) -> None:
        """Send a request until it is answered. A request in flight at the end is still answered."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            wait = self._ask(connection, ids)
            if wait is None:
                return
            if time.monotonic() + wait > give_up:
                self._note_wrong(f"a request was refused for {PATIENCE_SECONDS:g} s and given up")
                return
            with self._lock:
                self.retried += 1
            time.sleep(wait)

    def _ask(self, connection: http.client.HTTPConnection, ids: list[str]) -> float | None:
        """Send a request once; return the seconds to wait before the next attempt, None if none is needed."""
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
        began = time.monotonic()
        try:
            connection.request("POST", f"/v2/models/{MODEL_NAME}/infer", json.dumps(body).encode())
            reply = connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            with self._lock:
                self.refused["connection"] += 1
            return RETRY_SECONDS
        ended = time.monotonic()
        if reply.status == 503:
            with self._lock:
                self.refused["503"] += 1
            return max(RETRY_SECONDS, float(reply.headers.get("Retry-After", 0)))
        if reply.status != 200:
            self._note_wrong(f"status {reply.status}: {data[:200].decode(errors='replace')}")
            return None
        answer = _read(data, ids, began, ended)
        with self._lock:
            self.answered.append(answer)
        return None

    def _note_wrong(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)


def _read(data: bytes, ids: list[str], began: float, ended: float) -> Answered:
    outputs: dict[str, Any] = {output["name"]: output["data"] for output in json.loads(data)["outputs"]}
    probabilities = np.array(outputs.pop("probabilities"), np.float32).reshape(len(ids), -1)
    del outputs["class"]  # the label by name
    short = [name for name, values in outputs.items() if len(values) != len(ids)]
    if short:
        raise ValueError(f"{len(ids)} samples were asked for, and {short[0]} has {len(outputs[short[0]])} values")
    return Answered(began, ended, ids, probabilities=probabilities, **outputs)
