"""The Helm chart renders what Kustomize renders, and what its values say beyond that."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.tools.chart import CHART, PLACE, Object, overlays, text_of, write
from tests.conftest import program
from tests.deploy.rules import RULES, View, checked, title

OLDEST = "1.29.0"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
JOB_NAME = re.compile(r"-[0-9a-f]{8}$")
ADDONS = ("keda", "monitoring", "mtls")
SUMS = f"{'a' * 64}  config.json\n{'b' * 64}  model.safetensors\n"
MODEL = {"repository": "organisation/repository", "revision": "v1", "sha256sums": SUMS}

pytestmark = [pytest.mark.helm, pytest.mark.kube]


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as `make chart` writes it."""
    copy = Path(shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / "forerun-verifier"))
    write(copy)
    return copy


def helm(*arguments: str, values: str = "") -> subprocess.CompletedProcess[str]:
    path = program("helm")
    assert path is not None
    return subprocess.run([path, *arguments], input=values, text=True, capture_output=True, check=False)


def render(chart: Path, namespace: str = "forerun", **values: Any) -> list[Object]:
    """The chart's objects with these values; the Job under the overlay's name for it."""
    done = attempt(chart, namespace, **values)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
    for each in objects:
        if each["kind"] == "Job":
            each["metadata"]["name"] = JOB_NAME.sub("", each["metadata"]["name"])
    return objects


def attempt(chart: Path, namespace: str = "forerun", **values: Any) -> subprocess.CompletedProcess[str]:
    where = ("--namespace", namespace, "--kube-version", OLDEST, "--values", "-")
    return helm("template", "verifier", str(chart), *where, values=json.dumps(values))


def by_title(objects: list[Object]) -> dict[str, Object]:
    return {title(each): each for each in objects}


def test_the_chart_is_in_order(chart: Path) -> None:
    done = helm("lint", str(chart))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("profile", overlays())
def test_a_profile_is_its_overlay(profile: str, chart: Path) -> None:
    rendered_objects, wanted = (
        by_title(render(chart, profile=profile, createNamespace=True)),
        by_title(checked(profile)),
    )
    assert rendered_objects.keys() == wanted.keys()
    for name, each in wanted.items():
        assert rendered_objects[name] == each, name


@pytest.mark.parametrize("profile", overlays())
def test_another_namespace_is_named_everywhere(profile: str, chart: Path) -> None:
    objects = by_title(render(chart, "inference", profile=profile, createNamespace=True))
    for name, each in by_title(checked(profile)).items():
        wanted = yaml.safe_load(text_of(each).replace(PLACE, "inference"))
        assert objects[title(wanted)] == wanted, name
        assert wanted["metadata"].get("namespace") in (None, "inference")
    assert PLACE not in json.dumps(objects)


@pytest.mark.parametrize("profile", overlays())
def test_addons_bring_what_they_are_for_and_nothing_of_another_profile(profile: str, chart: Path) -> None:
    """A Deployment beside the groups of a LeaderWorkerSet, for example, would be other verifiers."""
    addons = [each for each in ADDONS if (profile, each) != ("cpu-demo", "mtls")]
    both = render(chart, profile=profile, addons=addons, createNamespace=True)
    own = [by_title(checked(each)).keys() - by_title(checked("gpu")).keys() for each in addons]
    assert by_title(both).keys() == by_title(checked(profile)).keys() | set[str]().union(*own)
    mixed = View(profile, both)
    for rule in RULES:
        rule(mixed)


def test_an_image_is_set_for_every_container(chart: Path) -> None:
    image = {
        "repository": "registry.internal:5000/team/forerun",
        "digest": DIGEST,
        "pullSecrets": [{"name": "r"}],
    }
    view = View("mine", render(chart, profile="gpu", image=image))
    images = {each["image"] for pod in view.pods for each in pod.containers}
    assert images == {f"registry.internal:5000/team/forerun@{DIGEST}"}
    assert all(pod.spec["imagePullSecrets"] == [{"name": "r"}] for pod in view.pods)


def test_a_model_is_named_by_its_repository(chart: Path) -> None:
    model = {**MODEL, "storageClassName": "fast", "size": "1Ti", "accessModes": ["ReadWriteOnce"]}
    objects = by_title(render(chart, profile="gpu", model={**model, "endpoint": "https://hub.internal"}))
    assert objects["ConfigMap/forerun-model"]["data"] == {
        "MODEL": "organisation/repository",
        "REVISION": "v1",
        "SHA256SUMS": SUMS,
        "HF_ENDPOINT": "https://hub.internal",
    }
    spec = objects["PersistentVolumeClaim/forerun-model"]["spec"]
    assert (spec["storageClassName"], spec["accessModes"]) == ("fast", ["ReadWriteOnce"])
    assert spec["resources"]["requests"]["storage"] == "1Ti"


@pytest.mark.parametrize(
    ("values", "at_fault"),
    [
        ({"profile": "tpu"}, "profile"),
        ({"replica": 3}, "replica"),
        ({"replicas": -1}, "replicas"),
        ({"image": {"tag": "latest"}}, "image.tag"),
        ({"image": {"digest": "sha256:abc"}}, "image.digest"),
        ({"image": {"repository": "Registry/Forerun"}}, "image.repository"),
        ({"extraArgs": ["slots=5"]}, "extraArgs"),
        ({"model": {"sha256sums": f"{SUMS}{'a' * 64}  pytorch_model.bin\n"}}, "model.sha256sums"),
        ({"model": {"sha256sums": f"{SUMS}{'a' * 64}  ../config.json\n"}}, "model.sha256sums"),
        ({"profile": "keda", "replicas": 3}, "keda decides the number"),
        ({"profile": "cpu-demo", "addons": ["mtls"]}, "cpu-demo speaks plain text"),
        ({"overrides": {"Deployment/forerun-verfier": {}}}, "there is no Deployment/forerun-verfier here"),
    ],
)
def test_values_that_mean_nothing_or_do_not_go_together_are_refused(
    values: Object, at_fault: str, chart: Path
) -> None:
    done = attempt(chart, **values)
    assert done.returncode != 0
    assert at_fault in done.stderr


def test_a_change_of_the_job_renames_it(chart: Path) -> None:
    """A Job cannot be changed: an upgrade to the next image would fail."""
    changes: list[Object] = [
        {},
        {"image": {"tag": "0.2.0"}},
        {"model": MODEL},
        {"overrides": {"Job/forerun-model": {"spec": {"backoffLimit": 2}}}},
    ]
    names = []
    for values in changes:
        objects = yaml.load_all(attempt(chart, profile="gpu", **values).stdout, Loader=yaml.CSafeLoader)
        names += [each["metadata"]["name"] for each in objects if each and each["kind"] == "Job"]
    assert all(JOB_NAME.sub("", name) == "forerun-model" != name for name in names)
    assert len(set(names)) == len(changes)
    one, other = (attempt(chart, profile="gpu", replicas=n).stdout for n in (1, 2))
    assert names[0] in one
    assert names[0] in other, "of the verifiers alone"
