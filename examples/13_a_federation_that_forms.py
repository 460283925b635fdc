"""Four organisations form a federation: from four folders of raw files to a served coordinator with its dashboard.

Each organisation holds one quadrant of the digits under ids of its own; each lacks some samples that the others have.
Here all of them run on this machine, as processes bound to 127.0.0.1, each with a certificate of its own. Between them
go blinded ids, embeddings, gradients and posteriors, never a view. docs/federation.md does the same on four machines.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

GAINROUTE = [sys.executable, "-m", "gainroute"]
PARTIES = ("north-west", "north-east", "south-west", "south-east")
HOLDER = PARTIES[0]  # holds the labels as well
TLS = '[tls]\nca = "ca.crt"\ncertificate = "{0}.crt"\nkey = "{0}.key"\n'


def write_raw_files(folder, names, samples):
    """One quadrant per organisation, in an order of its own; each lacks 4 % of the samples."""
    digits, rng = load_digits(), np.random.default_rng(0)
    ids = np.array([f"scan-{i:05d}" for i in range(samples)])
    for place, name in enumerate(names):
        rows = rng.permutation(samples)[: round(0.96 * samples)]
        top, left = 4 * (place // 2), 4 * (place % 2)
        (folder / name).mkdir()
        np.savez(folder / name / "views.npz", ids=ids[rows], x=digits.images[rows, top : top + 4, left : left + 4])
    np.savez(folder / HOLDER / "labels.npz", ids=ids, labels=digits.target[:samples])


def write_party_settings(folder, name):
    labels = 'labels = "labels.npz"\n' if name == HOLDER else ""
    (folder / name / "party.toml").write_text(
        f'name = "{name}"\ncoordinators = ["hub"]\nlisten = "127.0.0.1:0"\n{TLS.format(name)}[source]\nrun = "models"\n'
        f'[training]\ncoordinators = ["hub"]\nviews = "views.npz"\n{labels}'
    )


def write_federation_settings(folder, addresses, training):
    rows = "".join(f'[[party]]\nname = "{name}"\naddress = "{address}"\n' for name, address in addresses.items())
    (folder / "hub" / "federation.toml").write_text(
        f'name = "digits"\nout = "federation"\n{TLS.format("hub")}{rows}[labels]\nholder = "{HOLDER}"\n'
        f"[training]\n{training}"
    )


def start(stack, log, *words, **environment):
    """Start a command in a session of its own, and stop it by its process id when the stack closes."""
    output = stack.enter_context(log.open("w"))
    process = subprocess.Popen(  # noqa: S603 (our own command)
        [*GAINROUTE, *map(str, words)], stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip

    def stop():
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    stack.callback(stop)
    return process


def first_line(process, log):
    line = process.stdout.readline()
    if not line:
        sys.exit(f"a process did not start:\n{log.read_text()}")
    return line.strip()


def form(stack, hub):
    """`gainroute federate`, and what it reports. On a terminal it shows a progress bar."""
    settings, log = hub / "federation.toml", hub / "federate.log"
    errors = None if sys.stderr.isatty() else stack.enter_context(log.open("w"))
    command = [*GAINROUTE, "federate", settings, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(log.read_text() if errors else "the federation was not formed")
    return json.loads(done.stdout)


def ask(url, ids):
    """Ask the coordinator for samples by pseudonym, as any client does: the Open Inference Protocol."""
    body = {"inputs": [{"name": "id", "datatype": "BYTES", "shape": [len(ids)], "data": ids}]}
    with urllib.request.urlopen(f"{url}/v2/models/gainroute/infer", json.dumps(body).encode(), 60) as reply:  # noqa: S310
        return {output["name"]: output["data"] for output in json.load(reply)["outputs"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/federation"), help="a new folder for all organisations")
    parser.add_argument("--port", type=int, default=8080, help="of the coordinator; 0 takes a free one")
    parser.add_argument("--quick", action="store_true", help="two parties, few samples and epochs: poor accuracy")
    parser.add_argument("--no-serve", action="store_true", help="stop after the first answer")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the other processes as well

    from gainroute.federation.formation.pseudonyms import PseudonymTable
    from gainroute.federation.pki.authority import Authority
    from gainroute.federation.pki.certificates import Identity

    folder = options.out.absolute()
    folder.mkdir(parents=True)
    names, samples, training = PARTIES, 1797, ""
    if options.quick:
        names, samples, training = PARTIES[:2], 300, "epochs = 2\nlocal_epochs = 2\n"
    write_raw_files(folder, names, samples)
    authority = Authority.create(folder / "ca")
    for name in names:
        authority.issue(Identity("party", name), folder / name)
        write_party_settings(folder, name)
    hub = folder / "hub"
    authority.issue(Identity("coordinator", "hub"), hub)

    with ExitStack() as stack:
        logs = {name: folder / name / "party.log" for name in names}
        started = {
            name: start(stack, log, "party", "--config", folder / name / "party.toml", "--json")
            for name, log in logs.items()
        }
        addresses = {name: json.loads(first_line(process, logs[name]))["address"] for name, process in started.items()}
        print(f"{len(addresses)} parties listen: {', '.join(f'{n} at {a}' for n, a in addresses.items())}")
        write_federation_settings(folder, addresses, training)

        results = form(stack, hub)
        overlaps = {tuple(found.split(" ∩ ")): count for found, count in results["overlaps"].items()}
        print("ids:", ", ".join(f"{group[0]} {count:,}" for group, count in overlaps.items() if len(group) == 1))
        pairs = [count for group, count in overlaps.items() if len(group) == 2]
        print(f"in common: two parties {min(pairs):,} to {max(pairs):,}, all parties {overlaps[names]:,}")
        print(
            f"accuracy on {results['test_samples']:,} test samples: weak route {results['weak_accuracy']:.1%}, strong "
            f"route {results['strong_accuracy']:.1%}, routed {results['routed_accuracy']:.1%} with "
            f"{results['escalation_rate']:.1%} escalated"
        )
        for name, party in results["parties"].items():
            print(f"{name}: sent {party['bytes_up'] / 1e6:.1f} MB, received {party['bytes_down'] / 1e6:.1f} MB")
        print(f"report: {Path(results['folder']) / 'report.html'}")

        config, log = Path(results["folder"]) / "coordinator.toml", hub / "coordinator.log"
        port = {"GAINROUTE_COORDINATOR_SERVER_PORT": str(options.port)}
        coordinator = start(stack, log, "coordinator", "--config", config, **port)
        url = first_line(coordinator, log).split()[-1]
        # A client that knows real ids has them translated by a party; the coordinator sees pseudonyms only.
        table = PseudonymTable.load(folder / HOLDER / "training" / "digits" / "aligned.npz")
        ids = sorted(table.ids)[:3]
        answer = ask(url, table.pseudonyms_of(ids))
        for sample, digit, route in zip(ids, answer["class"], answer["route"], strict=True):
            print(f"{sample} is a {digit} ({route})")
        if not options.no_serve:
            print(f"dashboard: {url}   Ctrl-C stops all processes")
            coordinator.wait()
    print("all processes have ended")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # leaving `main` has ended the processes
        print("stopped")
