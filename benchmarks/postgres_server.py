"""A PostgreSQL server of one's own, on a socket in its own folder: no port is taken. Also used by tests.

Needs `initdb` and `postgres` on the path, or in /usr/lib/postgresql/*/bin.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

__all__ = ["PostgresServer", "postgres_server", "program"]

START_SECONDS, STOP_SECONDS = 90.0, 60.0


def program(name: str) -> str | None:
    """The path of a program of PostgreSQL; None if it is not installed."""
    return shutil.which(name) or next((str(p) for p in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)


class PostgresServer:
    """A server that can be stopped and started; `url` is in SQLAlchemy's notation.

    Parameters
    ----------
    home
        A folder of its own.
    settings
        Of its configuration, such as "fsync=off".
    """

    def __init__(self, home: Path, *settings: str) -> None:
        self._home, self._settings = home, settings
        user = "postgres" if getpass.getuser() == "root" else getpass.getuser()  # it refuses to run as root
        self._how: dict[str, Any] = {"user": user, "cwd": "/"} if getpass.getuser() == "root" else {}
        if self._how:
            shutil.chown(home, user)
        if program("initdb") is None or program("postgres") is None:
            raise RuntimeError("initdb and postgres are needed: apt-get install postgresql")
        self._run("initdb", "-A", "trust", "-U", "party", "-E", "UTF8", "--no-sync").wait(START_SECONDS)
        self.url = self.database("postgres")

    def _run(self, name: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [str(program(name)), "-D", self._home / "data", *arguments]
        return subprocess.Popen(command, **quiet, **self._how)  # noqa: S603 (our own command)

    def database(self, name: str) -> str:
        """The URL of a database."""
        return f"postgresql+psycopg://party@/{name}?host={self._home}"

    def create(self, name: str) -> str:
        """Create a database, and return its URL."""
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.database(name)

    def connect(self, url: str = "") -> psycopg.Connection[Any]:
        """A connection that commits every statement."""
        return psycopg.connect((url or self.url).replace("+psycopg", ""), autocommit=True)

    def start(self) -> None:
        """Start, and wait until connections are accepted."""
        more = [part for setting in ("listen_addresses=", *self._settings) for part in ("-c", setting)]
        self._process = self._run("postgres", "-k", self._home, *more)
        deadline = time.monotonic() + START_SECONDS
        while not self._up():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the PostgreSQL server did not start")
            time.sleep(0.01)

    def _up(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def cpu(self) -> float:
        """CPU seconds that the server and its sessions have used, those that have ended included."""
        own, ticks = str(self._process.pid), 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                fields = file.read_text().rpartition(")")[2].split()
                if file.parent.name == own:
                    ticks += sum(map(int, fields[11:15]))
                elif fields[1] == own:
                    ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self, *, for_good: bool = False) -> None:
        """Stop at once: SIGTERM would wait until nobody is connected. `for_good` leaves the data as they are."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if for_good else signal.SIGINT)
            self._process.wait(STOP_SECONDS)


@contextlib.contextmanager
def postgres_server(*settings: str, folder: Path | None = None) -> Iterator[PostgresServer]:
    """A server that runs, with its data in `folder` or among temporary files; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="gainroute-pg-", dir=folder) as temporary:
        server = PostgresServer(Path(temporary), *settings)
        server.start()
        try:
            yield server
        finally:
            server.stop(for_good=True)
