"""deploy/README.md: its figures are so, its overlay renders, its commands exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from forerun.cli import build_parser
from tools.deploy_rules import RULES
from tools.deploy_rules.observing import alerts
from tools.deploy_rules.view import View
from tools.helm_objects import OBJECTS, ROOT, checked_in, overlays

PAGE = ROOT / "deploy" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
OWN = "# my-verifiers/kustomization.yaml"


def commands() -> list[str]:
    """Its indented lines, each with those that continue it."""
    lines = "\n".join(re.findall(r"^    (.+)$", TEXT, re.MULTILINE)).replace("\\\n", " ")
    return lines.splitlines()


def test_the_table_has_every_overlay() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE) == [
        *("cpu-demo", "gpu", "multi-gpu", "leaderworkerset", "keda", "monitoring", "mtls", "gateway")
    ]
    assert len(overlays()) == 8


def test_figures_are_so() -> None:
    found = list(alerts(View("monitoring", checked_in("monitoring"))))
    pages = [each for each in found if each["labels"]["severity"] == "page"]
    assert len(pages) == 4
    assert f"has {len(found)} alerts, four of them with `severity: page`" in TEXT
    assert f"with {len(found)} alerts and two dashboards" in TEXT
    assert f"to {len(RULES)} rules of our own" in TEXT
    (pod,) = View("gpu", checked_in("gpu")).verifiers
    assert f"killed after {pod.spec['terminationGracePeriodSeconds']} s" in TEXT
    assert f"waits {pod.options['--grace']} s at most" in TEXT


def test_files_that_it_names_are_there() -> None:
    for name in re.findall(r"deploy/[\w./-]+", TEXT):
        if "certs" not in name:
            assert (ROOT / name.rstrip(".")).exists(), name


def test_modules_that_it_runs_are_there() -> None:
    for name in re.findall(r"python -m (tools\.\w+)", TEXT):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name


def test_labels_and_secrets_that_it_names_are_those_of_the_objects() -> None:
    rendered = json.dumps([checked_in(overlay) for overlay in overlays()])
    for name in (
        "forerun-verifier-tls",
        "forerun-token-keys",
        "forerun-gateway-tls",
        "forerun-hub",
        "forerun-authority",
    ):
        assert name in TEXT
        assert f'"{name}"' in rendered
    assert '"forerun/reaches-verifier": "true"' in rendered


def test_the_edges_command_can_be_read() -> None:
    (command,) = [line.split() for line in commands() if line.startswith("forerun edge")]
    assert callable(build_parser().parse_args(command[1:]).run)


def test_values_of_helm_are_values_of_the_chart() -> None:
    (command,) = [line for line in commands() if line.startswith("helm install")]
    known = yaml.safe_load((OBJECTS.parent / "values.yaml").read_text(encoding="utf-8"))
    named = [each.partition("=")[0] for each in re.findall(r"--set '?([^ ']+)", command)]
    assert named
    assert {each.partition(".")[0] for each in named} <= known.keys()


def test_a_manifest_is_made_as_it_says(tmp_path: Path) -> None:
    (command,) = [line for line in commands() if "tools.model_manifest" in line]
    words = command.partition(">")[0].replace("MODEL ", f"{ROOT / 'demo_models' / 'target'} ").split()
    made = subprocess.check_output([sys.executable, *words[1:]], cwd=ROOT, text=True)
    assert {each["path"] for each in json.loads(made)["files"]} >= {"config.json", "model.safetensors"}


@pytest.mark.kube
def test_the_overlay_of_ones_own_renders(tmp_path: Path) -> None:
    """The block as it stands, beside a clone, with a manifest."""
    block = TEXT[TEXT.index(OWN) :].partition("\n    kubectl apply -k my-verifiers")[0]
    mine, clone = tmp_path / "my-verifiers", tmp_path / "forerun"
    mine.mkdir()
    shutil.copytree(ROOT / "deploy", clone / "deploy", ignore=shutil.ignore_patterns("helm", "certs"))
    (mine / "kustomization.yaml").write_text(textwrap.dedent(f"    {block}"), encoding="utf-8")
    (mine / "manifest.json").write_text('{"files": ["mine"]}', encoding="utf-8")
    objects = list(
        yaml.safe_load_all(subprocess.check_output(["kubectl", "kustomize", str(mine)], text=True))
    )
    (model,) = [
        each
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "forerun-model"
    ]
    assert model["data"]["manifest.json"] == '{"files": ["mine"]}'
    assert "fetch_model.py" in model["data"]
    kinds = {each["kind"] for each in objects}
    assert {"Deployment", "Certificate", "ScaledObject", "PrometheusRule"} <= kinds
    images = {each["image"] for pod in View("mine", objects).pods for each in pod.containers}
    assert images == {"REGISTRY/forerun-verifier@sha256:..."}
