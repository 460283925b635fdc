"""A complete federation on this machine: one process per party and a coordinator, on loopback, with mutual TLS.

Certificates, settings and logs are in a private temporary folder that is removed at the end. Nothing is restarted: when
a party ends, a message says so, and the coordinator refuses requests; when the coordinator ends, everything stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gainroute.errors import DataError, NotAnArtifactError, SettingError
from gainroute.federation.child_process import (
    DRAIN_SECONDS,
    ChildProcess,
    ProcessEndedError,
    stop_signals,
    stopped_at_exit,
)
from gainroute.federation.served_views import PartyViews, held_out_views, new_views
from gainroute.io.run_folder import RunFolder

__all__ = ["DEFAULT_RUN", "LocalFederation", "LocalParty", "up"]

DEFAULT_RUN = Path("out/demo/run")
HOST = "127.0.0.1"
MODEL = "gainroute"
NAME = "up"  # of the coordinator, in its certificate and in the settings of the parties
MAX_EXAMPLES = 500
START_SECONDS = 180.0  # torch alone takes a while to load on a busy machine


@dataclass(frozen=True)
class LocalParty:
    """A party process: its name, process id and address."""

    name: str
    pid: int
    address: str


@dataclass(frozen=True)
class LocalFederation:
    """A running federation.

    Attributes
    ----------
    url
        Address of the coordinator: the dashboard, and the Open Inference Protocol below it.
    model
        Name of the model that requests ask for.
    example_ids
        Samples to try, all of which every party has.
    parties
        In the order of training.
    admin_token
        Valid until the federation stops; the dashboard has it.
    """

    url: str
    model: str
    example_ids: tuple[str, ...]
    parties: tuple[LocalParty, ...]
    admin_token: str


@dataclass(frozen=True)
class _Plan:
    """What to start, and the private folder to start it from."""

    run: RunFolder
    parties: tuple[str, ...]
    folder: Path
    port: int
    budget: float | None
    views: tuple[PartyViews, ...]
    examples: tuple[str, ...]


def up(
    run: str | os.PathLike[str] = DEFAULT_RUN,
    *,
    port: int = 8080,
    budget: float | None = None,
    views: Sequence[str | os.PathLike[str]] = (),
    id_column: str = "id",
    ready: Callable[[LocalFederation], None],
    say: Callable[[str], None],
) -> None:
    """Serve a run until SIGINT or SIGTERM, then stop everything.

    Parameters
    ----------
    run
        A folder written by `gainroute train` or `gainroute demo`.
    port
        Port of the coordinator; 0 takes a free one.
    budget
        Used instead of the router's own.
    views, id_column
        Files of new views, named after the parties, and the id column of Parquet files. Without them the parties
        serve the run's test part.
    ready
        Called once requests are answered.
    say
        Called with progress messages for the user.
    """
    if Path(run) == DEFAULT_RUN and not RunFolder(run).exists():
        raise DataError(
            f"there is no run in {run} yet: `gainroute demo` makes one in about a minute, or name a folder written by "
            "`gainroute train`"
        )
    folder = RunFolder(Path(run).resolve())
    parties = _check_run(folder)
    if not 0 <= port <= 65535:
        raise SettingError(f"port is {port}; 0 … 65535 are allowed, 0 takes a free one")
    if budget is not None and not 0 <= budget <= 1:
        raise SettingError(f"budget is {budget!r}; a share in [0, 1] is needed, such as 0.2")
    _check_port(port)
    # mkdtemp makes the folder readable by its owner only, because it holds keys.
    with tempfile.TemporaryDirectory(prefix="gainroute-up-") as private:
        home = Path(private)
        served, ids = new_views(views, parties, home, id_column) if views else held_out_views(folder, parties, home)
        plan = _Plan(folder, parties, home, port, budget, served, tuple(ids[:MAX_EXAMPLES]))
        asyncio.run(_run(plan, ready, say))


# ---- what there is to serve -------------------------------------------------------------------------


def _check_run(run: RunFolder) -> tuple[str, ...]:
    """Return the names of the parties, if the run is complete."""
    try:
        names = run.party_names
    except (KeyError, TypeError) as error:
        raise NotAnArtifactError(f"{run.description} cannot be read ({error!r}): train the run again") from error
    needed = [run.server.router, run.server.head, *(run.party(name).description for name in names)]
    missing = [file.relative_to(run.path).as_posix() for file in needed if not file.is_file()]
    if missing:
        raise DataError(f"{run.path} lacks {', '.join(missing)}: train the run again, it was not finished")
    return names


def _check_port(port: int) -> None:
    """Fail before anything is started if the port is taken."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise SettingError(
                f"{HOST}:{port} cannot be used ({error.strerror}); name another --port, 0 takes a free one"
            ) from None


# ---- settings of the processes ----------------------------------------------------------------------


def _text(value: str | os.PathLike[str]) -> str:
    return json.dumps(os.fspath(value), ensure_ascii=False)  # a JSON string is a TOML string


def _tls(files: Any) -> str:
    return f"[tls]\nca = {_text(files.ca)}\ncertificate = {_text(files.certificate)}\nkey = {_text(files.key)}\n"


def _write_party(plan: _Plan, authority: Any, index: int, home: Path) -> Path:
    from gainroute.federation.pki.certificates import Identity

    name, served = plan.parties[index], plan.views[index]
    files = authority.issue(Identity("party", name), home, days=30)
    source = served.folder or plan.run.party(name).path
    views = (
        "" if served.file is None else f"[views]\npath = {_text(served.file)}\nid_column = {_text(served.id_column)}\n"
    )
    config = home / "party.toml"
    config.write_text(
        f"name = {_text(name)}\ncoordinators = [{_text(NAME)}]\nlisten = {_text(f'{HOST}:0')}\n"
        f"drain_seconds = {DRAIN_SECONDS}.0\n{_tls(files)}"
        f"[source]\nrun = {_text(source)}\n{views}[audit]\npath = {_text(home / 'audit.jsonl')}\n",
        encoding="utf-8",
    )
    return config


def _write_coordinator(plan: _Plan, authority: Any, parties: Sequence[LocalParty], token: str) -> Path:
    from gainroute.federation.coordinator.tokens import hash_token
    from gainroute.federation.pki.certificates import Identity

    home = plan.folder / "coordinator"
    files = authority.issue(Identity("coordinator", NAME), home, days=30)
    rows = "".join(f"[[party]]\nname = {_text(p.name)}\naddress = {_text(p.address)}\n" for p in parties)
    budget = "" if plan.budget is None else f"budget = {float(plan.budget)!r}\n"
    config = home / "coordinator.toml"
    config.write_text(
        f"[server]\nhost = {_text(HOST)}\nport = {plan.port}\nmodel = {_text(MODEL)}\n"
        f"drain_seconds = {DRAIN_SECONDS}.0\n[router]\nartifact = {_text(plan.run.server.router)}\n{budget}"
        f"[fusion]\nrun = {_text(plan.run.server.path)}\n{rows}{_tls(files)}[rounds]\nhealth_seconds = 1.0\n"
        f"[log]\npath = {_text(home / 'decisions.sqlite')}\n[tokens.admin]\n{NAME} = {_text(hash_token(token))}\n",
        encoding="utf-8",
    )
    return config


# ---- running ----------------------------------------------------------------------------------------


async def _run(plan: _Plan, ready: Callable[[LocalFederation], None], say: Callable[[str], None]) -> None:
    with stop_signals() as (stopping, hurry):
        async with stopped_at_exit(hurry) as children:
            starting = asyncio.ensure_future(_start(plan, children, say))
            asked = asyncio.ensure_future(stopping.wait())
            try:
                done, _ = await asyncio.wait(
                    {starting, asked}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    raise ProcessEndedError(
                        f"not everything was ready within {START_SECONDS:g} s; is the machine very busy?"
                    )
                if starting in done:
                    ready(starting.result())
                    await _watch(children, asked, say)
            finally:
                asked.cancel()
                starting.cancel()
                await asyncio.gather(asked, starting, return_exceptions=True)
                say("stopping …")
    say("stopped")


async def _start(plan: _Plan, children: list[ChildProcess], say: Callable[[str], None]) -> LocalFederation:
    from gainroute.federation.coordinator.dashboard import ADMIN_TOKEN
    from gainroute.federation.coordinator.tokens import new_token
    from gainroute.federation.pki.authority import Authority

    say(f"starting {len(plan.parties)} parties and a coordinator …")
    authority = Authority.create(plan.folder / "authority", days=30)
    for index, name in enumerate(plan.parties):
        config = _write_party(plan, authority, index, plan.folder / f"party-{index}")
        children.append(await ChildProcess.start("party", f"party {name}", config))
    started = await asyncio.gather(*(child.ready() for child in children))
    parties = tuple(LocalParty(line["name"], line["pid"], line["address"]) for line in started)
    token = new_token()
    config = _write_coordinator(plan, authority, parties, token)
    coordinator = await ChildProcess.start("coordinator", "the coordinator", config, **{ADMIN_TOKEN: token})
    children.append(coordinator)
    url = (await coordinator.ready())["url"]
    return LocalFederation(url, MODEL, plan.examples, parties, token)


async def _watch(children: Sequence[ChildProcess], asked: asyncio.Future[Any], say: Callable[[str], None]) -> None:
    """Wait until asked to stop. Report parties that end meanwhile, and stop if the coordinator ends."""
    waiting = {asyncio.ensure_future(child.process.wait()): child for child in children}
    try:
        while not asked.done():
            done, _ = await asyncio.wait({asked, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            for child in [waiting.pop(task) for task in list(waiting) if task in done]:
                if child.kind == "coordinator":
                    raise ProcessEndedError(f"{child.how_it_ended()}; everything is stopped")
                say(
                    f"{child.how_it_ended()}. It is not restarted, and without it requests are refused: stop with "
                    "Ctrl-C and run the command again"
                )
    finally:
        for task in waiting:
            task.cancel()
