"""Rules for pods as a whole: who they are, what they may see of their node, how they go."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.deploy_rules.view import Pod, Rule, View, title

USER = 10001
KINDS_OF_VOLUMES = {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}
TORCHRUN_PATIENCE = 30.0  # seconds after SIGTERM, after which torchrun kills
FLUSH_TIME = 2.0  # seconds after its grace in which a verifier's last messages get away; a test compares
LOOK_TIME = 1.0  # seconds between a first pod's looks at whether another was told to go; a test compares
ENDING_TIME = 3.0  # seconds that a process with a GPU may take to end, all said and done


def no_host_namespaces(view: View) -> Iterator[str]:
    for pod in view.pods:
        for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            if pod.spec.get(key):
                yield f"{pod.owner} has {key}"


def pods_are_nobody(view: View) -> Iterator[str]:
    for pod in view.pods:
        context = pod.spec.get("securityContext", {})
        wanted = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
        if {key: context.get(key) for key in wanted} != wanted:
            yield f"{pod.owner} runs as {context}, not as user and group {USER}"


def pods_have_seccomp(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.owner} has not the runtime's seccomp profile"


def pods_have_no_token(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.owner} gets a token of the cluster's API"


def accounts_exist_and_have_no_token(view: View) -> Iterator[str]:
    accounts = {each["metadata"]["name"]: each for each in view.of("ServiceAccount")}
    for pod in view.pods:
        name = pod.spec.get("serviceAccountName", "default")
        if name not in accounts:
            yield f"{pod.owner} runs as {name}, which is not here"
        elif accounts[name].get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount/{name} gives tokens"


def pods_get_no_service_links(view: View) -> Iterator[str]:
    """Variables of every Service of the namespace; one could be named like a variable that we read."""
    for pod in view.pods:
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner} gets service links"


def volumes_are_of_harmless_kinds(view: View) -> Iterator[str]:
    for pod in view.pods:
        for name, volume in pod.volumes.items():
            if not volume.keys() - {"name"} <= KINDS_OF_VOLUMES:
                yield f"{pod.owner}: volume {name} is {sorted(volume.keys() - {'name'})}"


def scratch_volumes_have_a_limit(view: View) -> Iterator[str]:
    for pod in view.pods:
        for name, volume in pod.volumes.items():
            if "emptyDir" in volume and not (volume["emptyDir"] or {}).get("sizeLimit"):
                yield f"{pod.owner}: volume {name} can fill its node"


def secrets_are_for_the_group_alone(view: View) -> Iterator[str]:
    for pod in view.pods:
        for name, volume in pod.volumes.items():
            if "secret" in volume and volume["secret"].get("defaultMode") != 0o440:
                yield f"{pod.owner}: others than the group may read the secret of volume {name}"


def mounts_and_volumes_match(view: View) -> Iterator[str]:
    for pod in view.pods:
        mounted = {mount["name"] for each in pod.containers for mount in each.get("volumeMounts", [])}
        for name in sorted(mounted ^ pod.volumes.keys()):
            yield f"{pod.owner}: volume {name} is mounted without being there, or the other way round"


def what_volumes_name_exists(view: View) -> Iterator[str]:
    """Secrets are never here: whoever applies the overlay makes them, or cert-manager does."""
    for pod in view.pods:
        for volume in pod.volumes.values():
            if "configMap" in volume and not view.has("ConfigMap", volume["configMap"]["name"]):
                yield f"{pod.owner} mounts ConfigMap/{volume['configMap']['name']}, which is not here"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and not view.has("PersistentVolumeClaim", claim):
                yield f"{pod.owner} mounts PersistentVolumeClaim/{claim}, which is not here"


def verifiers_have_a_priority(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.component != "verifier":
            continue
        if not view.has("PriorityClass", pod.spec.get("priorityClassName", "")):
            yield f"{pod.owner} has the priority {pod.spec.get('priorityClassName')}, which is not here"


def verifiers_have_time_to_drain(view: View) -> Iterator[str]:
    """preStop and --grace, and half as much again: for the last messages and the process' own end."""
    for pod in view.pods:
        if pod.component != "verifier":
            continue
        grace = _pre_stop(pod) + float(pod.options["--grace"])
        needed = max(1.5 * grace, grace + FLUSH_TIME + ENDING_TIME)
        if pod.spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{pod.owner} is killed before its drain is over; it needs {needed} s"


def rollouts_wait_for_the_model(view: View) -> Iterator[str]:
    """No rollout has failed while its first pod still may wait for the model, or load it."""
    for each in view.of("Deployment"):
        spec = each["spec"]["template"]["spec"]
        waits = [arg for first in spec.get("initContainers", []) for arg in first.get("args", [])]
        wait = sum(float(arg.partition("=")[2]) for arg in waits if arg.startswith("--wait="))
        probe = spec["containers"][0]["startupProbe"]
        if (
            each["spec"].get("progressDeadlineSeconds", 600)
            < wait + probe["periodSeconds"] * probe["failureThreshold"]
        ):
            yield f"{title(each)} is called a failed rollout while its pods may still wait"


def torchrun_lets_ranks_drain(view: View) -> Iterator[str]:
    """From a further pod's SIGTERM on, too, of which the first one hears a little later."""
    for pod in view.pods:
        if "torch.distributed.run" not in pod.main["command"]:
            continue
        heard_after = 0.0 if pod.serves else LOOK_TIME
        if heard_after + float(pod.options["--grace"]) + FLUSH_TIME + ENDING_TIME > TORCHRUN_PATIENCE:
            yield f"{pod.owner} drains longer than torchrun waits"


def torchrun_and_tensor_parallel_go_together(view: View) -> Iterator[str]:
    for pod in view.pods:
        started = "torch.distributed.run" in pod.main["command"]
        if started != ("--tensor-parallel" in pod.options):
            yield f"{pod.owner} has one of torchrun and --tensor-parallel"
        if started and _processes(pod) != int(pod.main["resources"]["limits"]["nvidia.com/gpu"]):
            yield f"{pod.owner} starts another number of processes than it has GPUs"
        if started and "--warm-graphs" in pod.options:
            yield f"{pod.owner} makes graphs that steps of several processes do not use"


def verifiers_stop_after_endpoints_know(view: View) -> Iterator[str]:
    """Further ranks, too: where all of a group go, the first of them to hear it has the group drain."""
    for pod in view.pods:
        if pod.component == "verifier" and _pre_stop(pod) < 5.0:
            yield f"{pod.owner} drains before endpoints have forgotten it"


def verifiers_spread(view: View) -> Iterator[str]:
    for pod in view.verifiers:
        constraints = pod.spec.get("topologySpreadConstraints", [])
        if not constraints:
            yield f"{pod.owner} may have all its pods on one node"
        for each in constraints:
            if pod not in view.matching(each["labelSelector"]["matchLabels"]):
                yield f"{pod.owner} spreads other pods than its own over {each['topologyKey']}"


def templates_have_the_common_labels(view: View) -> Iterator[str]:
    for pod in view.pods:
        for key in ("app.kubernetes.io/name", "app.kubernetes.io/part-of", "app.kubernetes.io/component"):
            if not pod.labels.get(key):
                yield f"{pod.owner} has no label {key}"


def _pre_stop(pod: Pod) -> float:
    """Seconds that the kubelet sleeps before SIGTERM; 0 if it does not."""
    hook = pod.main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    return float(hook[1]) if hook[:1] == ["sleep"] else 0.0


def _processes(pod: Pod) -> int:
    found = re.search(r"--nproc-per-node=(\d+)", " ".join(pod.main["command"]))
    return int(found[1]) if found else 1


RULES: tuple[Rule, ...] = (
    no_host_namespaces,
    pods_are_nobody,
    pods_have_seccomp,
    pods_have_no_token,
    accounts_exist_and_have_no_token,
    pods_get_no_service_links,
    volumes_are_of_harmless_kinds,
    scratch_volumes_have_a_limit,
    secrets_are_for_the_group_alone,
    mounts_and_volumes_match,
    what_volumes_name_exists,
    verifiers_have_a_priority,
    verifiers_have_time_to_drain,
    rollouts_wait_for_the_model,
    torchrun_lets_ranks_drain,
    torchrun_and_tensor_parallel_go_together,
    verifiers_stop_after_endpoints_know,
    verifiers_spread,
    templates_have_the_common_labels,
)
