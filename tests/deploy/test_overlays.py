"""Every rule holds for every overlay, as it is checked in: nothing but a YAML parser is needed."""

from __future__ import annotations

import copy
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from forerun.cli import build_parser, main
from forerun.verify import check_options
from tests.deploy.spoiled import SPOILED, spoil
from tools.deploy_rules import RULES, pods
from tools.deploy_rules.view import View
from tools.helm_objects import OBJECTS, ROOT, checked_in, files_of, overlays, rendered

ASKED_FOR = {"cpu-demo", "gpu", "multi-gpu", "leaderworkerset", "keda", "monitoring", "mtls", "gateway"}


@cache
def view(overlay: str) -> View:
    """What an overlay renders to."""
    return View(overlay, checked_in(overlay))


def test_all_overlays_are_there() -> None:
    assert set(overlays()) == ASKED_FOR


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("overlay", overlays())
def test_a_rule_holds_for_an_overlay(overlay: str, rule: str) -> None:
    assert list(RULES[rule](view(overlay))) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_complains_of_what_it_is_there_for(rule: str) -> None:
    """And the objects that are spoiled for it do not break it."""
    overlay, edits = SPOILED[rule]
    objects = copy.deepcopy(view(overlay).objects)
    for edit in edits:
        spoil(objects, edit)
    assert list(RULES[rule](View(overlay, objects)))


def test_every_rule_is_tried() -> None:
    assert SPOILED.keys() == RULES.keys()


@pytest.mark.kube
def test_the_chart_has_what_the_overlays_render() -> None:
    files = files_of({overlay: rendered(overlay) for overlay in overlays()})
    found = {path.name: path.read_text(encoding="utf-8") for path in OBJECTS.iterdir()}
    assert found == files, "the chart's objects are stale: run `python -m tools.helm_objects`"


@pytest.mark.kube
@pytest.mark.parametrize("overlay", overlays())
def test_what_is_read_from_the_chart_is_what_kustomize_says(overlay: str) -> None:
    assert checked_in(overlay) == rendered(overlay)


@pytest.mark.kube
def test_components_can_be_put_together(tmp_path: Path) -> None:
    """As deploy/README.md shows: one's own overlay of several."""
    folder = ROOT / "deploy" / "kubernetes"
    mine = tmp_path / "mine"
    mine.mkdir()
    relative = Path(*[".."] * len(mine.parts[1:])) / folder.relative_to("/")
    parts = ("cert-manager", "keda", "monitoring", "nvidia-runtime")
    kustomization = {
        "resources": [str(relative / "overlays" / "gpu")],
        "components": [str(relative / "components" / part) for part in parts],
        "images": [
            {
                "name": "forerun-verifier",
                "newName": "registry.internal/forerun",
                "digest": f"sha256:{'a' * 64}",
            }
        ],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    text = subprocess.check_output(["kubectl", "kustomize", str(mine)], text=True)
    mixed = View("mine", list(yaml.safe_load_all(text)))
    assert {name: list(rule(mixed)) for name, rule in RULES.items() if list(rule(mixed))} == {}
    assert {pod.spec.get("runtimeClassName") for pod in mixed.verifiers} == {"nvidia"}
    assert {each["image"] for pod in mixed.pods for each in pod.containers} == {
        f"registry.internal/forerun@sha256:{'a' * 64}"
    }


def test_versions_are_the_projects() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    chart = yaml.safe_load((OBJECTS.parent / "Chart.yaml").read_text(encoding="utf-8"))
    assert f'\nversion = "{chart["appVersion"]}"\n' in pyproject
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
    here = {
        "/etc/forerun/denied": str(tmp_path),
        "/etc/forerun/tls": str(certificates),
        "/etc/forerun/tokens/keys.json": str(certificates / "token-keys.json"),
    }
    for pod in view(overlay).pods:
        if pod.component == "verifier":
            words = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", each) for each in pod.main["args"]]
            for there, instead in here.items():
                words = [each.replace(there, instead) for each in words]
            assert pod.main["command"][-3:] == ["-m", "forerun", "verify"]
            options = build_parser().parse_args(["verify", *words])
            check_options(options)
            assert options.grace == (24.0 if overlay == "leaderworkerset" else 25.0)


@pytest.mark.grpc
def test_the_time_for_last_messages_is_the_verifiers() -> None:
    from cloud_verifier.heart import FLUSH_TIME

    assert pods.FLUSH_TIME == FLUSH_TIME


@pytest.mark.torch
def test_the_time_until_a_first_pod_hears_of_another_is_the_verifiers() -> None:
    from cloud_verifier.engine.parallel import LOOK_TIME

    assert pods.LOOK_TIME == LOOK_TIME
