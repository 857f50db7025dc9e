"""deploy/compose.yaml and what it mounts: read as Compose, Prometheus, Mosquitto and the edge read it."""

from __future__ import annotations

import os
import pwd
import re
import socket
import ssl
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_verifier.server.lifecycle import FLUSH_TIME
from edge_client.settings import SCHEMA
from forerun.cli import build_parser
from lab.tools.generate import ROOT
from tests.conftest import program
from tests.deploy.rules import ENDING_TIME
from tests.support.ports import free_port

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
FOLDER = DEPLOY / "compose"
MADE = {"certs", "certs/ca.crt", "certs/edge-token"}
"""Below compose/: what prepare.sh makes."""


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return content


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
EDGE = tomllib.loads((FOLDER / "edge.toml").read_text(encoding="utf-8"))


def options(service: str) -> dict[str, str]:
    parts = (each.partition("=") for each in SERVICES[service]["command"] if each.startswith("--"))
    return {name: value for name, _, value in parts}


def mounts(service: str) -> dict[str, tuple[str, str]]:
    """Of a service: path inside -> source, and how."""
    volumes = (volume.rsplit(":", 2) for volume in SERVICES[service].get("volumes", []))
    return {inside: (source, how) for source, inside, how in volumes}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_rights_and_a_limit_of_everything(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].startswith("${FORERUN_USER:?")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0 < service["cpus"] <= 2
    assert 0 < service["pids_limit"] <= 256
    assert all("size=" in each for each in service["tmpfs"])
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
    assert service["healthcheck"]["test"][0] == "CMD"
    assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+", service["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_names_what_is_there_and_is_reached_from_this_machine_alone(name: str) -> None:
    service, networks = SERVICES[name], compose()["networks"]
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
        assert "machine" in service["networks"], "Docker publishes nothing of an internal network"
    for inside, (source, how) in mounts(name).items():
        assert how == "ro", inside
        below = source.removeprefix("./compose/")
        assert below in MADE or (DEPLOY / source).exists(), source
    assert set(service["networks"]) <= networks.keys()
    assert {each for each, told in networks.items() if not told.get("internal")} == {"machine"}
    assert service.get("depends_on", {}).keys() <= SERVICES.keys()


def test_the_verifier_takes_its_options() -> None:
    assert callable(build_parser().parse_args(SERVICES["verifier"]["command"][3:]).run)


def test_the_verifier_drains_before_it_is_killed() -> None:
    grace = float(SERVICES["verifier"]["stop_grace_period"].removesuffix("s"))
    drain = float(options("verifier")["--grace"])
    assert grace >= max(1.5 * drain, drain + FLUSH_TIME + ENDING_TIME)


@pytest.mark.parametrize("name", ["verifier", "edge"])
def test_probes_are_programs_that_can_be_read(name: str) -> None:
    *_, flag, code = SERVICES[name]["healthcheck"]["test"]
    assert flag == "-c"
    compile(code, name, "exec")


def test_the_edges_settings_are_keys_of_its_schema() -> None:
    known = {name: {setting.name for setting in fields(section)} for name, section in SCHEMA.sections.items()}
    for section, settings in EDGE.items():
        assert settings.keys() <= known[section], section


def test_services_address_each_other_by_name_and_port() -> None:
    verifier, probes = (options("verifier")[name].rpartition(":")[2] for name in ("--listen", "--http"))
    assert EDGE["verifier"]["addresses"][0] == f"verifier:{verifier}"
    assert EDGE["fleet"]["broker"] == f"mqtts://broker:{mosquitto_settings()['listener']}"
    assert SERVICES["edge"]["ports"] == [f"127.0.0.1:8080:{EDGE['api']['listen'].rpartition(':')[2]}"]
    scraped = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped} == {
        "forerun-verifier-metrics": [f"verifier:{probes}"],
        "forerun-edge": ["edge:8080"],
    }
    source = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == f"http://prometheus:{SERVICES['prometheus']['ports'][0].rpartition(':')[2]}"
    asks = [("edge", "verifier"), ("edge", "broker"), ("prometheus", "verifier"), ("prometheus", "edge")]
    for client, server in [*asks, ("grafana", "prometheus")]:
        shared = set(SERVICES[client]["networks"]) & set(SERVICES[server]["networks"]) - {"machine"}
        assert shared, f"{client} cannot reach {server}"


@pytest.mark.promtool
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """With the files that it names where they are now."""
    text = (FOLDER / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
    for name in ("ca.crt", "edge-token"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "alerts.yaml").write_bytes((FOLDER / "prometheus" / "alerts.yaml").read_bytes())
    moved = tmp_path / "prometheus.yaml"
    moved.write_text(text.replace("/etc/forerun/tls", str(tmp_path)), encoding="utf-8")
    done = subprocess.run(
        [str(program("promtool")), "check", "config", str(moved)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def mosquitto_settings() -> dict[str, str]:
    lines = (FOLDER / "mosquitto" / "mosquitto.conf").read_text(encoding="utf-8").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


@pytest.mark.broker
def test_the_broker_asks_for_a_certificate(tmp_path: Path) -> None:
    """Mosquitto itself, with its configuration as it is but for the places of files and the port."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    device = authority.issue_cert("edge")
    device.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "device.pem"))
    port = free_port()
    text = (FOLDER / "mosquitto" / "mosquitto.conf").read_text(encoding="utf-8")
    text = text.replace("/etc/forerun/tls", str(tmp_path)).replace(
        "listener 8883", f"listener {port} 127.0.0.1"
    )
    text = text.replace("log_dest stdout", "log_dest stderr")  # which is not held back in a buffer
    user = f"user {pwd.getpwuid(os.getuid()).pw_name}"  # else root would become mosquitto and read no key
    (tmp_path / "mosquitto.conf").write_text(f"{text}{user}\n", encoding="utf-8")
    command = [str(program("mosquitto")), "-v", "-c", str(tmp_path / "mosquitto.conf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stderr is not None
        try:
            assert any(" running" in line for line in broker.stderr)
            assert answers(port, tmp_path, "device.pem")
            assert not answers(port, tmp_path, "")
        finally:
            broker.terminate()


def answers(port: int, folder: Path, certificate: str) -> bool:
    """Whether the broker accepts a connection by MQTT 5."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if certificate:
        context.load_cert_chain(str(folder / certificate))
    connect = bytes.fromhex("100d 0004 4d515454 05 02 003c 00 0000".replace(" ", ""))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(connect)
            return wrapped.recv(2)[:1] == b"\x20"  # CONNACK
    except OSError:
        return False
