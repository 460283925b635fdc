"""Saved routers, models, run folders and signatures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz.mutate import (
    Mutate,
    mutate_archive,
    mutate_bytes,
    mutate_json,
    mutate_npz,
    mutate_safetensors,
    mutate_text,
    pack,
    unpack,
)
from tests.fuzz.targets.base import ROOT, ServerError, Target, read_by


def small_router(folder: Path) -> Path:
    """A saved router of few samples."""
    import gainroute as gr

    rng = np.random.default_rng(0)
    local, labels = rng.dirichlet(np.ones(3), size=(2, 40)), rng.integers(0, 3, 40)
    router = gr.ExpectedGainRouter(0.3, lam=1.0).fit(local, labels, labels)
    gr.save(router, folder / "seed.safetensors", provenance=gr.Provenance({"a": "1", "b": "2"}, "float32"))
    return folder / "seed.safetensors"


@contextlib.contextmanager
def routers(folder: Path) -> Iterator[Target]:
    """Saved routers, of this version and of older ones."""
    import gainroute as gr

    old = sorted((ROOT / "tests/routing/artifacts").glob("*.safetensors"), key=lambda file: file.stat().st_size)[:4]
    seeds = [file.read_bytes() for file in (small_router(folder), *old)]
    small = [seed for seed in seeds if len(seed) < 1 << 15]
    yield Target(small, mutate_safetensors, read_by(gr.load, ".safetensors", folder))


def head(folder: Path) -> bytes:
    """A small fusion head, as training saves it."""
    from gainroute.training.models.build import ModelSpec, build_model, save_model

    spec = ModelSpec("fusion", {"dimensions": [2, 2], "latent": 2, "classes": 3})
    save_model(build_model(spec), spec, folder / "head.safetensors")
    return (folder / "head.safetensors").read_bytes()


@contextlib.contextmanager
def heads(folder: Path) -> Iterator[Target]:
    """Models of a run."""
    from gainroute.training.models.build import load_model

    yield Target([head(folder)], mutate_safetensors, read_by(load_model, ".safetensors", folder))


def by_suffix(name: str) -> Mutate:
    """The mutation that fits a file of a run."""
    kinds: dict[str, Mutate] = {".json": mutate_json, ".safetensors": mutate_safetensors, ".npz": mutate_npz}
    return kinds.get(Path(name).suffix, mutate_bytes)


@contextlib.contextmanager
def runs(folder: Path) -> Iterator[Target]:
    """Whole run folders, each as an archive: descriptions, models, router, views."""
    from gainroute.io.run_folder import RunFolder
    from gainroute.training.models.build import ModelSpec, build_model, save_model
    from gainroute.training.opened_run import open_run

    run = RunFolder(folder / "run")
    for name in ("a", "b"):
        party = run.party(name)
        for path, spec in (
            (party.local_model, ModelSpec("local-mlp", {"features": 2, "outputs": 3})),
            (party.encoder, ModelSpec("mlp-encoder", {"features": 2, "width": 1})),
        ):
            save_model(build_model(spec), spec, path)
        means = [{"name": n, "categories": None, "mean": 1.0, "deviation": 2.0, "gaps": False} for n in ("x0", "x1")]
        body = {"name": name, "class_names": ["0", "1", "2"], "preprocess": {"kind": "table", "columns": means}}
        party.description.write_text(json.dumps(body))
        np.savez(party.views, ids=np.array([1, 2]), x=np.zeros((2, 2), np.float32))
    spec = ModelSpec("fusion", {"dimensions": [8, 8], "latent": 2, "classes": 3})
    for path in (run.server.head, run.server.masked_head):
        save_model(build_model(spec), spec, path)
    run.server.router.write_bytes(small_router(folder).read_bytes())
    run.description.write_text(json.dumps({"party_names": ["a", "b"], "class_names": [0, 1, 2]}))
    import gainroute as gr

    gr.save(gr.load(run.server.router), run.server.router, provenance=run.provenance("float32"))
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    seed = pack({path.relative_to(run.path).as_posix(): path.read_bytes() for path in files})

    known = unpack(seed)
    written = dict(known)  # what the folder holds: only files that differ are written again

    def open_archive(path: Path) -> None:
        wanted = {name: content for name, content in unpack(path.read_bytes()).items() if name in known}
        for name in written.keys() - wanted.keys():
            (run.path / name).unlink()
            del written[name]
        for name, content in wanted.items():
            if written.get(name) != content:
                (run.path / name).write_bytes(content)
                written[name] = content
        open_run(run.path)

    yield Target([seed], mutate_archive(by_suffix), read_by(open_archive, ".zip", folder))


@contextlib.contextmanager
def signatures(folder: Path) -> Iterator[Target]:
    """Signature files beside an artifact."""
    from gainroute.federation.pki.signatures import Trust, create_key, load_key, sign, signature_file, verified

    create_key(folder / "signer.key")
    (folder / "artifact").write_bytes(b"an artifact")
    seed = sign(folder / "artifact", load_key(folder / "signer.key")).read_bytes()
    trust, genuine = Trust([folder / "signer.pub"]), seed.rstrip(b"\n")

    def read(path: Path) -> None:
        signature_file(folder / "artifact").write_bytes(path.read_bytes())
        with verified(folder / "artifact", trust):
            if path.read_bytes().rstrip(b"\n") != genuine:
                raise ServerError("an altered signature was accepted")

    yield Target([seed], mutate_text(["signer ed25519:00", "signature 00"]), read_by(read, ".sig", folder))
