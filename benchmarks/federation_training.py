"""Four party processes and a coordinator against `gainroute train` in one process, on the same cores."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delayed_links import NoNamespacesError, linked_namespaces, measure_link
from benchmarks.federation_hub import EpochTimes
from benchmarks.rows import Row, row
from benchmarks.soak.federation import Process
from gainroute._util.settings import settings_text
from gainroute.experiments.config import load_config
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity
from gainroute.training.run import train_run
from gainroute.training.settings import (
    DeferSettings,
    LocalSettings,
    MaskedSettings,
    RouteSettings,
    default_route_settings,
)

__all__ = ["run"]

Array = np.ndarray[Any, Any]

NAMES = ("north-west", "north-east", "south-west", "south-east")
GAINROUTE = ("-m", "gainroute", "party", "--json", "--config")
HUB = ("-m", "benchmarks.federation_hub")
LOOPBACK = dict.fromkeys(("hub", *NAMES), "127.0.0.1")
LINKED = {name: f"10.77.0.{host}" for host, name in enumerate(("hub", *NAMES), 1)}
ROUND_TRIP, RATE = 0.02, 100e6
FORM_SECONDS = 1800.0


def run() -> Iterator[Row]:
    """Measure digits with the default models, and random views of CIFAR-10's shape with its models."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    quadrants = [digits.images[:, top : top + 4, left : left + 4] for top in (0, 4) for left in (0, 4)]
    settings = default_route_settings(1006, 6, 1)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        digit = _Comparison(Path(folder), "digits, default models", quadrants, digits.target, settings)
        yield from digit.rows(None)
    rng, samples = np.random.default_rng(0), 7315  # of which 4,096 train: 32 steps per epoch
    views = [rng.normal(size=(samples, 3, 16, 16)) for _ in NAMES]
    settings = RouteSettings(
        local=LocalSettings(epochs=1),
        vfl=replace(load_config("cifar10").vfl, epochs=2),
        masked=MaskedSettings(epochs=1),
        defer=DeferSettings(alphas=()),
    )
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        labels = rng.integers(10, size=samples)
        cifar = _Comparison(Path(folder), "CIFAR-10's models, 4,096 samples", views, labels, settings)
        yield from cifar.rows(">= 0.8")
        yield from cifar.linked_rows(">= 0.6")


def _memory() -> str | None:
    """A folder in memory, if there is one: both sides write a checkpoint per epoch, and disks are not compared."""
    folder = "/dev/shm"  # noqa: S108 (a temporary folder of its own is made in it)
    return folder if os.access(folder, os.W_OK) else None


class _Comparison:
    """The same data and models, trained in one process and by a federation.

    Seconds are those of all epochs of the strong route on both sides, checkpoints included.
    """

    def __init__(self, home: Path, what: str, views: list[Array], labels: Array, settings: RouteSettings) -> None:
        self._home, self._what, self._settings = home, what, settings
        ids, times = np.arange(len(labels)), EpochTimes()
        np.savez(home / "labels.npz", ids=ids, labels=labels)
        for name, view in zip(NAMES, views, strict=True):
            np.savez(home / f"{name}.npz", ids=ids, x=view.astype(np.float32))
        files = [home / f"{name}.npz" for name in NAMES]
        # One process computes with both cores; a party with one.
        trained = train_run(files, home / "labels.npz", home / "run", settings=settings, threads=2, progress=times)
        self._alone, self._samples = times.seconds, trained.metadata["train_samples"]

    def rows(self, bar: str | None) -> Iterator[Row]:
        """Compare with a federation on this machine."""
        found = self._federated("near", LOOPBACK, {})
        yield from self._compare(f"{self._what}: samples per second, five processes against one", found, bar)
        epochs = len(NAMES) * self._settings.vfl.epochs
        for place, way in enumerate(("down", "up")):
            moved = sum(both[place] for both in found["bytes"]) / epochs / 1e6
            yield row(f"  MB {way} per party and epoch", moved, None, None)

    def linked_rows(self, bar: str) -> Iterator[Row]:
        """Compare with a federation whose processes have a network namespace each."""
        what = f"  each behind {1e3 * ROUND_TRIP:g} ms and {RATE / 1e6:g} Mbit/s"
        try:
            with linked_namespaces(list(LINKED.values()), ROUND_TRIP, RATE) as entered:
                round_trip, rate = measure_link(entered, LINKED["hub"], LINKED[NAMES[0]])
                found = self._federated("far", LINKED, {name: entered[LINKED[name]] for name in LINKED})
                yield from self._compare(what, found, bar)
                yield row("  round-trip time of the link, in ms", 1e3 * round_trip, None, None)
                yield row("  its rate over one new connection, in Mbit/s", rate / 1e6, None, None)
        except NoNamespacesError as error:
            yield row(f"{what}: not measured: {error}", None, None, None)

    def _compare(self, what: str, found: Mapping[str, Any], bar: str | None) -> Iterator[Row]:
        ours, other = (self._samples * len(s) / sum(s) for s in (found["seconds"], self._alone))
        yield row(what, ours, other, ours / other, bar)
        ours, other = (self._samples * len(s) / sum(s) for s in (found["seconds"][1:], self._alone[1:]))
        yield row("  without the first epoch", ours, other, ours / other)

    def _federated(self, name: str, hosts: Mapping[str, str], entered: Mapping[str, list[str]]) -> dict[str, Any]:
        """Form a federation of processes, each entered by its words; what the coordinator prints."""
        home, parties = self._home / name, []
        authority = Authority.create(home / "ca")
        with ExitStack() as stack:
            for party in NAMES:
                folder = home / party
                files = authority.issue(Identity("party", party), folder)
                training = {"coordinators": ["hub"], "views": self._home / f"{party}.npz"}
                if party == NAMES[0]:
                    training["labels"] = self._home / "labels.npz"
                settings: dict[str, Any] = {
                    "name": party, "coordinators": ["hub"], "listen": f"{hosts[party]}:0", "source": {"run": "models"},
                    "tls": asdict(files), "training": training,
                }  # fmt: skip
                (folder / "party.toml").write_text(settings_text(settings), encoding="utf-8")
                command = [*entered.get(party, ()), sys.executable, *GAINROUTE, str(folder / "party.toml")]
                process = _started(f"party {party}", command, folder, stack)
                parties.append({"name": party, "address": json.loads(process.ready())["address"]})
            files, folder = authority.issue(Identity("coordinator", "hub"), home / "hub"), home / "hub"
            settings = {
                "name": "bench", "out": "out", "tls": asdict(files), "party": parties, "labels": {"holder": NAMES[0]},
                "training": {"settings": _plain(asdict(self._settings))},
            }  # fmt: skip
            (folder / "federation.toml").write_text(settings_text(settings), encoding="utf-8")
            command = [*entered.get("hub", ()), sys.executable, *HUB, str(folder / "federation.toml")]
            hub = _started("the coordinator", command, folder, stack)
            found: dict[str, Any] = json.loads(hub.ready(FORM_SECONDS))
            return found


def _started(title: str, command: list[str], folder: Path, stack: ExitStack) -> Process:
    process = Process(title, command, folder / "stderr")
    process.begin()
    stack.callback(process.kill)
    return process


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that are not set."""
    return {k: _plain(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}
