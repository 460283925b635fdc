"""A whole federation on this machine: one process a party and a coordinator, on loopback, with mutual TLS.

Certificates, settings and logs go into a private temporary folder that is removed at the end. Nothing is restarted: a
party that ends is said to have ended, and the coordinator shows it red; when the coordinator ends, all do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gainroute.errors import DataError, GainrouteError, NotAnArtifactError, SettingError

__all__ = ["DEFAULT_RUN", "EndedError", "Served", "ServedParty", "up"]

DEFAULT_RUN = Path("out/demo/run")
HOST = "127.0.0.1"
MODEL = "gainroute"
NAME = "up"  # of the coordinator, in its certificate and at the parties
MOST_EXAMPLES = 500
START_SECONDS = 180.0  # torch alone takes a while to load on a busy machine
DRAIN_SECONDS = 5
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class EndedError(GainrouteError):
    """A process did not start, or ended by itself."""


@dataclass(frozen=True)
class ServedParty:
    """A party process: its name, process id and address."""

    name: str
    pid: int
    address: str


@dataclass(frozen=True)
class Served:
    """What runs.

    Attributes
    ----------
    url
        Of the coordinator: dashboard, and the Open Inference Protocol below it.
    model
        The name that requests ask for.
    example_ids
        Samples to ask for, those of the test split where the run says which these are.
    parties
        In the order of training.
    admin_token
        Of this start alone; the dashboard has it.
    """

    url: str
    model: str
    example_ids: tuple[str, ...]
    parties: tuple[ServedParty, ...]
    admin_token: str

    def to_json(self) -> dict[str, Any]:
        """As one object."""
        return {
            "url": self.url,
            "model": self.model,
            "example_ids": list(self.example_ids),
            "parties": [vars(party) for party in self.parties],
            "admin_token": self.admin_token,
        }


def up(
    run: str | os.PathLike[str] = DEFAULT_RUN,
    *,
    port: int = 8080,
    budget: float | None = None,
    ready: Callable[[Served], None],
    say: Callable[[str], None],
) -> None:
    """Serve a run until SIGINT or SIGTERM, then stop everything.

    Parameters
    ----------
    run
        A folder that `gainroute train` or `gainroute demo` left.
    port
        Of the coordinator; 0 takes a free one.
    budget
        Instead of the router's own.
    ready
        Is called once requests are answered.
    say
        Is told what a person should know meanwhile.
    """
    root = Path(run).resolve()
    names = _check_run(root, Path(run))
    if not 0 <= port <= 65535:
        raise SettingError(f"port is {port}; 0 … 65535 are allowed, 0 takes a free one")
    if budget is not None and not 0 <= budget <= 1:
        raise SettingError(f"budget is {budget!r}; a share in [0, 1] is needed, such as 0.2")
    _check_port(port)
    # Private: mkdtemp makes it readable by its owner alone, and keys are in it.
    with tempfile.TemporaryDirectory(prefix="gainroute-up-") as folder:
        asyncio.run(_run(_Plan(root, names, Path(folder), port, budget), ready, say))


# ---- what there is to serve ---------------------------------------------------------------------


def _check_run(root: Path, given: Path) -> tuple[str, ...]:
    """The parties' names, if everything that serves is there."""
    if not (root / "run.json").is_file():
        if given == DEFAULT_RUN:
            raise DataError(
                f"there is no run in {given} yet: `gainroute demo` makes one in about a minute, or name a folder that "
                "`gainroute train` left"
            )
        raise DataError(f"{given} is not a run (it has no run.json): name a folder that `gainroute train` left")
    try:
        names = tuple(str(name) for name in json.loads((root / "run.json").read_bytes())["party_names"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotAnArtifactError(f"{given / 'run.json'} cannot be read ({error!r}): train the run again") from error
    needed = ["server/router.safetensors", "server/head.safetensors", *(f"parties/{n}/party.json" for n in names)]
    missing = [name for name in needed if not (root / name).is_file()]
    if missing:
        raise DataError(f"{given} lacks {', '.join(missing)}: train the run again, it was not finished")
    return names


def _check_port(port: int) -> None:
    """An address that is taken should not cost the start of all parties."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise SettingError(
                f"{HOST}:{port} cannot be listened on ({error.strerror}); name another --port, 0 takes a free one"
            ) from None


def _example_ids(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Ids that every party holds; those of the test split where a record tells which these are."""
    held: list[list[Any]] = []
    for name in names:
        file = root / "parties" / name / "views.npz"
        if not file.is_file():
            return ()
        with np.load(file, allow_pickle=False) as views:
            held.append(views["ids"].tolist())
    everywhere = set.intersection(*map(set, held)) if held else set()
    wanted = held[0] if held else []
    for record in (root / "record.npz", root.parent / "record.npz"):
        if record.is_file():
            with np.load(record, allow_pickle=False) as file:
                test = [i for i in file["test.ids"].tolist() if i in everywhere] if "test.ids" in file.files else []
            if test:
                wanted = test
                break
    return tuple(str(i) for i in wanted if i in everywhere)[:MOST_EXAMPLES]


# ---- settings of the processes ------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What is started, and the private folder it is started from."""

    run: Path
    names: tuple[str, ...]
    folder: Path
    port: int
    budget: float | None


def _text(value: str | os.PathLike[str]) -> str:
    return json.dumps(os.fspath(value), ensure_ascii=False)  # a TOML string is a JSON string


def _tls(files: Any) -> str:
    return f"[tls]\nca = {_text(files.ca)}\ncertificate = {_text(files.certificate)}\nkey = {_text(files.key)}\n"


def _write_settings(plan: _Plan, authority: Any) -> list[Path]:
    """One settings file a party, each in a folder of its own with its certificate."""
    from gainroute.federation.pki.certificates import Identity

    configs = []
    for index, name in enumerate(plan.names):
        home = plan.folder / f"party-{index}"
        files = authority.issue(Identity("party", name), home, days=30)
        config = home / "party.toml"
        config.write_text(
            f"name = {_text(name)}\ncoordinators = [{_text(NAME)}]\nlisten = {_text(f'{HOST}:0')}\n"
            f"drain_seconds = {DRAIN_SECONDS}.0\n{_tls(files)}"
            f"[source]\nrun = {_text(plan.run / 'parties' / name)}\n[audit]\npath = {_text(home / 'audit.jsonl')}\n",
            encoding="utf-8",
        )
        configs.append(config)
    return configs


def _write_coordinator(plan: _Plan, authority: Any, parties: Sequence[ServedParty], token: str) -> Path:
    from gainroute.federation.coordinator.tokens import hash_token
    from gainroute.federation.pki.certificates import Identity

    home = plan.folder / "coordinator"
    files = authority.issue(Identity("coordinator", NAME), home, days=30)
    rows = "".join(f"[[party]]\nname = {_text(p.name)}\naddress = {_text(p.address)}\n" for p in parties)
    config = home / "coordinator.toml"
    config.write_text(
        f"[server]\nhost = {_text(HOST)}\nport = {plan.port}\nmodel = {_text(MODEL)}\n"
        f"drain_seconds = {DRAIN_SECONDS}.0\n"
        f"[router]\nartifact = {_text(plan.run / 'server' / 'router.safetensors')}\n"
        + ("" if plan.budget is None else f"budget = {float(plan.budget)!r}\n")
        + f"[fusion]\nrun = {_text(plan.run / 'server')}\n{rows}{_tls(files)}[rounds]\nhealth_seconds = 1.0\n"
        f"[log]\npath = {_text(home / 'decisions.sqlite')}\n[tokens.admin]\n{NAME} = {_text(hash_token(token))}\n",
        encoding="utf-8",
    )
    return config


# ---- processes ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Child:
    title: str
    process: asyncio.subprocess.Process
    log: Path

    def why(self) -> str:
        """How it ended, and the last thing it wrote."""
        code = self.process.returncode
        who = f"{self.title} (pid {self.process.pid})"
        if code is not None and code < 0:
            return f"{who} was ended by signal {-code}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{who} ended with exit code {code}" + (f": {lines[-1][:500]}" if code and lines else "")

    async def told(self) -> dict[str, Any]:
        """The line that it prints when it is ready."""
        stream = self.process.stdout
        line = b"" if stream is None else await stream.readline()
        if not line:
            await self.process.wait()
            raise EndedError(self.why())
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise EndedError(f"{self.title} cannot start: {found['error']}")
        return found

    async def stop(self, at_once: asyncio.Event) -> None:
        """SIGTERM, and SIGKILL where that is not enough or not fast enough."""
        ended = asyncio.ensure_future(self.process.wait())
        hurry = asyncio.ensure_future(at_once.wait())
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await asyncio.wait({ended, hurry}, timeout=DRAIN_SECONDS + 5, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await ended


async def _start(kind: str, title: str, config: Path, **environment: str) -> _Child:
    log = config.with_suffix(".log")
    output: BinaryIO
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gainroute.federation.local", kind, str(config),
            stdin=asyncio.subprocess.PIPE,  # never written to: it closes when we are gone, however that happens
            stdout=asyncio.subprocess.PIPE, stderr=output,
            start_new_session=True,  # Ctrl-C is for us alone: the coordinator is to drain before the parties stop
            env={"OMP_NUM_THREADS": "1", **os.environ, "GRPC_VERBOSITY": "NONE", **environment},
        )  # fmt: skip
    return _Child(title, process, log)


@contextlib.contextmanager
def _signals(stopping: asyncio.Event, at_once: asyncio.Event) -> Any:
    """The first signal asks all to stop, the second does not wait for them."""
    loop = asyncio.get_running_loop()

    def asked() -> None:
        (at_once if stopping.is_set() else stopping).set()

    taken = []
    for name in SIGNALS:
        with contextlib.suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):
            number = getattr(signal, name)
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by nohup: it is to outlive the terminal
            loop.add_signal_handler(number, asked)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _children(at_once: asyncio.Event) -> AsyncIterator[list[_Child]]:
    """A list of processes; those in it are stopped at the end, the coordinator first."""
    begun: list[_Child] = []
    try:
        yield begun
    finally:
        coordinators = [child for child in begun if child.title == "the coordinator"]
        for group in (coordinators, [child for child in begun if child not in coordinators]):
            await asyncio.gather(*(child.stop(at_once) for child in group))


async def _run(plan: _Plan, ready: Callable[[Served], None], say: Callable[[str], None]) -> None:
    stopping, at_once = asyncio.Event(), asyncio.Event()
    with _signals(stopping, at_once):
        async with _children(at_once) as children:
            starting = asyncio.ensure_future(_start_all(plan, children, say))
            asked = asyncio.ensure_future(stopping.wait())
            try:
                done, _ = await asyncio.wait(
                    {starting, asked}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    raise EndedError(f"not everything was ready within {START_SECONDS:g} s; is the machine very busy?")
                if starting in done:
                    ready(starting.result())
                    await _watch(children, asked, say)
            finally:
                asked.cancel()
                starting.cancel()
                await asyncio.gather(asked, starting, return_exceptions=True)
                say("stopping …")
    say("stopped")


async def _start_all(plan: _Plan, children: list[_Child], say: Callable[[str], None]) -> Served:
    from gainroute.federation.coordinator.dashboard import ADMIN_TOKEN
    from gainroute.federation.coordinator.tokens import new_token
    from gainroute.federation.pki.authority import Authority

    say(f"starting {len(plan.names)} parties and a coordinator …")
    authority = Authority.create(plan.folder / "authority", days=30)
    for name, config in zip(plan.names, _write_settings(plan, authority), strict=True):
        children.append(await _start("party", f"party {name}", config))  # one by one: those begun must be known
    told = await asyncio.gather(*(child.told() for child in children))
    parties = tuple(ServedParty(t["name"], t["pid"], t["address"]) for t in told)
    token = new_token()
    config = _write_coordinator(plan, authority, parties, token)
    coordinator = await _start("coordinator", "the coordinator", config, **{ADMIN_TOKEN: token})
    children.append(coordinator)
    url = (await coordinator.told())["url"]
    return Served(url, MODEL, _example_ids(plan.run, plan.names), parties, token)


async def _watch(children: Sequence[_Child], asked: asyncio.Future[Any], say: Callable[[str], None]) -> None:
    """Wait until asked to stop; tell of processes that end meanwhile, and end with the coordinator."""
    waiting = {asyncio.ensure_future(child.process.wait()): child for child in children}
    try:
        while not asked.done():
            done, _ = await asyncio.wait({asked, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            for child in [waiting.pop(task) for task in list(waiting) if task in done]:
                if child.title == "the coordinator":
                    raise EndedError(f"{child.why()}; everything is stopped")
                say(f"{child.why()}. It is not restarted; the coordinator goes on without it")
    finally:
        for task in waiting:
            task.cancel()


# ---- inside a process that was started ------------------------------------------------------------


def _end_with_parent() -> None:
    """SIGTERM to ourselves when the one who started us is gone, even by SIGKILL."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _line(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _child(kind: str, config: str) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The environment of whoever typed `up` may hold settings of other parties and coordinators: not for these.
    try:
        if kind == "party":
            from gainroute.federation.party.process import run_party
            from gainroute.federation.party.settings import load_party_settings

            run_party(load_party_settings(config, {}), _line)
        else:
            from gainroute.federation.coordinator.server import run_coordinator
            from gainroute.federation.coordinator.settings import load_coordinator_settings
            from gainroute.federation.logging import log_to_stderr

            log_to_stderr("warning")
            run_coordinator(load_coordinator_settings(config, {}), on_ready=lambda url: _line({"url": url}))
    except (GainrouteError, OSError) as error:
        _line({"error": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
