"""Tables and records, and settings files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import GainrouteError
from tests.fuzz.mutate import mutate_bytes, mutate_npz, mutate_text, pack, unpack
from tests.fuzz.targets.base import ROOT, Target, read_by


@contextlib.contextmanager
def settings(folder: Path) -> Iterator[Target]:
    """Settings of coordinator, party and federation; the first byte selects which."""
    from gainroute._util.settings import parse_settings
    from gainroute.federation.coordinator.settings import CoordinatorSettings
    from gainroute.federation.formation.plan import FederationSettings
    from gainroute.federation.party.settings import PartySettings

    kinds = {"coordinator": CoordinatorSettings, "party": PartySettings, "federation": FederationSettings}
    seeds, words = (
        [],
        {"[[party]]", "[trust]", "[training]", "a = 1979-05-27T07:32:00Z", "[a.b]", "[[a]]", "x = {y = 1}"},
    )
    for number, name in enumerate(kinds):
        text = (ROOT / f"deploy/{name}.example.toml").read_text()
        lines = [line.split(" #")[0].rstrip() for line in text.splitlines()]
        plain = [line.removeprefix("# ") for line in lines if (line and not line.startswith("# ")) or " = " in line]
        words |= set(plain)
        seeds.append(bytes([number]) + "\n".join(line for line in lines if line and line[0] != "#").encode())

    tls = b'[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
    endpoint = b'[[party]]\nname = "a"\naddress = "a:1"\n'
    seeds += [
        b'\x00[router]\nartifact = "r"\n[fusion]\nrun = "s"\n' + endpoint,
        b'\x01name = "a"\ncoordinators = ["m"]\n[source]\nrun = "m"\n' + tls,
        b'\x02name = "f"\nout = "o"\n[labels]\nholder = "a"\n' + tls + endpoint + endpoint.replace(b'"a', b'"b'),
    ]

    def read(path: Path) -> None:
        data = path.read_bytes()
        kind = list(kinds.values())[(data[:1] or b"\x00")[0] % len(kinds)]
        parse_settings(kind, data[1:].decode("utf-8", "replace"), "input", folder)

    yield Target(seeds, mutate_text(sorted(words)), read_by(read, ".toml", folder))


def read_tables(path: Path) -> None:
    """Read a table in every way there is."""
    from gainroute.io.party_answers import read_columns
    from gainroute.io.posteriors import load_outcomes
    from gainroute.io.views import read_labels, read_view

    accepted = 0
    for read in (read_columns, load_outcomes, read_view, read_labels):
        with contextlib.suppress(GainrouteError):
            read(path)  # type: ignore[operator]
            accepted += 1
    if not accepted:
        raise GainrouteError("refused by all")


def table_arrays() -> dict[str, Any]:
    """Columns that the readers of tables know."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), size=(2, 5)).astype(np.float32)
    return {
        "ids": np.array([f"s{i}" for i in range(5)]), "posteriors": rows[0], "embeddings": rows[1],
        "local_posteriors": rows, "labels": np.arange(5) % 3, "strong_prediction": np.arange(5) % 3,
        "x": rows[0], "class_names": np.array(["a", "b", "c"]), "model_hash": np.array("m"),
    }  # fmt: skip


@contextlib.contextmanager
def npz(folder: Path) -> Iterator[Target]:
    """Tables as .npz, one for each reader: files with few arrays are read fast."""
    held, seeds = table_arrays(), []
    for names in (
        ("ids", "posteriors", "embeddings", "model_hash"),
        ("ids", "local_posteriors", "labels", "strong_prediction", "class_names"),
        ("ids", "x"),
        ("ids", "labels"),
    ):
        np.savez(folder / "seed.npz", **{name: held[name] for name in names})
        seeds.append(pack(unpack((folder / "seed.npz").read_bytes())))
    yield Target(seeds, mutate_npz, read_by(read_tables, ".npz", folder))


@contextlib.contextmanager
def parquet(folder: Path) -> Iterator[Target]:
    """Tables as Parquet."""
    from gainroute.io.tables import write_parquet

    held = table_arrays()
    columns = {
        "id": held["ids"],
        "posterior": held["posteriors"],
        "embedding": held["embeddings"],
        "label": held["labels"],
    }
    write_parquet(folder / "seed.parquet", columns)
    wide = {
        "id": held["ids"],
        "posterior_a": held["x"][:, 0],
        "posterior_b": 1 - held["x"][:, 0],
        "label": held["labels"],
    }
    write_parquet(folder / "wide.parquet", wide)
    seeds = [(folder / name).read_bytes() for name in ("seed.parquet", "wide.parquet")]
    yield Target(seeds, mutate_bytes, read_by(read_tables, ".parquet", folder))


@contextlib.contextmanager
def records(folder: Path) -> Iterator[Target]:
    """Records of trained cells, with and without noise."""
    from synthetic_records import synthetic_record

    from gainroute.experiments.records import load_record, save_record

    seeds = []
    for counts, alphas in (((), ()), ((1,), ("1",))):
        made = synthetic_record(classes=3, samples=12, counts=counts, alphas=alphas)
        save_record(made, folder / "seed.npz")
        seeds.append(pack(unpack((folder / "seed.npz").read_bytes())))
    yield Target(seeds, mutate_npz, read_by(load_record, ".npz", folder))
