"""Rules for single containers: what they may do, what they get, what they are told."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from forerun.cli import build_parser
from tools.deploy_rules.pods import USER
from tools.deploy_rules.view import MODEL, Object, Pod, Rule, View

UNITS = {"": Fraction(1), "m": Fraction(1, 1000), "Mi": Fraction(2**20), "Gi": Fraction(2**30)}
WRITABLE = {"/tmp", "/dev/shm"}
SECRET_NAMES = re.compile(r"TOKEN|PASSWORD|SECRET|CREDENTIAL|(^|_)KEY($|_)")
IMAGE = re.compile(r"[a-z0-9./-]+(:\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})")

PROBES = {"startupProbe": "startup", "readinessProbe": "readiness", "livenessProbe": "liveness"}


def _all(view: View) -> Iterator[tuple[Pod, Object, str]]:
    for pod in view.pods:
        for each in pod.containers:
            yield pod, each, f"{pod.owner} {each['name']}"


def capabilities_are_dropped(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        if container.get("securityContext", {}).get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name} has capabilities"


def nobody_gains_privileges(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged") is not False:
            yield f"{name} can gain privileges"


def containers_are_nobody(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        context = container.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") != USER:
            yield f"{name} runs as {context.get('runAsUser')}"


def containers_have_seccomp(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        if container.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name} has not the runtime's seccomp profile"


def roots_are_read_only(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{name} may write its root"


def little_may_be_written(view: View) -> Iterator[str]:
    for pod, container, name in _all(view):
        allowed = WRITABLE | ({"/models/target"} if pod.component == MODEL else set())
        for mount in container.get("volumeMounts", []):
            if not mount.get("readOnly") and mount["mountPath"] not in allowed:
                yield f"{name} may write {mount['mountPath']}"


def verifiers_only_read_their_model(view: View) -> Iterator[str]:
    for pod in view.pods:
        claim = pod.volumes.get("target", {}).get("persistentVolumeClaim")
        if claim and pod.component != MODEL and claim.get("readOnly") is not True:
            yield f"{pod.owner} has its model writable"


def resources_are_bounded(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        resources = container.get("resources", {})
        for which in ("requests", "limits"):
            for what in ("cpu", "memory", "ephemeral-storage"):
                if what not in resources.get(which, {}):
                    yield f"{name} has no {which} of {what}"


def requests_are_within_limits(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        resources = container.get("resources", {})
        for what, asked in resources.get("requests", {}).items():
            if amount(asked) > amount(resources.get("limits", {}).get(what, asked)):
                yield f"{name} asks for more {what} than it may have"


def gpus_are_whole(view: View) -> Iterator[str]:
    """A device is asked for and limited by the same number, or the cluster refuses the pod."""
    for _, container, name in _all(view):
        resources = container.get("resources", {})
        asked, most = (resources.get(each, {}).get("nvidia.com/gpu") for each in ("requests", "limits"))
        if asked != most:
            yield f"{name} asks for {asked} GPUs and may have {most}"


def gpu_options_fit_the_resources(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.component == MODEL:
            continue
        has = "nvidia.com/gpu" in pod.main.get("resources", {}).get("limits", {})
        if has != (pod.options.get("--device", "cpu") == "cuda"):
            yield f"{pod.owner} has a GPU and does not use it, or the other way round"


def images_have_a_version(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        if not IMAGE.fullmatch(container["image"]):
            yield f"{name} has the image {container['image']}, which is not one version"


def pods_have_one_image(view: View) -> Iterator[str]:
    for pod in view.pods:
        images = {each["image"] for each in pod.containers}
        if len(images) > 1:
            yield f"{pod.owner} mixes {sorted(images)}"


def images_are_pulled_anew(view: View) -> Iterator[str]:
    """Whoever may use a node's images must be allowed to pull them. Another policy is explained."""
    for pod, container, name in _all(view):
        reasons = pod.template["metadata"].get("annotations", {}).values()
        explained = any(each.startswith("CKV_K8S_15=") for each in reasons)
        if container.get("imagePullPolicy") != "Always" and not explained:
            yield f"{name} takes any image that the node has"


def variables_hold_no_secrets(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        for each in container.get("env", []):
            if "valueFrom" in each or SECRET_NAMES.search(each["name"]):
                yield f"{name} gets {each['name']} by its environment; mount a file"
        if container.get("envFrom"):
            yield f"{name} gets whole maps as its environment"


def variables_stand_once(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        names = [each["name"] for each in container.get("env", [])]
        if len(names) > len(set(names)):
            yield f"{name} has a variable twice"


def nothing_is_fetched_behind_ones_back(view: View) -> Iterator[str]:
    for pod in view.pods:
        values = {each["name"]: each.get("value") for each in pod.main.get("env", [])}
        if pod.component != MODEL and {values.get("HF_HUB_OFFLINE"), values.get("TRANSFORMERS_OFFLINE")} != {
            "1"
        }:
            yield f"{pod.owner} may ask a hub"


def caches_are_where_may_be_written(view: View) -> Iterator[str]:
    for pod in view.pods:
        for each in pod.main.get("env", []):
            if each["name"] in ("HOME", "TRITON_CACHE_DIR") and not each["value"].startswith("/tmp"):
                yield f"{pod.owner}: {each['name']} is {each['value']}, which is read-only"


@cache
def known_options() -> frozenset[str]:
    """Of `forerun verify`."""
    actions = build_parser()._actions
    commands = next(each for each in actions if isinstance(each, argparse._SubParsersAction)).choices
    return frozenset(name for action in commands["verify"]._actions for name in action.option_strings)


def options_exist(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.component == MODEL:
            continue
        for option in sorted(pod.options.keys() - known_options()):
            yield f"{pod.owner}: forerun verify has no option {option}"


def options_stand_once(view: View) -> Iterator[str]:
    for pod in view.pods:
        names = [each.partition("=")[0] for each in pod.main.get("args", [])]
        for name in sorted({each for each in names if names.count(each) > 1}):
            yield f"{pod.owner} is told {name} twice"


def files_named_are_mounted(view: View) -> Iterator[str]:
    for pod in view.pods:
        mounted = [mount["mountPath"] for mount in pod.main.get("volumeMounts", [])]
        for option, value in pod.options.items():
            if value.startswith("/etc/") and not any(value.startswith(f"{each}/") for each in mounted):
                yield f"{pod.owner}: {option} names {value}, which nothing mounts"


def ports_are_those_listened_on(view: View) -> Iterator[str]:
    for pod in view.verifiers:
        told = {each["name"]: each["containerPort"] for each in pod.main["ports"]}
        options = {"grpc": "--listen", "health": "--health", "metrics": "--metrics"}
        listened = {name: int(pod.options[option].rpartition(":")[2]) for name, option in options.items()}
        if told != listened:
            yield f"{pod.owner} listens on {listened} and says {told}"


def ports_need_no_privilege(view: View) -> Iterator[str]:
    for _, container, name in _all(view):
        for each in container.get("ports", []):
            if (
                each["containerPort"] < 1024
                or "hostPort" in each
                or not re.fullmatch(r"[a-z-]{1,15}", each["name"])
            ):
                yield f"{name} has the port {each}"


def probes_ask_their_own_service(view: View) -> Iterator[str]:
    """Not over TLS, which the kubelet does not speak with a certificate, so on the health port."""
    for pod in view.verifiers:
        health = int(pod.options["--health"].rpartition(":")[2])
        for probe, service in PROBES.items():
            if pod.main.get(probe, {}).get("grpc") != {"port": health, "service": service}:
                yield f"{pod.owner}: {probe} does not ask {service} on {health}"


def only_what_serves_is_probed(view: View) -> Iterator[str]:
    for pod, container, name in _all(view):
        if (container is not pod.main or not pod.serves) and container.keys() & PROBES.keys():
            yield f"{name} is probed and serves nobody"


def probes_are_patient(view: View) -> Iterator[str]:
    """Minutes to load, seconds to be left alone, and a minute until it is killed: longer than a step."""
    for pod in view.verifiers:
        periods = {
            probe: pod.main[probe]["periodSeconds"] * pod.main[probe]["failureThreshold"] for probe in PROBES
        }
        if periods["startupProbe"] < 300 or periods["livenessProbe"] < 60 or periods["readinessProbe"] > 10:
            yield f"{pod.owner} is given {periods} seconds"


def amount(quantity: str | int) -> Fraction:
    """A Kubernetes quantity as a number. Raises `KeyError` for a unit that nothing here uses."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]
    return Fraction(number) * UNITS[unit]


RULES: tuple[Rule, ...] = (
    capabilities_are_dropped,
    nobody_gains_privileges,
    containers_are_nobody,
    containers_have_seccomp,
    roots_are_read_only,
    little_may_be_written,
    verifiers_only_read_their_model,
    resources_are_bounded,
    requests_are_within_limits,
    gpus_are_whole,
    gpu_options_fit_the_resources,
    images_have_a_version,
    pods_have_one_image,
    images_are_pulled_anew,
    variables_hold_no_secrets,
    variables_stand_once,
    nothing_is_fetched_behind_ones_back,
    caches_are_where_may_be_written,
    options_exist,
    options_stand_once,
    files_named_are_mounted,
    ports_are_those_listened_on,
    ports_need_no_privilege,
    probes_ask_their_own_service,
    only_what_serves_is_probed,
    probes_are_patient,
)
