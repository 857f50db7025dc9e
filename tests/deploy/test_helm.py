"""The Helm chart renders what Kustomize renders, and what its values say beyond that."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import HELM_PACKAGES, program
from tools.deploy_rules import RULES
from tools.deploy_rules.view import Object, View, title
from tools.helm_objects import OBJECTS, PLACE, checked_in, object_of, overlays, text_of

CHART = OBJECTS.parent
HELM_SHA256 = "8c375d1016b2c9754bad8da3ed07ce33c0f9af3bad8890e61737f5137be7396d"
OLDEST = "1.29.0"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
JOB_NAME = re.compile(r"-[0-9a-f]{8}$")
ADDONS = ("keda", "monitoring", "mtls")

pytestmark = pytest.mark.helm


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = program("helm")
    assert found is not None
    return subprocess.run([found, *arguments], text=True, capture_output=True, check=False)


def render(tmp_path: Path, namespace: str = "forerun", **values: Any) -> list[Object]:
    """The chart's objects with these values; the Job under the overlay's name for it."""
    done = attempt(tmp_path, namespace, **values)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
    for each in found:
        if each["kind"] == "Job":
            each["metadata"]["name"] = JOB_NAME.sub("", each["metadata"]["name"])
    return found


def attempt(tmp_path: Path, namespace: str = "forerun", **values: Any) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    where = ("--namespace", namespace, "--kube-version", OLDEST, "--values", str(path))
    return helm("template", "verifier", str(CHART), *where)


def by_title(objects: list[Object]) -> dict[str, Object]:
    return {title(each): each for each in objects}


def deployment(objects: list[Object]) -> Object:
    return by_title(objects)["Deployment/forerun-verifier"]


def pod_of(objects: list[Object]) -> Object:
    found: Object = deployment(objects)["spec"]["template"]["spec"]
    return found


def test_helm_is_the_one_that_is_known() -> None:
    """A repack by others: nothing else may come with its name. A Helm of the machine's own is its owner's."""
    found = Path(program("helm") or "").resolve()
    if HELM_PACKAGES.resolve() in found.parents:
        assert hashlib.sha256(found.read_bytes()).hexdigest() == HELM_SHA256
    assert helm("version", "--short").stdout.startswith("v3.")


def test_the_chart_is_in_order() -> None:
    done = helm("lint", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("profile", overlays())
def test_a_profile_is_its_overlay(profile: str, tmp_path: Path) -> None:
    found, wanted = (
        by_title(render(tmp_path, profile=profile, createNamespace=True)),
        by_title(checked_in(profile)),
    )
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert found[name] == each, name


def test_the_namespace_is_somebody_elses_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert "Namespace/forerun" not in by_title(render(tmp_path, profile="cpu-demo"))


@pytest.mark.parametrize("profile", overlays())
def test_another_namespace_is_named_everywhere(profile: str, tmp_path: Path) -> None:
    found = by_title(render(tmp_path, "inference", profile=profile, createNamespace=True))
    for name, each in by_title(checked_in(profile)).items():
        wanted = object_of(text_of(each), "inference")
        assert found[title(wanted)] == wanted, name
        assert wanted["metadata"].get("namespace") in (None, "inference")
    assert PLACE not in json.dumps(found)


def test_addons_bring_their_objects(tmp_path: Path) -> None:
    objects = render(
        tmp_path, profile="multi-gpu", addons=["keda", "monitoring", "mtls"], createNamespace=True
    )
    overlay_names = [name for each in ("keda", "monitoring", "mtls") for name in by_title(checked_in(each))]
    assert set(by_title(objects)) == set(overlay_names)
    assert "--tensor-parallel" in pod_of(objects)["containers"][0]["args"]
    mixed = View("mixed", objects)
    assert {name: list(rule(mixed)) for name, rule in RULES.items() if list(rule(mixed))} == {}


@pytest.mark.parametrize("profile", overlays())
def test_addons_bring_what_they_are_for_and_nothing_of_another_profile(profile: str, tmp_path: Path) -> None:
    """A Deployment beside the groups of a LeaderWorkerSet, for example, would be other verifiers."""
    addons = [each for each in ADDONS if (profile, each) != ("cpu-demo", "mtls")]
    both = render(tmp_path, profile=profile, addons=addons, createNamespace=True)
    own = [by_title(checked_in(each)).keys() - by_title(checked_in("gpu")).keys() for each in addons]
    assert by_title(both).keys() == by_title(checked_in(profile)).keys() | set[str]().union(*own)
    mixed = View(profile, both)
    assert {name: list(rule(mixed)) for name, rule in RULES.items() if list(rule(mixed))} == {}


def test_an_autoscaler_decides_the_number_alone(tmp_path: Path) -> None:
    assert "replicas" not in deployment(render(tmp_path, profile="gpu", addons=["keda"]))["spec"]
    assert deployment(render(tmp_path, profile="gpu", replicas=5))["spec"]["replicas"] == 5
    assert deployment(render(tmp_path, profile="gpu", replicas=0))["spec"]["replicas"] == 0


def test_an_image_is_set_for_every_container(tmp_path: Path) -> None:
    image = {
        "repository": "registry.internal:5000/team/forerun",
        "digest": DIGEST,
        "pullSecrets": [{"name": "r"}],
    }
    view = View("mine", render(tmp_path, profile="gpu", image=image))
    images = {each["image"] for pod in view.pods for each in pod.containers}
    assert images == {f"registry.internal:5000/team/forerun@{DIGEST}"}
    assert all(pod.spec["imagePullSecrets"] == [{"name": "r"}] for pod in view.pods)


def test_a_tag_alone_keeps_the_image(tmp_path: Path) -> None:
    view = View("mine", render(tmp_path, profile="cpu-demo", image={"tag": "0.2.0", "pullPolicy": "Never"}))
    assert [each["image"] for pod in view.pods for each in pod.containers] == ["forerun-verifier-cpu:0.2.0"]
    assert view.pods[0].main["imagePullPolicy"] == "Never"


@pytest.mark.parametrize("profile", ["gpu", "leaderworkerset"])
def test_what_is_set_of_verifiers_is_set_of_no_other_pod(profile: str, tmp_path: Path) -> None:
    limits = {"limits": {"cpu": "3", "nvidia.com/gpu": "1"}}
    chosen: Object = {"extraArgs": ["--slots=5"], "resources": limits, "nodeSelector": {"gpu": "h100"}}
    more: Object = {"runtimeClassName": "nvidia", "tolerations": [{"key": "spot", "operator": "Exists"}]}
    objects = render(tmp_path, profile=profile, **chosen, **more, tls={"secretName": "mine"})
    for pod in View(profile, objects).pods:
        is_job = pod.owner.startswith("Job/")
        assert ("--slots=5" in pod.main["args"]) != is_job
        assert (pod.main["resources"] == limits) != is_job
        assert (pod.spec.get("runtimeClassName") == "nvidia") != is_job
        assert (pod.spec.get("nodeSelector") == {"gpu": "h100"}) != is_job
        assert [each["key"] for each in pod.spec.get("tolerations", [])] == (
            [] if is_job else ["nvidia.com/gpu", "spot"]
        )
        assert (pod.volumes.get("tls", {}).get("secret", {}).get("secretName") == "mine") != is_job


def test_a_model_is_named_by_its_manifest(tmp_path: Path) -> None:
    files = [
        {"path": "config.json", "url": "https://models.internal/c", "sha256": "a" * 64, "size": 3_000_000_000}
    ]
    model = {
        "manifest": {"files": files},
        "storageClassName": "fast",
        "size": "1Ti",
        "accessModes": ["ReadWriteOnce"],
    }
    objects = by_title(render(tmp_path, profile="gpu", model=model))
    data = objects["ConfigMap/forerun-model"]["data"]
    assert json.loads(data["manifest.json"]) == {"files": files}
    assert "fetch_model.py" in data
    spec = objects["PersistentVolumeClaim/forerun-model"]["spec"]
    assert (spec["storageClassName"], spec["accessModes"]) == ("fast", ["ReadWriteOnce"])
    assert spec["resources"]["requests"]["storage"] == "1Ti"


def test_anything_else_is_merged_over_an_object(tmp_path: Path) -> None:
    overrides = {"Service/forerun-verifier": {"metadata": {"annotations": {"a": "b"}}}}
    found = by_title(render(tmp_path, profile="gpu", overrides=overrides))["Service/forerun-verifier"]
    assert found["metadata"].pop("annotations") == {"a": "b"}
    assert found == by_title(checked_in("gpu"))["Service/forerun-verifier"]


@pytest.mark.parametrize(
    ("values", "at_fault"),
    [
        ({"profile": "tpu"}, "profile"),
        ({"addons": ["gateway"]}, "addons"),
        ({"addons": ["keda", "keda"]}, "addons"),
        ({"replica": 3}, "replica"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": "3"}, "replicas"),
        ({"image": {"tag": "latest"}}, "image.tag"),
        ({"image": {"digest": "sha256:abc"}}, "image.digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "image.pullPolicy"),
        ({"image": {"repository": "Registry/Forerun"}}, "image.repository"),
        ({"extraArgs": ["slots=5"]}, "extraArgs"),
        ({"resources": {"gpu": 1}}, "resources"),
        ({"model": {"size": "many"}}, "model.size"),
        ({"model": {"accessModes": ["ReadOnlyMany"]}}, "model.accessModes"),
        ({"model": {"manifest": {"files": [{"path": "a.bin"}]}}}, "model.manifest.files"),
        ({"tls": {"secret": "x"}}, "tls"),
        ({"overrides": {"forerun-verifier": {}}}, "overrides"),
        ({"createNamespace": "yes"}, "createNamespace"),
    ],
)
def test_values_that_mean_nothing_are_refused(values: Object, at_fault: str, tmp_path: Path) -> None:
    done = attempt(tmp_path, **values)
    assert done.returncode != 0
    assert at_fault in done.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"profile": "keda", "replicas": 3}, "keda decides the number"),
        ({"addons": ["keda"], "replicas": 0}, "keda decides the number"),
        ({"profile": "cpu-demo", "addons": ["mtls"]}, "cpu-demo speaks plain text"),
        ({"overrides": {"Deployment/forerun-verfier": {}}}, "there is no Deployment/forerun-verfier here"),
        ({"overrides": {"Namespace/forerun": {}}}, "there is no Namespace/forerun here"),
    ],
)
def test_values_that_do_not_go_together_are_refused_by_a_sentence(
    values: Object, words: str, tmp_path: Path
) -> None:
    done = attempt(tmp_path, **values)
    assert done.returncode != 0
    assert words in done.stderr


MANIFEST = {"files": [{"path": "a.json", "url": "https://models.internal/a", "sha256": "a" * 64, "size": 1}]}


def test_what_changes_the_job_makes_another_one(tmp_path: Path) -> None:
    """A Job cannot be changed: an upgrade to the next image would fail."""
    changes: list[Object] = [
        {},
        {"image": {"tag": "0.2.0"}},
        {"model": {"manifest": MANIFEST}},
        {"overrides": {"Job/forerun-model": {"spec": {"backoffLimit": 2}}}},
    ]
    names = []
    for values in changes:
        found = yaml.load_all(attempt(tmp_path, profile="gpu", **values).stdout, Loader=yaml.CSafeLoader)
        names += [each["metadata"]["name"] for each in found if each and each["kind"] == "Job"]
    assert all(JOB_NAME.sub("", name) == "forerun-model" != name for name in names)
    assert len(set(names)) == len(changes)
    one, other = (attempt(tmp_path, profile="gpu", replicas=n).stdout for n in (1, 2))
    assert names[0] in one
    assert names[0] in other, "of the verifiers alone"


@pytest.mark.parametrize("profile", overlays())
def test_an_upgrade_changes_no_selector(profile: str) -> None:
    """What a Deployment selects can never be changed: these words stay for good, in every profile."""
    for each in View(profile, checked_in(profile)).of("Deployment"):
        assert each["spec"]["selector"] == {
            "matchLabels": {
                "app.kubernetes.io/name": "forerun",
                "app.kubernetes.io/component": "verifier",
            }
        }


def test_what_is_the_clusters_can_be_another_releases(tmp_path: Path) -> None:
    """Helm refuses a second owner."""
    whole = {each["kind"] for each in render(tmp_path, profile="gateway", addons=["keda", "monitoring"])}
    assert whole & {"PriorityClass", "Namespace", "ClusterRole"} == {"PriorityClass"}
    assert "PriorityClass" not in {
        each["kind"] for each in render(tmp_path, profile="gpu", createPriorityClass=False)
    }


@pytest.mark.parametrize("path", ["pytorch_model.bin", "../config.json", "/etc/x.json", "model.gguf", "a.pt"])
def test_a_manifest_of_other_files_is_refused(path: str, tmp_path: Path) -> None:
    file = {"path": path, "url": "https://models.internal/x", "sha256": "a" * 64, "size": 1}
    assert attempt(tmp_path, model={"manifest": {"files": [file]}}).returncode != 0


def told(tmp_path: Path, **values: Any) -> str:
    """What NOTES.txt says. Only an install shows it, so a copy of the chart has it as an object."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    (copy / "templates" / "NOTES.txt").rename(copy / "NOTES.txt")
    (copy / ".helmignore").unlink()
    template = 'kind: Told\ntext: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n'
    (copy / "templates" / "told.yaml").write_text(template, encoding="utf-8")
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    where = ("--kube-version", OLDEST, "--namespace", "inference", "--values", str(path))
    done = helm("template", "verifier", str(copy), *where, "--show-only", "templates/told.yaml")
    assert done.returncode == 0, done.stderr
    found: str = yaml.safe_load(done.stdout)["text"]
    return " ".join(found.split())


def test_it_says_what_to_look_at(tmp_path: Path) -> None:
    words = told(tmp_path, profile="gpu")
    assert "wait until the job forerun-model has filled their volume" in words
    assert "-l app.kubernetes.io/component=model" in words
    assert "No model was named" in words
    assert "need the secret forerun-verifier-tls with tls.crt, tls.key and ca.crt" in words
    assert "dns:///forerun-verifier.inference.svc:50051 if" in words


@pytest.mark.parametrize(
    ("values", "there", "not_there"),
    [
        ({"profile": "cpu-demo"}, "50051 in plain text (verifier.insecure) if", "secret"),
        ({"profile": "mtls"}, "cert-manager makes the secret", "need the secret"),
        ({"addons": ["mtls"]}, "cert-manager makes the secret", "need the secret"),
        ({"profile": "gateway"}, "secrets forerun-token-keys", "They need"),
        ({"tls": {"secretName": "mine"}, "model": {"manifest": MANIFEST}}, "the secret mine", "No model"),
    ],
)
def test_it_says_what_is_still_to_be_made(values: Object, there: str, not_there: str, tmp_path: Path) -> None:
    words = told(tmp_path, **values)
    assert there in words
    assert not_there not in words
