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

from benchmarks.ports import free_port
from edge_client.config.schema import SECTIONS
from tests.conftest import program
from tools.compose_files import ALERTS, DEPLOY, plain_rules
from tools.deploy_rules.containers import known_options
from tools.deploy_rules.observing import unknown_metrics
from tools.deploy_rules.pods import ENDING_TIME, FLUSH_TIME

COMPOSE = DEPLOY / "compose.yaml"
FOLDER = DEPLOY / "compose"
MADE = {"certs", "certs/ca.crt", "certs/edge-token"}
"""Below compose/: what prepare.sh makes."""

KEYS = {
    *("user", "read_only", "cap_drop", "security_opt", "restart", "init", "logging", "image", "command"),
    *("entrypoint", "environment", "volumes", "tmpfs", "networks", "stop_grace_period", "mem_limit", "cpus"),
    *("pids_limit", "healthcheck", "depends_on", "ports"),
}
"""Of a service, as the Compose Specification names them; a key that is not one of them is a slip."""


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return found


SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def options(service: str) -> dict[str, str]:
    parts = (each.partition("=") for each in SERVICES[service]["command"] if each.startswith("--"))
    return {name: value for name, _, value in parts}


def mounts(service: str) -> dict[str, tuple[str, str]]:
    """Of a service: path inside -> source, and how."""
    found = (each.rsplit(":", 2) for each in SERVICES[service].get("volumes", []))
    return {inside: (source, how) for source, inside, how in found}


def test_it_has_all_five() -> None:
    assert SERVICES.keys() == {"verifier", "edge", "broker", "prometheus", "grafana"}
    assert compose().keys() <= {"name", "services", "networks", "x-hardened"}


@pytest.mark.parametrize("name", SERVICES)
def test_keys_are_those_of_compose(name: str) -> None:
    assert SERVICES[name].keys() <= KEYS


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_has_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].startswith("${FORERUN_USER:?")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_everything_has_a_limit(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0 < service["cpus"] <= 2
    assert 0 < service["pids_limit"] <= 256
    assert all("size=" in each for each in service["tmpfs"])
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_everything_is_asked_whether_it_lives(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_a_version(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_this_machine(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")
        assert "machine" in SERVICES[name]["networks"], "Docker publishes nothing of an internal network"


@pytest.mark.parametrize("name", SERVICES)
def test_mounts_are_read_only_and_there(name: str) -> None:
    for inside, (source, how) in mounts(name).items():
        assert how == "ro", inside
        below = source.removeprefix("./compose/")
        assert below in MADE or (DEPLOY / source).exists(), source


@pytest.mark.parametrize("name", SERVICES)
def test_networks_are_declared_and_those_within_are_closed(name: str) -> None:
    networks = compose()["networks"]
    assert set(SERVICES[name]["networks"]) <= networks.keys()
    assert {each for each, told in networks.items() if not told.get("internal")} == {"machine"}


@pytest.mark.parametrize("name", SERVICES)
def test_who_is_waited_for_is_there(name: str) -> None:
    assert SERVICES[name].get("depends_on", {}).keys() <= SERVICES.keys()


def test_who_speaks_to_whom_shares_a_network() -> None:
    together = [("edge", "verifier"), ("edge", "broker"), ("prometheus", "verifier"), ("prometheus", "edge")]
    for one, other in [*together, ("grafana", "prometheus")]:
        assert set(SERVICES[one]["networks"]) & set(SERVICES[other]["networks"]) - {"machine"}, (one, other)


def test_the_verifier_is_told_options_that_exist() -> None:
    assert options("verifier").keys() <= known_options()


def test_the_verifier_drains_before_it_is_killed() -> None:
    grace = float(SERVICES["verifier"]["stop_grace_period"].removesuffix("s"))
    drain = float(options("verifier")["--grace"])
    assert grace >= max(1.5 * drain, drain + FLUSH_TIME + ENDING_TIME)


def test_the_verifier_is_probed_on_its_health_port() -> None:
    code = SERVICES["verifier"]["healthcheck"]["test"][3]
    assert options("verifier")["--health"] in code
    assert "readiness" in code


@pytest.mark.parametrize("name", ["verifier", "edge"])
def test_probes_are_programs_that_can_be_read(name: str) -> None:
    *_, flag, code = SERVICES[name]["healthcheck"]["test"]
    assert flag == "-c"
    compile(code, name, "exec")


@pytest.mark.parametrize("name", ["verifier", "edge"])
def test_files_that_are_named_are_mounted(name: str) -> None:
    text = (FOLDER / "edge.toml").read_text(encoding="utf-8") if name == "edge" else ""
    named = [value for value in options(name).values() if value.startswith("/")] if name == "verifier" else []
    named += re.findall(r'"(/[^"]+)"', text)
    assert named
    for path in named:
        inside = [each for each in mounts(name) if path == each or path.startswith(f"{each}/")]
        assert inside, path
        source = mounts(name)[inside[0]][0]
        assert source == "./compose/certs" or (DEPLOY / source / Path(path).relative_to(inside[0])).exists()


def test_the_edge_is_configured_by_keys_that_exist() -> None:
    told = tomllib.loads((FOLDER / "edge.toml").read_text(encoding="utf-8"))
    known = {name: {setting.name for setting in fields(section)} for name, section in SECTIONS.items()}
    for section, settings in told.items():
        assert settings.keys() <= known[section], section


def test_the_edge_asks_for_services_by_their_names() -> None:
    told = tomllib.loads((FOLDER / "edge.toml").read_text(encoding="utf-8"))
    verifier, broker = told["verifier"]["addresses"][0], told["fleet"]["broker"].removeprefix("mqtts://")
    assert verifier == f"verifier:{options('verifier')['--listen'].rpartition(':')[2]}"
    assert broker == f"broker:{mosquitto_told()['listener']}"
    assert SERVICES["edge"]["ports"] == [f"127.0.0.1:8080:{told['api']['listen'].rpartition(':')[2]}"]


def test_certificates_are_made_for_the_names_that_are_asked_for() -> None:
    script = (FOLDER / "prepare.sh").read_text(encoding="utf-8")
    found = re.search(r"--name (\S+)", script)
    assert found is not None
    assert set(found[1].split(",")) == {"verifier", "broker", "edge", "localhost", "127.0.0.1"}
    told = tomllib.loads((FOLDER / "edge.toml").read_text(encoding="utf-8"))
    tenant, device = told["fleet"]["tenant"], told["fleet"]["device"]
    assert f"--tenant {tenant} --device {device}" in script
    assert told["verifier"]["tls_cert"].endswith(f"/{tenant}-{device}.crt")


def test_secrets_of_prepare_are_ignored_by_git() -> None:
    assert "certs/" in (FOLDER / ".gitignore").read_text(encoding="utf-8").split()
    assert ".env" in (DEPLOY.parent / ".gitignore").read_text(encoding="utf-8").split()


def test_prepare_is_a_shell_script_that_can_be_read() -> None:
    assert subprocess.run(["sh", "-n", str(FOLDER / "prepare.sh")], check=False).returncode == 0


# prometheus and grafana -------------------------------------------------------------------------------------


def prometheus() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yaml").read_text())
    return found


def test_alerts_are_those_of_the_cluster() -> None:
    assert ALERTS.read_text(encoding="utf-8") == plain_rules(), "stale: run `python -m tools.compose_files`"
    assert prometheus()["rule_files"] == [ALERTS.name]


def test_prometheus_reads_services_by_their_names() -> None:
    targets = {
        each["job_name"]: each["static_configs"][0]["targets"] for each in prometheus()["scrape_configs"]
    }
    port = options("verifier")["--metrics"].rpartition(":")[2]
    assert targets == {"forerun-verifier-metrics": [f"verifier:{port}"], "forerun-edge": ["edge:8080"]}


def test_alerts_find_the_verifier_by_its_job() -> None:
    named = set(re.findall(r'job="([^"]+)"', plain_rules()))
    assert named <= {each["job_name"] for each in prometheus()["scrape_configs"]}
    assert unknown_metrics(plain_rules().replace("forerun_verifier.yaml", "")) == []


@pytest.mark.promtool
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """With the files that it names where they are now."""
    text = (FOLDER / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
    for name in ("ca.crt", "edge-token"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "alerts.yaml").write_text(plain_rules(), encoding="utf-8")
    moved = tmp_path / "prometheus.yaml"
    moved.write_text(text.replace("/etc/forerun/tls", str(tmp_path)), encoding="utf-8")
    done = subprocess.run(
        [str(program("promtool")), "check", "config", str(moved)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    source = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == f"http://prometheus:{SERVICES['prometheus']['ports'][0].rpartition(':')[2]}"
    provider = yaml.safe_load((FOLDER / "grafana/dashboards/forerun.yaml").read_text())["providers"][0]
    assert provider["options"]["path"] in mounts("grafana")
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder = mounts("grafana")[provider["options"]["path"]][0]
    assert (DEPLOY / folder / Path(home).name).is_file()


# the broker -------------------------------------------------------------------------------------------------


def mosquitto_told() -> dict[str, str]:
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
