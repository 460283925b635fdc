"""The same work on many tasks, in several processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from gainroute._util.blas import one_thread
from gainroute.errors import GainrouteError

__all__ = ["available_cores", "in_processes"]

Result = TypeVar("Result")
Work = Callable[[Any, Any, Callable[[], bool]], Result]

_of_worker: dict[str, Any] = {}  # what `_start` left for the tasks of this process


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(work: Work[Result], tasks: Sequence[Any], shared: Any, processes: int) -> Iterator[Result]:
    """Yield what ``work(task, shared, stopped)`` returns for each task, in the order in which they finish.

    `shared` is sent to each process once. `stopped` tells a task that it should give up, because another has failed,
    or the user has interrupted the work. All processes have ended when the generator has; they also end if this process
    is killed. Each uses one thread for linear algebra. With one process or task, the work is done in this process.
    """
    count = min(processes, len(tasks))
    if count <= 1:
        with one_thread():
            for task in tasks:
                yield work(task, shared, lambda: False)
        return
    # A process that is forked from one with threads, such as pyarrow's, may hang: each is started anew.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(count, context, initializer=_start, initargs=(work, shared, stop)) as pool:
        try:
            for done in as_completed([pool.submit(_run, task) for task in tasks]):
                yield done.result()
        except BrokenProcessPool as error:
            raise GainrouteError(
                "a worker process was killed, or ran out of memory; what is finished is kept: run the command again, "
                "with fewer processes if memory is short"
            ) from error
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _start(work: Any, shared: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the first one decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit = one_thread()
    limit.__enter__()  # for as long as the process lives
    _of_worker.update(work=work, shared=shared, stop=stop, limit=limit)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run(task: Any) -> Any:
    return _of_worker["work"](task, _of_worker["shared"], _of_worker["stop"].is_set)
