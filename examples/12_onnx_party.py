"""From a trained run to parties that serve ONNX files, without torch.

`gainroute train` and `gainroute export` are the two commands; here they are called from Python. The last lines run in a
process in which torch cannot be imported.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import gainroute as gr
from gainroute.training.export import export_run
from gainroute.training.run import train_run

PARTY = """
import sys
from pathlib import Path

sys.modules["torch"] = None  # a party's machine need not have it
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.party.sources import open_source

source = open_source(SourceSettings(onnx=Path(sys.argv[1])), "left")  # onnx = "…" under [source] in party.toml
(version,) = source.scan().values()
posteriors, _ = version.answer(["3", "4"], posterior=True)
print("party left, without torch, answers", [version.classes[k] for k in posteriors.argmax(axis=1)])
print("as model", version.model.hash[:8])
"""

with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    digits = load_digits()
    np.savez(root / "left.npz", x=digits.images[:, :, :4].reshape(-1, 32))
    np.savez(root / "right.npz", x=digits.images[:, :, 4:].reshape(-1, 32))
    np.savez(root / "y.npz", labels=digits.target)
    train_run([root / "left.npz", root / "right.npz"], root / "y.npz", root / "run", epochs=5, local_epochs=10)
    print("the router was calibrated with model", gr.open_run(root / "run").router.provenance_.models["left"][:8])

    for name, exported in export_run(root / "run", root / "onnx").items():
        difference = max(exported["difference"].values())
        agrees = "within 1e-5" if difference <= 1e-5 else "not"
        print(f"{name}: the ONNX files agree with torch {agrees} on {exported['samples']:,} samples")
    subprocess.run([sys.executable, "-c", PARTY, str(root / "onnx")], check=True)  # noqa: S603
