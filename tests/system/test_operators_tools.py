"""Prometheus, Alertmanager and systemd take the files under deploy/ as they are; a collector gets traces.

Needs Debian's prometheus, prometheus-alertmanager and systemd.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from collector import collector
from ports import HOST, free_ports
from waiting import wait_until

from benchmarks.soak.federation import HONEST, INFER, Federation
from benchmarks.soak.world import PARTIES, make_world

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
UNITS = ["coordinator", "party"]
MOST_EXPOSED = 20  # tenths: systemd calls up to 2.0 OK, from 2.1 on medium


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_alert_fires_on_the_condition_that_it_names():
    assert "SUCCESS" in run("promtool", "test", "rules", DEPLOY / "alerts_test.yml")
    fired = re.findall(r'alertname="(\w+)"', (DEPLOY / "alerts_test.yml").read_text(encoding="utf-8"))
    assert set(fired) == set(re.findall(r"alert: (\w+)", ALERTS))


def test_the_example_of_a_prometheus_is_accepted():
    run("promtool", "check", "config", "--syntax-only", DEPLOY / "prometheus.example.yml")


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit_and_rates_it_ok(unit, tmp_path):
    text = (DEPLOY / f"gainroute-{unit}.service").read_text(encoding="utf-8")
    program = shutil.which("gainroute", path=str(Path(sys.executable).parent))
    assert program, "gainroute is installed beside the interpreter"
    file = tmp_path / f"gainroute-{unit}.service"
    file.write_text(text.replace("/opt/gainroute/bin/gainroute", program), encoding="utf-8")
    assert f"{unit}.service" not in run("systemd-analyze", "verify", file), "it complains of nothing in the unit"
    run("systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", file)


# ---- live ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A federation that runs and sends its spans, and those spans."""
    folder = tmp_path_factory.mktemp("federation")
    federation = Federation(folder, make_world(folder))
    with collector() as (endpoint, spans):
        for name in ("coordinator", *PARTIES):
            file = folder / name / ("party.toml" if name in PARTIES else "coordinator.toml")
            with file.open("a", encoding="utf-8") as settings:
                settings.write(f'[tracing]\nendpoint = "{endpoint}"\n')
        with federation:
            yield federation, spans


def test_a_request_is_one_trace_of_all_processes(live):
    federation, found = live
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    ids = [f"s{i:04d}" for i in range(200)]
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
    token = federation.tokens[HONEST[0]]
    headers = {"Authorization": f"Bearer {token}", "traceparent": f"00-{trace}-{parent}-01"}
    reply = httpx.post(f"http://{HOST}:{federation.port}{INFER}", json=body, headers=headers, timeout=30)
    assert reply.status_code == 200, reply.text
    ours, theirs = "gainroute-coordinator", "gainroute-party"
    steps = {"batch", "fusion", "log commit", "request", "routing"}
    wait_until(lambda: len(found) == len(steps) + 4 * len(PARTIES), 30)  # they are sent every few seconds
    assert {span.trace_id.hex() for _, _, span in found} == {trace}
    by_id = {span.span_id: (service, span.name) for service, _, span in found}
    rounds = ["round 1", "round 2"]
    assert {(name, span.name): by_id[span.parent_span_id] for who, name, span in found if who == theirs} == {
        (party, number): (ours, number) for party in PARTIES for number in rounds
    }
    assert {name for who, name in by_id.values() if who == ours} == {*steps, *rounds}
    (request,) = [span for _, _, span in found if span.name == "request"]
    assert request.parent_span_id.hex() == parent


class Watching:
    """A Prometheus with our rules, at a hundredth of their waiting times, and an Alertmanager."""

    def __init__(self, folder, federation):
        self.prometheus, self.alertmanager = (f"{HOST}:{port}" for port in free_ports(2))
        (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", ALERTS), encoding="utf-8")
        (folder / "prometheus.token").write_text(federation.tokens[HONEST[0]], encoding="utf-8")
        config = (DEPLOY / "prometheus.example.yml").read_text(encoding="utf-8")
        for ours, tested in (
            ("coordinator.example:8080", f"{HOST}:{federation.port}"),
            ("127.0.0.1:9093", self.alertmanager),
            ("15s", "1s"),
            ("scheme: https", "scheme: http"),
            ("    tls_config: {ca_file: certs/ca.crt}\n", ""),
        ):
            assert ours in config
            config = config.replace(ours, tested)
        (folder / "prometheus.yml").write_text(config, encoding="utf-8")
        receiver = "route: {receiver: nobody, group_wait: 1s}\nreceivers: [{name: nobody}]\n"
        (folder / "alertmanager.yml").write_text(receiver, encoding="utf-8")
        self._commands = [
            ["prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alertmanager",
             f"--web.listen-address={self.alertmanager}", "--cluster.listen-address="],
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=prometheus",
             f"--web.listen-address={self.prometheus}"],
        ]  # fmt: skip
        self._folder, self._running = folder, []

    def __enter__(self):
        with (self._folder / "stderr").open("ab") as log:
            for command in self._commands:
                self._running.append(subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log))
        return self

    def __exit__(self, *_):
        for process in self._running:
            process.kill()
            process.wait()

    def _get(self, address, path, **parameters):
        try:
            reply = httpx.get(f"http://{address}{path}", params=parameters, timeout=10)
        except httpx.TransportError:  # not up yet
            return None
        return reply.json() if reply.status_code == 200 else None

    def value(self, query):
        found = self._get(self.prometheus, "/api/v1/query", query=query)
        return {json.dumps(row["metric"]): row["value"][1] for row in found["data"]["result"]} if found else {}

    def alerts(self):
        """Names and parties of the alerts that the Alertmanager holds."""
        found = self._get(self.alertmanager, "/api/v2/alerts", active="true") or []
        return {(alert["labels"]["alertname"], alert["labels"].get("party")) for alert in found}


def test_a_killed_party_is_an_alert_at_the_alertmanager_until_it_is_back(live, tmp_path):
    federation, _ = live
    with Watching(tmp_path, federation) as watching:
        name, party = next(iter(federation.parties.items()))
        down = ("GainroutePartyDown", name)
        wait_until(lambda: len(watching.value("gainroute_party_up == 1")) == len(federation.parties), 60)
        assert down not in watching.alerts()
        party.kill()
        wait_until(lambda: down in watching.alerts(), 90)
        party.begin()
        party.ready()
        wait_until(lambda: down not in watching.alerts(), 90)
