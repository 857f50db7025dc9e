"""Every overlay renders, keeps the rules, and starts verifiers with arguments that they take."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from forerun.cli import build_parser, main
from forerun.commands.verify import check, config_of
from lab.tools.chart import CHART, ROOT, overlays, rendered
from tests.deploy.rules import RULES, View, checked

pytestmark = pytest.mark.kube


def view(overlay: str) -> View:
    return View(overlay, checked(overlay))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("overlay", overlays())
def test_a_rule_holds_for_an_overlay(overlay: str, rule: Callable[[View], None]) -> None:
    rule(view(overlay))


def test_components_can_be_put_together(tmp_path: Path) -> None:
    """As deploy/README.md shows: one's own overlay of several."""
    folder = ROOT / "deploy" / "kubernetes"
    relative = Path(*[".."] * len(tmp_path.parts[1:])) / folder.relative_to("/")
    parts = ("cert-manager", "keda", "monitoring", "nvidia-runtime")
    image = {
        "name": "forerun-verifier",
        "newName": "registry.internal/forerun",
        "digest": f"sha256:{'a' * 64}",
    }
    kustomization = {
        "resources": [str(relative / "overlays" / "gpu")],
        "components": [str(relative / "components" / part) for part in parts],
        "images": [image],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    mixed = View("mine", rendered(tmp_path))
    for rule in RULES:
        rule(mixed)
    assert {pod.spec.get("runtimeClassName") for pod in mixed.verifiers} == {"nvidia"}
    assert {each["image"] for pod in mixed.pods for each in pod.containers} == {
        f"registry.internal/forerun@sha256:{'a' * 64}"
    }


def test_versions_are_the_projects() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'\nversion = "{chart["appVersion"]}"\n' in pyproject
    assert chart["version"] == chart["appVersion"]
    for overlay in overlays():
        tags = {each["image"].partition(":")[2] for pod in view(overlay).pods for each in pod.containers}
        assert tags == {chart["appVersion"]}, overlay


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `forerun certs dev` makes, by the names of the cluster's files."""
    folder = tmp_path_factory.mktemp("certs") / "tls"
    assert main(["certs", "dev", "--out", str(folder), "--name", "localhost", "--tenant", "a"]) == 0
    return folder


@pytest.mark.grpc
@pytest.mark.parametrize("overlay", overlays())
def test_a_verifier_takes_its_arguments(overlay: str, certificates: Path, tmp_path: Path) -> None:
    """All that is looked at before a model is loaded: names, values, what goes together, files."""
    for each in view(overlay).of("ConfigMap"):
        if each["metadata"]["name"] == "forerun-denied":
            for name, text in each["data"].items():
                (tmp_path / name).write_text(text, encoding="utf-8")
    model = tmp_path / "models" / "target"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}", encoding="utf-8")
    here = {
        "/models/": f"{model.parent}/",
        "/etc/forerun/denied": str(tmp_path),
        "/etc/forerun/tls": str(certificates),
        "/etc/forerun/tokens/keys.json": str(certificates / "token-keys.json"),
    }
    for pod in view(overlay).pods:
        if pod.is_verifier:
            words = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", each) for each in pod.main["args"]]
            for there, instead in here.items():
                words = [each.replace(there, instead) for each in words]
            assert pod.main["command"][-3:] == ["-m", "forerun", "verify"]
            config = config_of(build_parser("verify").parse_args(["verify", *words]))
            check(config)
            assert config.server.grace == 25.0


def test_an_upgrade_changes_no_selector() -> None:
    """What a Deployment selects can never be changed: these labels stay for good, in every overlay."""
    labels = {"app.kubernetes.io/name": "forerun", "app.kubernetes.io/component": "verifier"}
    for overlay in overlays():
        for each in view(overlay).of("Deployment"):
            assert each["spec"]["selector"] == {"matchLabels": labels}
