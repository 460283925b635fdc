"""What names the models of a run: the hashes that its parties and its coordinator compute when they serve it."""

from __future__ import annotations

import os
from pathlib import Path

from gainroute.codec import check_codec
from gainroute.coordinator.fusion import hash_server_folder
from gainroute.coordinator.version import SERVER
from gainroute.experiments.own import read_run
from gainroute.serving.hashes import hash_party_folder
from gainroute.types import Provenance

__all__ = ["provenance_of"]


def provenance_of(run_dir: str | os.PathLike[str], codec: str) -> Provenance:
    """Hashes of every party's models and of the server's heads, and the codec.

    Parameters
    ----------
    run_dir
        A folder that training has left.
    codec
        How embeddings will travel.
    """
    root = Path(run_dir)
    models = {name: hash_party_folder(root / "parties" / name) for name in read_run(root)["party_names"]}
    return Provenance({**models, SERVER: hash_server_folder(root / "server")}, check_codec(codec))
