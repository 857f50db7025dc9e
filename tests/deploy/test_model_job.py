"""The Job that fills a model's volume and the wait of the verifiers, run as the cluster runs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.tools.chart import ROOT
from tests.support.hub import REPOSITORY, Hub, serving_hub

FOLDER = ROOT / "deploy" / "kubernetes" / "components" / "model"
WEIGHTS = b"safetensors" * 1000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "chat_template.jinja": b"{{ x }}"}

pytestmark = pytest.mark.skipif(
    shutil.which("hf", path=str(Path(sys.executable).parent)) is None,
    reason="needs the command of huggingface_hub",
)


def container(file: str, *path: str) -> Any:
    """A container of a manifest, in the first document of its kind."""
    documents = yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8"))
    (pod,) = [each["spec"]["template"]["spec"] for each in documents if "template" in each.get("spec", {})]
    return pod[path[0]][0]


JOB = container("job.yaml", "containers")
WAIT = container("verifier-patch.yaml", "initContainers")


@dataclass
class Volume:
    """A volume, and the model that the ConfigMap names."""

    folder: Path
    hub: Hub
    model: str = REPOSITORY
    sums: str = ""

    def start(self, container: Any) -> subprocess.Popen[str]:
        told = {each["name"]: each["value"] for each in container.get("env", [])}
        path = f"{Path(sys.executable).parent}:{os.defpath}"
        named = {"MODEL": self.model, "REVISION": "main", "SHA256SUMS": self.sums}
        home = {"HOME": str(self.folder.parent), "PATH": path}
        return subprocess.Popen(
            [*container["command"], *container["args"]],
            cwd=self.folder,
            env={**home, **named, **told, **self.hub.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def fill(self) -> tuple[int, str]:
        """Run the Job to its end. Return its status and its log."""
        with self.start(JOB) as job:
            log = job.communicate(timeout=60)[0]
        return job.returncode, log

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.is_file() and path.name[0] != "."}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    (tmp_path / "target").mkdir()
    with serving_hub() as hub:
        hub.files.update(FILES, **{"pytorch_model.bin": b"code", "modeling.py": b"code"})
        yield Volume(tmp_path / "target", hub)


def sums(files: dict[str, bytes]) -> str:
    """What sha256sum prints."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())


def test_a_model_comes_without_formats_that_hold_code(volume: Volume) -> None:
    status, log = volume.fill()
    assert status == 0, log
    assert volume.names == FILES.keys()
    assert (volume.folder / "model.safetensors").read_bytes() == WEIGHTS
    with volume.start(WAIT) as pod:
        assert pod.wait(60) == 0


def test_a_file_of_another_hash_leaves_verifiers_waiting(volume: Volume) -> None:
    volume.sums = sums({**FILES, "config.json": b"[]"})
    status, log = volume.fill()
    assert status != 0
    assert "config.json" in log
    with volume.start(WAIT) as pod:
        assert pod.stdout is not None
        assert "kubectl logs" in pod.stdout.readline()
        pod.terminate()
        assert pod.wait(60) == 143, "the first process of a pod hears no signal that it does not ask for"


@pytest.mark.parametrize("model", ["", "organisation/none"])
def test_a_model_that_is_not_there_is_named(model: str, volume: Volume) -> None:
    volume.model = model
    status, log = volume.fill()
    assert status != 0
    assert "organisation/repository" in log or "organisation/none" in log
    assert not volume.names
