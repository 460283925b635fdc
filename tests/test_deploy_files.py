"""The files under deploy/ agree with each other, with the settings and with the commands."""

from __future__ import annotations

import base64
import inspect
import re
import runpy
import shlex
import socket
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gainroute import __version__
from gainroute._util.settings import parse_settings
from gainroute.cli import app
from gainroute.federation.coordinator.client_settings import TokenTables
from gainroute.federation.coordinator.settings import PREFIX, CoordinatorSettings
from gainroute.federation.party.settings import PartySettings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
IMAGES = ["coordinator", "party"]
UID = 10001
STATE, SETTINGS = "/var/lib/gainroute", "/etc/gainroute"


def documents(path):
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


MANIFESTS = {
    (found["kind"], found["metadata"]["name"]): found
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for found in documents(path)
}
COMPOSE = documents(DEPLOY / "compose.yaml")[0]


def stage(name):
    """Instructions of a target of the Containerfile, those of the stage that both share included."""
    stages = re.split(r"(?m)^FROM ", CONTAINERFILE.replace("\\\n", " "))
    return "\n".join(text for text in stages if re.match(rf"\S+ AS ({name}|runtime)\n", text))


def runs(words):
    """The command and the path of its settings; typer knows both."""
    command, option, path = words
    known = next(found for found in app.registered_commands if (found.name or found.callback.__name__) == command)
    assert option.removeprefix("--") in inspect.signature(known.callback).parameters
    return command, path


# ---- images ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_its_command_with_the_settings_that_its_health_check_reads(image):
    text = stage(image)
    command = yaml.safe_load(re.search(r"(?m)^CMD (.*)$", text)[1])
    assert runs(command) == (image, f"{SETTINGS}/{image}.toml")
    check = yaml.safe_load(re.search(r"(?m)^HEALTHCHECK .*CMD (.*)$", text)[1])
    assert check == ["python3", "/opt/gainroute/healthcheck.py", *command[::2]]
    assert re.search(r"(?m)^USER (.*)$", text)[1] == f"{UID}:{UID}"


def test_the_build_is_given_every_file_that_it_copies_and_little_else():
    copied = {word for line in re.findall(r"(?m)^COPY (?!--)(.*)$", CONTAINERFILE) for word in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_versions_in_the_image_are_those_of_the_lock():
    (line,) = re.findall(r"RUN (sed .*?) > /src/pins.txt", CONTAINERFILE)
    assert line.removesuffix(" /src/requirements.lock") in (ROOT / "Makefile").read_text(encoding="utf-8"), (
        "make wheels"
    )
    words = [str(ROOT / "requirements.lock") if w.startswith("/src") else w for w in shlex.split(line)]
    pins = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert len(pins) == len(re.findall(r"(?m)^[\w.-]+(?:\[.*\])?==", lock))
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", pin) for pin in pins)


def test_the_health_check_tells_whether_a_port_is_open(tmp_path):
    def healthy(kind, settings):
        return check(kind, settings) == 0

    check = runpy.run_path(str(DEPLOY / "healthcheck.py"))["main"]
    party, coordinator = tmp_path / "party.toml", tmp_path / "coordinator.toml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        party.write_text(f'listen = "0.0.0.0:{port}"', encoding="utf-8")
        assert healthy("party", party)
    coordinator.write_text(f"[server]\nport = {port}", encoding="utf-8")
    assert not healthy("party", party)
    assert not healthy("coordinator", coordinator)


# ---- compose ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "service"), COMPOSE["services"].items())
def test_a_service_runs_its_image_without_rights_and_writes_into_its_volume_only(name, service):
    target = service["build"]["target"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["image"] == f"gainroute-{target}:{__version__}"
    assert runs(service["command"]) == (target, f"{SETTINGS}/{target}.toml")
    assert service["volumes"] == [f"./{name}:{SETTINGS}:ro", f"{name}:{STATE}"]
    assert name in COMPOSE["volumes"]
    assert service["read_only"]
    assert service["user"] == f"{UID}:{UID}"
    assert service["cap_drop"] == ["ALL"]
    exposed = re.search(r"(?m)^EXPOSE (.*)$", stage(target))[1].split()
    assert [port.split(":") for port in service.get("ports", [])] == [
        ["127.0.0.1", port, port] for port in exposed if target == "coordinator"
    ]


# ---- Kubernetes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def version():
    return kubernetes_validate.latest_version()


def test_the_manifests_are_valid(version):
    for manifest in MANIFESTS.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    assert {kind for kind, _ in MANIFESTS} >= {
        "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service",
    }  # fmt: skip


@pytest.mark.parametrize("image", IMAGES)
def test_a_pod_runs_its_image_without_rights_and_finds_every_file_of_its_settings(image):
    pod = MANIFESTS["Deployment", f"gainroute-{image}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"gainroute-{image}:{__version__}"
    assert runs(container["args"]) == (image, f"{SETTINGS}/{image}.toml")
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == UID
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert {STATE, "/tmp"} <= set(places)  # noqa: S108 (of a container)
    text = MANIFESTS["ConfigMap", f"gainroute-{image}"]["data"][f"{image}.toml"]
    for path in map(Path, re.findall(r'"(/[^"]*)"', text)):
        place = places[str(path.parent if str(path.parent) in places else path.parents[-3])]
        if "secret" in place:
            assert path.name in MANIFESTS["Secret", place["secret"]["secretName"]]["stringData"]


def test_the_key_of_the_audit_trail_is_copied_to_where_the_settings_name_it():
    pod = MANIFESTS["Deployment", "gainroute-coordinator"]["spec"]["template"]["spec"]
    (copying,) = pod["initContainers"]
    assert copying["image"] == pod["containers"][0]["image"]
    *_, source, target = copying["command"]
    (secret,) = (
        volume["secret"]["secretName"]
        for mount in copying["volumeMounts"]
        for volume in pod["volumes"]
        if volume["name"] == mount["name"] and mount["mountPath"] == str(Path(source).parent)
    )
    assert len(base64.b64decode(MANIFESTS["Secret", secret]["data"][Path(source).name])) == 32
    assert str(coordinator_settings().log.key) == target


def coordinator_settings():
    """The settings as a pod reads them: the file, and the variables of its environment."""
    text = MANIFESTS["ConfigMap", "gainroute-coordinator"]["data"]["coordinator.toml"]
    (container,) = MANIFESTS["Deployment", "gainroute-coordinator"]["spec"]["template"]["spec"]["containers"]
    sources = {variable["name"]: variable["valueFrom"]["secretKeyRef"] for variable in container["env"]}
    environment = {name: MANIFESTS["Secret", at["name"]]["stringData"][at["key"]] for name, at in sources.items()}
    return parse_settings(CoordinatorSettings, text, prefix=PREFIX, environment=environment)


def test_the_settings_in_the_manifests_are_read_by_the_programs_and_name_the_ports():
    party = MANIFESTS["ConfigMap", "gainroute-party"]["data"]["party.toml"]
    listen = parse_settings(PartySettings, party).listen
    server = coordinator_settings().server
    parse_settings(TokenTables, MANIFESTS["Secret", "gainroute-coordinator-tokens"]["stringData"]["tokens.toml"])
    ours = {"coordinator": [server.port, server.grpc_port], "party": [int(listen.rpartition(":")[2])]}
    for image, ports in ours.items():
        (container,) = MANIFESTS["Deployment", f"gainroute-{image}"]["spec"]["template"]["spec"]["containers"]
        assert [port["containerPort"] for port in container["ports"]] == ports
        assert [port["port"] for port in MANIFESTS["Service", f"gainroute-{image}"]["spec"]["ports"]] == ports
        (ingress,) = MANIFESTS["NetworkPolicy", f"gainroute-{image}"]["spec"]["ingress"]
        assert [port["port"] for port in ingress["ports"]] == ports
        assert [int(port) for port in re.search(r"(?m)^EXPOSE (.*)$", stage(image))[1].split()] == ports


def test_what_selects_the_pods_selects_those_of_the_deployment():
    for (kind, name), manifest in MANIFESTS.items():
        spec = manifest.get("spec", {})
        labels = {"app.kubernetes.io/name": name}
        if kind == "Deployment":
            assert spec["template"]["metadata"]["labels"] == labels
        selected = spec.get("selector") or spec.get("podSelector")
        if kind == "HorizontalPodAutoscaler":
            assert ("Deployment", spec["scaleTargetRef"]["name"]) in MANIFESTS
        elif selected:
            assert selected.get("matchLabels", selected) == labels


def test_several_coordinators_share_a_database_and_a_party_is_one_pod():
    scaled = MANIFESTS["HorizontalPodAutoscaler", "gainroute-coordinator"]["spec"]
    assert scaled["minReplicas"] >= 2
    assert "replicas" not in MANIFESTS["Deployment", "gainroute-coordinator"]["spec"], "the autoscaler sets them"
    log = coordinator_settings().log
    assert log.url.startswith("postgresql+psycopg://")
    assert log.coordinators >= 2 * scaled["maxReplicas"], "a pod that drains keeps its slot"
    assert MANIFESTS["Deployment", "gainroute-party"]["spec"]["replicas"] == 1
