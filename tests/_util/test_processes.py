"""Work in several processes: what fails, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gainroute._util.processes import available_cores, in_processes
from gainroute.errors import DataError, GainrouteError


def add(task: int, shared: int, stopped: Callable[[], bool]) -> tuple[int, int]:
    assert not stopped()
    return task + shared, os.getpid()


def fail_or_wait(task: int, shared: Path, stopped: Callable[[], bool]) -> None:
    """One task fails once the other works; that one works until it is told to stop."""
    if task == 0:
        while not (shared / "works").exists():
            time.sleep(0.01)
        raise DataError("row 7 is bad")
    (shared / "works").touch()
    while not stopped():
        time.sleep(0.01)
    (shared / "stopped").touch()


def die(task: int, shared: Any, stopped: Callable[[], bool]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("processes", [1, 3])
def test_every_task_is_done_once(processes: int) -> None:
    done = list(in_processes(add, range(5), 100, processes))
    assert sorted(number for number, _ in done) == [100, 101, 102, 103, 104]
    assert (os.getpid() in {process for _, process in done}) == (processes == 1)
    assert available_cores() >= 1


def test_the_first_failure_stops_the_others(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 7 is bad"):
        list(in_processes(fail_or_wait, range(2), tmp_path, 2))
    assert (tmp_path / "stopped").exists()


def test_a_killed_process_is_reported_with_the_remedy() -> None:
    with pytest.raises(GainrouteError, match=r"a worker process was killed, or ran out of memory; .* fewer processes"):
        list(in_processes(die, range(2), None, 2))


def report_and_wait(task: int, shared: Any, stopped: Callable[[], bool]) -> None:
    print(os.getpid(), flush=True)
    signal.pause()


def test_workers_end_with_the_process_that_started_them() -> None:
    code = "import test_processes as t\nlist(t.in_processes(t.report_and_wait, [0, 1], None, 2))"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    starter = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert starter.stdout is not None
    assert all(int(starter.stdout.readline()) for _ in range(2))
    os.kill(starter.pid, signal.SIGKILL)
    # The workers hold the other end of this pipe: it ends when they have ended.
    assert starter.stdout.read() == ""
    starter.stdout.close()
    starter.wait()
