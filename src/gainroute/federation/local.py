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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from gainroute.federation.pki.authority import Authority
    from gainroute.federation.pki.certificates import CertificateFiles

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
    """A running federation."""

    url: str  # of the coordinator: the dashboard, and the Open Inference Protocol below it
    model: str  # that requests ask for
    example_ids: tuple[str, ...]  # samples to try, all of which every party has
    parties: tuple[LocalParty, ...]  # in the order of training
    admin_token: str  # valid until the federation stops
    grpc_address: str | None = None  # the Open Inference Protocol over gRPC, if it was asked for

    @property
    def dashboard(self) -> str:
        """Address of the dashboard with the admin token, which the browser does not send: for the user's eyes only."""
        return f"{self.url}/#admin={self.admin_token}"


@dataclass(frozen=True)
class _Plan:
    """What to start, and the private folder to start it from."""

    run: RunFolder
    parties: tuple[str, ...]
    folder: Path
    port: int
    grpc_port: int | None
    budget: float | None
    views: tuple[PartyViews, ...]
    examples: tuple[str, ...]
    mask_keys: Mapping[str, str]  # public keys by party; empty if Round 1 is plain


def up(
    run: str | os.PathLike[str] = DEFAULT_RUN,
    *,
    port: int = 8080,
    grpc_port: int | None = None,
    budget: float | None = None,
    views: Sequence[str | os.PathLike[str]] = (),
    id_column: str = "id",
    masked: bool = False,
    ready: Callable[[LocalFederation], None],
    say: Callable[[str], None],
) -> None:
    """Serve a run until SIGINT or SIGTERM, then stop everything.

    The parties serve the files `views`, which are named after them, or else the run's test part. `masked` hides their
    posteriors from the coordinator. With `grpc_port`, gRPC is served as well. `ready` is called once requests are
    answered, `say` with progress messages.
    """
    if Path(run) == DEFAULT_RUN and not RunFolder(run).exists():
        raise DataError(
            f"there is no run in {run} yet: `gainroute demo` makes one in about a minute, or name a folder written by "
            "`gainroute train`"
        )
    folder = RunFolder(Path(run).resolve())
    parties = _check_run(folder)
    for name, given in (("port", port), ("grpc_port", grpc_port or 0)):
        if not 0 <= given <= 65535:
            raise SettingError(f"{name} is {given}; 0 … 65535 are allowed, 0 takes a free one")
    if port and port == grpc_port:
        raise SettingError(f"port and grpc_port are both {port}; HTTP and gRPC need a port each, 0 takes a free one")
    if budget is not None and not 0 <= budget <= 1:
        raise SettingError(f"budget is {budget!r}; a share in [0, 1] is needed, such as 0.2")
    _check_port(port, "--port")
    if grpc_port is not None:  # chosen here: a coordinator tells the address of HTTP only
        grpc_port = _check_port(grpc_port, "--grpc-port")
    # mkdtemp makes the folder readable by its owner only, because it holds keys.
    with tempfile.TemporaryDirectory(prefix="gainroute-up-") as private:
        home = Path(private)
        served, ids = new_views(views, parties, home, id_column) if views else held_out_views(folder, parties, home)
        keys = _create_mask_keys(parties, home) if masked else {}
        plan = _Plan(folder, parties, home, port, grpc_port, budget, served, tuple(ids[:MAX_EXAMPLES]), keys)
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


def _check_port(port: int, option: str) -> int:
    """Fail before anything is started if the port is taken; returns the port, or a free one for 0."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise SettingError(
                f"{HOST}:{port} cannot be used ({error.strerror}); name another {option}, 0 takes a free one"
            ) from None
        return int(trial.getsockname()[1])


# ---- settings of the processes ----------------------------------------------------------------------


def _write_settings(config: Path, files: CertificateFiles, *tables: tuple[str, dict[str, Any]]) -> Path:
    """Write a TOML file of headings and values; JSON values are TOML values."""
    lines: list[str] = []
    for heading, values in (*tables, ("[tls]", vars(files))):
        given = {
            key: json.dumps(v, ensure_ascii=False, default=os.fspath) for key, v in values.items() if v is not None
        }
        lines += [heading, *(f"{key} = {text}" for key, text in given.items())]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def _create_mask_keys(parties: Sequence[str], home: Path) -> dict[str, str]:
    from gainroute.federation.masking import create_mask_key

    return {name: create_mask_key(home / f"mask-{index}.key") for index, name in enumerate(parties)}


def _write_party(plan: _Plan, authority: Authority, index: int, home: Path) -> Path:
    from gainroute.federation.pki.certificates import Identity

    name, served = plan.parties[index], plan.views[index]
    views = () if served.file is None else (("[views]", {"path": served.file, "id_column": served.id_column}),)
    privacy: tuple[tuple[str, dict[str, Any]], ...] = ()
    if plan.mask_keys:
        peers = {json.dumps(peer): key for peer, key in plan.mask_keys.items() if peer != name}
        masked = {"round1": "masked", "key": plan.folder / f"mask-{index}.key"}
        privacy = (("[privacy]", masked), ("[privacy.peers]", peers))
    return _write_settings(
        home / "party.toml",
        authority.issue(Identity("party", name), home, days=30),
        ("", {"name": name, "coordinators": [NAME], "listen": f"{HOST}:0", "drain_seconds": float(DRAIN_SECONDS)}),
        ("[source]", {"run": served.folder or plan.run.party(name).path}),
        ("[audit]", {"path": home / "audit.jsonl"}),
        *views,
        *privacy,
    )


def _write_coordinator(plan: _Plan, authority: Authority, parties: Sequence[LocalParty], token: str) -> Path:
    from gainroute.federation.coordinator.tokens import hash_token
    from gainroute.federation.pki.certificates import Identity

    home = plan.folder / "coordinator"
    server = {"host": HOST, "port": plan.port, "grpc_port": plan.grpc_port, "model": MODEL,
              "drain_seconds": float(DRAIN_SECONDS), "without_tokens": True}  # fmt: skip
    return _write_settings(
        home / "coordinator.toml",
        authority.issue(Identity("coordinator", NAME), home, days=30),
        ("[server]", server),
        ("[router]", {"artifact": plan.run.server.router, "budget": plan.budget}),
        ("[fusion]", {"run": plan.run.server.path}),
        *(("[[party]]", {"name": party.name, "address": party.address}) for party in parties),
        ("[rounds]", {"health_seconds": 1.0}),
        ("[privacy]", {"round1": "masked" if plan.mask_keys else "plain"}),
        ("[log]", {"path": home / "decisions.sqlite", "posteriors": True}),
        ("[tokens.admin]", {NAME: hash_token(token)}),
        ("[controller]", {}),
    )


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
    coordinator = await ChildProcess.start("coordinator", "the coordinator", config)
    children.append(coordinator)
    url = (await coordinator.ready())["url"]
    grpc_address = None if plan.grpc_port is None else f"{HOST}:{plan.grpc_port}"
    return LocalFederation(url, MODEL, plan.examples, parties, token, grpc_address)


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
