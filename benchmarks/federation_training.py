"""Four party processes against `gainroute train` in one process, on the same cores: samples per second."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Row, row
from benchmarks.soak.federation import Process
from gainroute._util.progress import Progress
from gainroute.federation.formation.federate import Formation
from gainroute.federation.formation.plan import FederationSettings, FormationPlan, LabelSettings, PartyAddress
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity
from gainroute.training.run import train_run
from gainroute.training.settings import (
    LocalSettings,
    MaskedSettings,
    RouteSettings,
    VflSettings,
    default_route_settings,
)

__all__ = ["run"]

NAMES = ("north-west", "north-east", "south-west", "south-east")
GAINROUTE = ("-m", "gainroute", "party", "--json", "--config")
CIFAR = RouteSettings(
    local=LocalSettings(epochs=1),
    vfl=VflSettings(epochs=2, batch=256, width=32, stem="3x3-pool", latent=256, auxiliary=0.5),
    masked=MaskedSettings(epochs=1),
)


def run() -> Iterator[Row]:
    """Measure digits with the default models, and views as large as those of CIFAR-10 with its models."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    quadrants = [digits.images[:, top : top + 4, left : left + 4] for top in (0, 4) for left in (0, 4)]
    yield from _compare("digits, default models", quadrants, digits.target, default_route_settings(1006, 6, 1), None)
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(1829, 3, 16, 16)).astype(np.float32) for _ in NAMES]
    yield from _compare("CIFAR-10's models, 1,024 samples", views, rng.integers(10, size=1829), CIFAR, ">= 0.8")


def _compare(
    what: str, views: list[np.ndarray[Any, Any]], labels: np.ndarray[Any, Any], settings: RouteSettings, bar: str | None
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        ids = np.arange(len(labels))
        np.savez(home / "labels.npz", ids=ids, labels=labels)
        for name, view in zip(NAMES, views, strict=True):
            np.savez(home / f"{name}.npz", ids=ids, x=view.astype(np.float32))
        files = [home / f"{name}.npz" for name in NAMES]
        # One process computes with both cores; a party with one.
        alone = train_run(files, home / "labels.npz", home / "run", settings=settings, threads=2)
        together = _federated(home, settings, stack)
        done = together._state["done"]
    samples = settings.vfl.epochs * done["split"]["train"]
    ours, other = samples / done["strong"]["epoch_seconds"], samples / alone.metadata["seconds"]["vfl"]
    yield row(f"{what}: samples per second, four processes against one", ours, other, ours / other, bar)
    up, down = (sum(bytes_[at] for bytes_ in together.payload_bytes.values()) for at in (1, 0))
    yield row("  MB up per party and epoch", up / len(NAMES) / settings.vfl.epochs / 1e6, None, None)
    yield row("  MB down per party and epoch", down / len(NAMES) / settings.vfl.epochs / 1e6, None, None)


def _federated(home: Path, settings: RouteSettings, stack: ExitStack) -> Formation:
    authority = Authority.create(home / "ca")
    addresses = []
    for name in NAMES:
        files = authority.issue(Identity("party", name), home / name)
        labels = f'labels = "{home / "labels.npz"}"\n' if name == NAMES[0] else ""
        (home / name / "party.toml").write_text(
            f'name = "{name}"\ncoordinators = ["hub"]\nlisten = "127.0.0.1:0"\n[source]\nrun = "models"\n'
            f'[tls]\nca = "{files.ca}"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
            f'[training]\ncoordinators = ["hub"]\nviews = "{home / name}.npz"\n{labels}'
        )
        command = [sys.executable, *GAINROUTE, str(home / name / "party.toml")]
        process = Process(f"party {name}", command, home / name / "stderr")
        process.begin()
        stack.callback(process.kill)
        addresses.append(PartyAddress(name=name, address=json.loads(process.ready())["address"]))
    plan = FederationSettings(
        name="bench", out=home / "out", tls=authority.issue(Identity("coordinator", "hub"), home / "hub"),
        party=tuple(addresses), labels=LabelSettings(holder=NAMES[0]), training=FormationPlan(settings=settings),
    )  # fmt: skip
    formation = Formation(plan, "v1", Progress())
    asyncio.run(formation.run())
    return formation
