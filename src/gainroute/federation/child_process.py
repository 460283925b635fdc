"""The processes of a local federation: starting, watching and stopping them, and what runs inside each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gainroute.errors import GainrouteError

__all__ = ["DRAIN_SECONDS", "ChildProcess", "ProcessEndedError", "stop_signals", "stopped_at_exit"]

DRAIN_SECONDS = 5


class ProcessEndedError(GainrouteError):
    """A process did not start, or ended unexpectedly."""


@dataclass(frozen=True, eq=False)
class ChildProcess:
    """A party or coordinator process."""

    kind: str  # "party" or "coordinator"
    title: str  # its name in messages
    process: asyncio.subprocess.Process
    log: Path  # has its stderr

    @classmethod
    async def start(cls, kind: str, title: str, config: Path, **environment: str) -> ChildProcess:
        """Start a process with a settings file; its log is beside that file."""
        log = config.with_suffix(".log")
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gainroute.federation.child_process", kind, str(config),
                stdin=asyncio.subprocess.PIPE,  # never written to: it closes when this process ends, for any reason
                stdout=asyncio.subprocess.PIPE, stderr=output,
                start_new_session=True,  # Ctrl-C reaches this process only: the coordinator drains before the parties
                env={"OMP_NUM_THREADS": "1", **os.environ, "GRPC_VERBOSITY": "NONE", **environment},
            )  # fmt: skip
        return cls(kind, title, process, log)

    async def ready(self) -> dict[str, Any]:
        """Wait for the line that the process prints when it is ready, and return its content."""
        stream = self.process.stdout
        line = b"" if stream is None else await stream.readline()
        if not line:
            await self.process.wait()
            raise ProcessEndedError(self.how_it_ended())
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ProcessEndedError(f"{self.title} cannot start: {found['error']}")
        return found

    def how_it_ended(self) -> str:
        """Return the exit code or signal, and the last line of the log."""
        code = self.process.returncode
        who = f"{self.title} (pid {self.process.pid})"
        if code is not None and code < 0:
            return f"{who} was ended by signal {-code}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{who} ended with exit code {code}" + (f": {lines[-1][:500]}" if code and lines else "")

    async def stop(self, hurry: asyncio.Event) -> None:
        """Send SIGTERM, and SIGKILL if the process takes too long or `hurry` is set."""
        ended = asyncio.ensure_future(self.process.wait())
        hurried = asyncio.ensure_future(hurry.wait())
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await asyncio.wait({ended, hurried}, timeout=DRAIN_SECONDS + 5, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await ended


@contextlib.asynccontextmanager
async def stopped_at_exit(hurry: asyncio.Event) -> AsyncIterator[list[ChildProcess]]:
    """Yield a list for processes, and stop those in it at the end, coordinators first."""
    children: list[ChildProcess] = []
    try:
        yield children
    finally:
        for kind in ("coordinator", "party"):
            await asyncio.gather(*(child.stop(hurry) for child in children if child.kind == kind))


@contextlib.contextmanager
def stop_signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield two events: the first signal sets the first (stop), the next one the second (do not wait)."""
    loop = asyncio.get_running_loop()
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    # Started by nohup, it has to outlive the terminal.
    hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    handled = (signal.SIGINT, signal.SIGTERM, *hangup)
    for number in handled:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop)
    try:
        yield stopping, hurry
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


# ---- inside the process -----------------------------------------------------------------------------


def _end_with_parent() -> None:
    """Send SIGTERM to this process when its parent has ended, even by SIGKILL."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _main(kind: str, config: str) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The user's environment may have settings for other parties and coordinators, so it is not read here.
    try:
        if kind == "party":
            from gainroute.federation.party.process import run_party
            from gainroute.federation.party.settings import load_party_settings

            run_party(load_party_settings(config, {}), _print)
        else:
            from gainroute.federation.coordinator.server import run_coordinator
            from gainroute.federation.coordinator.settings import load_coordinator_settings
            from gainroute.federation.logging import log_to_stderr

            log_to_stderr("warning")
            run_coordinator(load_coordinator_settings(config, {}), on_ready=lambda url: _print({"url": url}))
    except (GainrouteError, OSError) as error:
        _print({"error": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
