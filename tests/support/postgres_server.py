"""A PostgreSQL server of its own, on a socket in its own folder: no port is taken.

Needs `initdb` and `postgres` on the path, or in /usr/lib/postgresql/*/bin.
"""

from __future__ import annotations

import contextlib
import getpass
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg
from waiting import wait_until


def program(name):
    found = shutil.which(name) or next((str(p) for p in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    assert found, f"{name} is needed: apt-get install postgresql"
    return found


class PostgresServer:
    """A server that can be stopped and started; `url` is in SQLAlchemy's notation."""

    def __init__(self, home: Path, *settings: str) -> None:
        self._home, self._settings = home, settings
        user = "postgres" if getpass.getuser() == "root" else getpass.getuser()  # it refuses to run as root
        self._how = {"user": user, "cwd": "/"} if getpass.getuser() == "root" else {}
        if self._how:
            shutil.chown(home, user)
        initdb = [program("initdb"), "-D", home / "data", "-A", "trust", "-U", "party", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, **self._how)
        self.url = self.database("postgres")

    def database(self, name: str) -> str:
        return f"postgresql+psycopg://party@/{name}?host={self._home}"

    def create(self, name: str) -> str:
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.database(name)

    def connect(self, url: str = "") -> psycopg.Connection:
        return psycopg.connect((url or self.url).replace("+psycopg", ""), autocommit=True)

    def start(self) -> None:
        more = [part for setting in ("listen_addresses=", *self._settings) for part in ("-c", setting)]
        command = [program("postgres"), "-D", self._home / "data", "-k", self._home, *more]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._how)

        def up():
            try:
                self.connect().close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(up, 90)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # at once; SIGTERM would wait until nobody is connected
            self._process.wait(60)


@contextlib.contextmanager
def postgres_server(*settings: str):
    """A server, running; `settings` such as "fsync=off" are those of its configuration."""
    with tempfile.TemporaryDirectory(prefix="gainroute-pg-") as temporary:
        server = PostgresServer(Path(temporary), *settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
