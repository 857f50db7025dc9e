"""The commands of deploy/README.md run, and its overlay renders."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from lab.tools.chart import CHART, ROOT, rendered
from tests.deploy.rules import View

PAGE = ROOT / "deploy" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorials" / "kubernetes.md").read_text(encoding="utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
OWN = "# my-verifiers/kustomization.yaml"


def commands() -> list[str]:
    """Its indented lines, each with those that continue it."""
    lines = "\n".join(re.findall(r"^    (.+)$", TEXT, re.MULTILINE)).replace("\\\n", " ")
    return lines.splitlines()


def test_values_of_the_chart_are_what_its_schema_takes() -> None:
    (command,) = [line.split() for line in commands() if line.startswith("helm install")]
    given = [each.strip("'").partition("=") for each in command if re.match(r"'?[a-z.]+=", each)]
    assert "image.repository" in {name for name, _, _ in given}
    for name, _, value in given:
        schema = SCHEMA
        for part in name.split("."):
            schema = schema["properties"][part]
        if pattern := schema.get("pattern"):
            assert re.search(pattern, value), name
        for each in value.strip("{}").split(","):
            assert each in schema.get("items", schema).get("enum", [each]), name


def test_only_what_has_no_digest_must_be_pinned_before_a_build() -> None:
    """The page asks for pins where it builds for Jetson alone."""
    pins = (ROOT / "deploy" / "docker" / "bases.env").read_text(encoding="utf-8")
    lacking = re.findall(r"^([A-Z0-9_]+)_DIGEST=\S+$", pins, re.MULTILINE)
    assert lacking == ["L4T_CUDA"]
    assert "pin.sh" not in TEXT.partition("## The overlays")[0] + TUTORIAL


@pytest.mark.kube
def test_the_documented_overlay_renders(tmp_path: Path) -> None:
    """The block as it stands, beside a clone, with hashes."""
    block = TEXT[TEXT.index(OWN) :].partition("\n    kubectl apply -k my-verifiers")[0]
    mine, clone = tmp_path / "my-verifiers", tmp_path / "forerun"
    mine.mkdir()
    shutil.copytree(ROOT / "deploy", clone / "deploy", ignore=shutil.ignore_patterns("helm", "certs"))
    (mine / "kustomization.yaml").write_text(textwrap.dedent(f"    {block}"), encoding="utf-8")
    (mine / "SHA256SUMS").write_text("mine\n", encoding="utf-8")
    objects = rendered(mine)
    (model,) = [
        each
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "forerun-model"
    ]
    assert model["data"] == {"MODEL": "ORGANISATION/REPOSITORY", "REVISION": "COMMIT", "SHA256SUMS": "mine\n"}
    kinds = {each["kind"] for each in objects}
    assert {"Deployment", "Certificate", "ScaledObject", "PrometheusRule"} <= kinds
    images = {each["image"] for pod in View("mine", objects).pods for each in pod.containers}
    assert images == {"REGISTRY/forerun-verifier@sha256:..."}
