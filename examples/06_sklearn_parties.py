"""Three organisations serve scikit-learn models: one process each, mutual TLS, views that never leave.

Each holds a vertical stripe of every digit. An organisation writes `make_party` only; `gainroute certs` and
`gainroute party` do the rest. The coordinator's part is thirty lines of Python.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import gainroute as gr

STRIPES = {"left": slice(0, 3), "middle": slice(3, 5), "right": slice(5, 8)}


class SklearnParty:
    """Posteriors by a logistic regression, embeddings by a PCA, of the views found by id."""

    class_names = tuple(str(digit) for digit in range(10))
    dimension = 12
    model_hash = "stripes-1"

    def __init__(self, views, ids, labels):
        self.views = views
        x = views.fetch(ids).raw
        self.classify = LogisticRegression(C=0.05, max_iter=500).fit(x, labels)
        self.encode = PCA(self.dimension, random_state=0).fit(x)

    def answer(self, ids, width, model):
        found = self.views.fetch(ids)
        rows = np.full((len(ids), width), np.nan, np.float32)  # a row of NaN: the party does not have this sample
        if len(found.positions):
            rows[found.positions] = model(found.raw)
        return rows

    def posteriors(self, ids):
        return self.answer(ids, 10, self.classify.predict_proba)

    def embeddings(self, ids):
        return self.answer(ids, self.dimension, self.encode.transform)


def make_party(views):
    """What `factory = "06_sklearn_parties:make_party"` calls, in each party's own process."""
    known = np.load(Path.cwd() / "training.npz")
    return SklearnParty(views, known["ids"].tolist(), known["labels"])


def set_up(folder, name, x, authority):
    """One organisation's machine: its view, its certificate, its settings."""
    from gainroute.federation.pki.certificates import Identity

    home = folder / name
    files = authority.issue(Identity("party", name), home)
    np.savez(home / "view.npz", ids=[f"digit-{i}" for i in range(len(x))], x=x[:, :, STRIPES[name]].reshape(len(x), -1))
    settings = {
        "name": name, "coordinators": ["main"], "listen": "127.0.0.1:0",
        "tls": {"ca": files.ca, "certificate": files.certificate, "key": files.key},
        "source": {"factory": f"{Path(__file__).stem}:make_party"}, "views": {"path": "view.npz"},
    }  # fmt: skip
    (home / "party.toml").write_text("\n".join(f"{k} = {toml(v)}" for k, v in settings.items()))
    command = [sys.executable, "-m", "gainroute", "party", "--config", home / "party.toml", "--json"]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **quiet, cwd=folder, env=environment)  # noqa: S603 (our own command)


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value if isinstance(value, list) else str(value))


async def coordinate(addresses, files, ids, y):
    from gainroute.federation.transport.base import ConnectedParty
    from gainroute.federation.transport.grpc_client import GrpcConnection

    connections = [GrpcConnection(name, address, files) for name, address in addresses.items()]
    for told in await asyncio.gather(*(connection.describe() for connection in connections)):
        print(f"{told.name}: {len(told.classes)} classes, models {[model.hash for model in told.models]}")
    parties = [ConnectedParty(connection, "stripes-1", codec="float16") for connection in connections]

    async def ask(what, rows):
        return await asyncio.gather(*(getattr(party, what)([ids[i] for i in rows]) for party in parties))

    train, calibration, test = np.arange(900), np.arange(900, 1300), np.arange(1300, len(y))
    server = MLPClassifier(64, max_iter=600, random_state=0).fit(np.hstack(await ask("embeddings", train)), y[train])

    def fuse(embeddings):
        return server.predict_proba(np.hstack(embeddings))

    router = gr.ExpectedGainRouter(budget=0.2).fit(
        await ask("posteriors", calibration),
        y[calibration],
        strong_posterior=fuse(await ask("embeddings", calibration)),
    )
    found = await gr.predict_two_round_async(parties, fuse, router, [ids[i] for i in test])
    print(f"accuracy {(found.prediction == y[test]).mean():.1%} with {found.escalated.mean():.1%} escalated")
    await asyncio.gather(*(connection.close() for connection in connections))


def main():
    from gainroute.federation.pki.authority import Authority
    from gainroute.federation.pki.certificates import Identity

    digits = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    ids = [f"digit-{i}" for i in order]
    y = digits.target[order]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "training.npz", ids=ids[:900], labels=y[:900])
        authority = Authority.create(folder / "ca")
        processes = {name: set_up(folder, name, digits.images / 16, authority) for name in STRIPES}
        try:
            addresses = {name: json.loads(process.stdout.readline())["address"] for name, process in processes.items()}
            asyncio.run(
                coordinate(addresses, authority.issue(Identity("coordinator", "main"), folder / "main"), ids, y)
            )
        finally:
            for process in processes.values():
                process.terminate()
            codes = [process.wait(20) for process in processes.values()]
            for process in processes.values():
                process.stdout.close()
        print(f"parties ended with {codes}")


if __name__ == "__main__":
    main()
