"""The commands of deploy/README.md run, and its overlay renders."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from forerun.cli import build_parser
from lab.tools.chart import ROOT, rendered
from tests.deploy.rules import View

PAGE = ROOT / "deploy" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
OWN = "# my-verifiers/kustomization.yaml"


def commands() -> list[str]:
    """Its indented lines, each with those that continue it."""
    lines = "\n".join(re.findall(r"^    (.+)$", TEXT, re.MULTILINE)).replace("\\\n", " ")
    return lines.splitlines()


def test_the_edges_command_can_be_read() -> None:
    (command,) = [line.split() for line in commands() if line.startswith("forerun edge")]
    assert callable(build_parser().parse_args(command[1:]).run)


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
