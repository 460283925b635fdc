"""A federation as three organisations set it up: `gainroute certs`, `party` and `coordinator`, each its own process."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.soak.federation import Process

GAINROUTE = [sys.executable, "-m", "gainroute"]


def gainroute(*words):
    """Run a command and return its output."""
    done = subprocess.run([*GAINROUTE, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def certify(ca, role, name, home):
    """The key is made where it is used; only the request and the certificate travel."""
    gainroute("certs", "request", role, name, "--out", home)
    gainroute("certs", "sign", role, name, home / f"{name}.csr", "--ca", ca, "--out", home.parent / f"{name}.signed")
    gainroute("certs", "install", home.parent / f"{name}.signed", "--out", home)
    (home / "ca.crt").write_bytes((ca / "ca.crt").read_bytes())


def tls(name):
    return f'[tls]\nca = "ca.crt"\ncertificate = "{name}.crt"\nkey = "{name}.key"\n'


def front_certificate(folder):
    """A certificate for the front door, for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front door")])
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "front.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "front.key").write_bytes(secret)
    return folder / "front.crt"


def new_token():
    """A token, and the hash that a configuration holds."""
    return tuple(line.split()[1] for line in gainroute("coordinator", "--new-token").splitlines())


@dataclass
class Served:
    """What runs."""

    url: str
    authority: str
    client: str
    admin: str

    def http(self, token=None):
        trusted = ssl.create_default_context(cafile=self.authority)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, verify=trusted, headers=headers, timeout=60)


def infer(http, ids):
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
    return http.post("/v2/models/gainroute/infer", json=body)


def outputs(reply):
    assert reply.status_code == 200, reply.text
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


def serve(run, folder, stack: ExitStack):
    """Every party of a run and a coordinator whose front door speaks TLS and wants tokens."""
    ca = folder / "ca"
    gainroute("certs", "init", "--out", ca)
    names = json.loads((run / "run.json").read_bytes())["party_names"]
    rows, processes = "", []
    for name in names:
        home = folder / name
        certify(ca, "party", name, home)
        (home / "party.toml").write_text(
            f'name = "{name}"\ncoordinators = ["main"]\nlisten = "127.0.0.1:0"\n{tls(name)}'
            f'[source]\nrun = "{run}/parties/{name}"\n[audit]\npath = "audit.jsonl"\n'
        )
        command = [*GAINROUTE, "party", "--config", str(home / "party.toml"), "--json"]
        processes.append(Process(f"party {name}", command, home / "stderr"))
        stack.callback(processes[-1].kill)
        processes[-1].begin()
    for name, process in zip(names, processes, strict=True):
        rows += f'[[party]]\nname = "{name}"\naddress = "{json.loads(process.ready())["address"]}"\n'
    home = folder / "coordinator"
    certify(ca, "coordinator", "main", home)
    (client, client_hash), (admin, admin_hash) = new_token(), new_token()
    front = front_certificate(home)
    (home / "coordinator.toml").write_text(
        f'[server]\nhost = "127.0.0.1"\nport = 0\ncertificate = "front.crt"\nkey = "front.key"\n'
        f'[router]\nartifact = "{run}/server/router.safetensors"\n[fusion]\nrun = "{run}/server"\n{rows}{tls("main")}'
        f'[tokens.client]\nshop = "{client_hash}"\n[tokens.admin]\noperations = "{admin_hash}"\n'
    )
    command = [*GAINROUTE, "coordinator", "--config", str(home / "coordinator.toml")]
    process = Process("the coordinator", command, home / "stderr")
    stack.callback(process.kill)
    process.begin()
    url = process.ready().split()[-1]
    return Served(url, str(front), client, admin)
