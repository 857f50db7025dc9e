"""The overlay of deploy/README.md renders."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from lab.tools.chart import ROOT, rendered
from tests.deploy.rules import View

PAGE = ROOT / "deploy" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
OWN = "# my-verifiers/kustomization.yaml"


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
