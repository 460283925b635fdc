"""Where many tasks of one job run: in processes of this machine, or on a Ray cluster inside one trust domain.

Ray moves code and data between machines as pickles, and anyone who reaches its ports runs code on all of them. Inside
one organisation, on a closed network, that is how clusters work; between organisations it must never be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gainroute._util.blas import one_thread
from gainroute._util.processes import Work, available_cores, in_processes
from gainroute.errors import GainrouteError, MissingExtraError, SettingError

__all__ = ["ENGINES", "Engine", "check_engine", "choose_engine", "connected_ray", "in_ray"]

Result = TypeVar("Result")
ENGINES = ("local", "ray")
LOOPBACK = "127.0.0.1"
Engine = Callable[[Work[Any], Sequence[Any], Any], Iterator[Any]]
"""Yields what ``work(task, shared, stopped)`` returns for each task, in the order in which they finish."""


def check_engine(name: str) -> str:
    """Return the name, or raise SettingError if no engine has it."""
    if name not in ENGINES:
        raise SettingError(f"engine is {name!r}; allowed are {', '.join(map(repr, ENGINES))}")
    return name


def choose_engine(name: str, processes: int | None = None) -> Engine:
    """The engine of that name; the local one uses that many `processes`, by default one per core."""
    if check_engine(name) == "ray":
        return in_ray
    count = processes or available_cores()
    return lambda work, tasks, shared: in_processes(work, tasks, shared, count)


class connected_ray:  # noqa: N801 (used like a function)
    """Connect to the cluster that RAY_ADDRESS names, or start one on this machine, for the length of the block."""

    def __enter__(self) -> Any:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("the engine ray", "ray") from None
        self._started = not ray.is_initialized()
        if self._started:
            # Without an address, Ray would also join a cluster that some other program has left on this machine.
            address = os.environ.get("RAY_ADDRESS", "local")
            # A cluster of this machine alone stays on its loopback address.
            alone = {"_node_ip_address": LOOPBACK} if address == "local" else {}
            try:
                ray.init(address, log_to_driver=False, configure_logging=False, **alone)
            except (ConnectionError, ValueError) as error:
                raise GainrouteError(
                    f"no Ray cluster answers at {address!r} ({error}): start one with `ray start`, or unset "
                    "RAY_ADDRESS to use this machine alone"
                ) from error
        return ray

    def __exit__(self, *_error: object) -> None:
        import ray

        if self._started:
            ray.shutdown()


def in_ray(work: Work[Result], tasks: Sequence[Any], shared: Any) -> Iterator[Result]:
    """As `in_processes`, with a Ray task per task: each needs one core of the cluster.

    Every machine of the cluster needs gainroute, and the files that tasks read and write under the same paths. A task
    whose machine is lost runs again elsewhere.
    """
    with connected_ray() as ray:
        held, run = ray.put((work, shared)), ray.remote(num_cpus=1)(_run)
        waiting = [run.remote(task, held) for task in tasks]
        try:
            while waiting:
                [done], waiting = ray.wait(waiting, num_returns=1)
                yield _result(ray, done)
        finally:
            for left in waiting:
                ray.cancel(left, force=True)


def _run(task: Any, held: tuple[Work[Any], Any]) -> Any:
    work, shared = held
    with one_thread():
        return work(task, shared, lambda: False)


def _result(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise GainrouteError(
            f"a task on the Ray cluster was lost ({error}); what is finished is kept: run the command again"
        ) from error
