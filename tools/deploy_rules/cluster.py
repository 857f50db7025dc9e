"""Rules for objects as the cluster keeps them: names, namespaces, budgets, roll-outs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.deploy_rules.view import VERIFIER, Object, Rule, View, title

WITHOUT_NAMESPACE = {"Namespace", "PriorityClass"}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RIGHTS = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
LEVELS = ("enforce", "audit", "warn")


def objects_stand_once(view: View) -> Iterator[str]:
    titles = [title(each) for each in view.objects]
    for name in sorted({each for each in titles if titles.count(each) > 1}):
        yield f"{name} stands twice"


def names_are_legal(view: View) -> Iterator[str]:
    for each in view.objects:
        if not NAME.fullmatch(each["metadata"]["name"]):
            yield f"{title(each)} has no legal name"


def objects_are_in_their_namespace(view: View) -> Iterator[str]:
    for each in view.objects:
        found = each["metadata"].get("namespace")
        if found != (None if each["kind"] in WITHOUT_NAMESPACE else "forerun"):
            yield f"{title(each)} is in the namespace {found}"


def the_namespace_is_restricted(view: View) -> Iterator[str]:
    labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in view.of("Namespace")}
    for level in LEVELS:
        if labels.get("forerun", {}).get(f"pod-security.kubernetes.io/{level}") != "restricted":
            yield f"pods that are not restricted pass ({level})"


def objects_have_the_common_labels(view: View) -> Iterator[str]:
    for each in view.objects:
        labels = each["metadata"].get("labels", {})
        for key in ("app.kubernetes.io/name", "app.kubernetes.io/part-of"):
            if labels.get(key) != "forerun":
                yield f"{title(each)} has no label {key}"


def nothing_has_rights(view: View) -> Iterator[str]:
    for each in view.of(*RIGHTS):
        yield f"{title(each)} gives rights at the cluster's API, which nothing here needs"


def no_secret_is_kept_here(view: View) -> Iterator[str]:
    for each in view.of("Secret"):
        yield f"{title(each)} is a secret in a repository"


def skipped_checks_have_a_reason(view: View) -> Iterator[str]:
    for name, notes in _annotations(view):
        for key, value in notes.items():
            check, _, reason = str(value).partition("=")
            if key.startswith("checkov.io/skip") and not (
                check.startswith("CKV") and len(reason.split()) >= 5
            ):
                yield f"{name} skips {value} without a reason"


def budgets_protect_verifiers(view: View) -> Iterator[str]:
    """Further ranks as well: a group that loses one of them begins anew."""
    budgets = view.of("PodDisruptionBudget")
    for pod in [pod for pod in view.pods if pod.component == VERIFIER]:
        if not any(pod in view.matching(each["spec"]["selector"]["matchLabels"]) for each in budgets):
            yield f"{pod.owner} has no disruption budget"
    for each in budgets:
        if each["spec"].get("maxUnavailable") != 1:
            yield f"{title(each)} lets more than one verifier go, or none"


def budgets_let_broken_pods_go(view: View) -> Iterator[str]:
    for each in view.of("PodDisruptionBudget"):
        if each["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{title(each)} lets a pod that never was ready hold up its node"


def selectors_match_templates(view: View) -> Iterator[str]:
    for each in view.of("Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        if not each["spec"]["selector"]["matchLabels"].items() <= labels.items():
            yield f"{title(each)} does not select its own pods"


def selectors_do_not_overlap(view: View) -> Iterator[str]:
    """A Deployment that selected the job's pods would count them as its own."""
    for each in view.of("Deployment"):
        others = [
            pod.owner
            for pod in view.matching(each["spec"]["selector"]["matchLabels"])
            if pod.owner != title(each)
        ]
        if others:
            yield f"{title(each)} selects pods of {others}"


def verifiers_are_never_one(view: View) -> Iterator[str]:
    """Whose only verifier goes has nowhere to go. An autoscaler says its own number."""
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in view.of("ScaledObject")}
    for each in view.of("Deployment", "LeaderWorkerSet"):
        replicas = each["spec"].get("replicas")
        if each["metadata"]["name"] in scaled:
            if replicas is not None:
                yield f"{title(each)} sets the number of pods that an autoscaler decides"
        elif (replicas or 0) < 2:
            yield f"{title(each)} has {replicas} pods"


def rollouts_replace_one_at_a_time(view: View) -> Iterator[str]:
    for each in view.of("Deployment"):
        rolling = each["spec"]["strategy"]["rollingUpdate"]
        if (rolling["maxSurge"], rolling["maxUnavailable"]) not in ((0, 1), (1, 0)):
            yield f"{title(each)} rolls out by {rolling}"
    for each in view.of("LeaderWorkerSet"):
        rolling = each["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        if rolling != {"maxUnavailable": 1, "maxSurge": 0}:
            yield f"{title(each)} rolls out by {rolling}"


def rollouts_stop_at_what_breaks(view: View) -> Iterator[str]:
    for each in view.of("Deployment"):
        startup = each["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
        loading = startup["periodSeconds"] * startup["failureThreshold"]
        if each["spec"].get("minReadySeconds", 0) < 1:
            yield f"{title(each)} goes on while new pods break"
        if each["spec"].get("progressDeadlineSeconds", 600) < loading:
            yield f"{title(each)} gives up before its target can be loaded"


def groups_begin_anew_as_a_whole(view: View) -> Iterator[str]:
    for each in view.of("LeaderWorkerSet"):
        group = each["spec"]["leaderWorkerTemplate"]
        if group["restartPolicy"] != "RecreateGroupOnPodRestart" or group["size"] < 2:
            yield f"{title(each)} leaves half a group standing"


def groups_find_their_leader(view: View) -> Iterator[str]:
    """By a Service of the group's name that its controller makes; one of ours would have ready pods alone."""
    for each in view.of("LeaderWorkerSet"):
        if view.has("Service", each["metadata"]["name"]):
            yield f"{title(each)} has the name of a Service, so its ranks never meet"


def ranks_are_alike(view: View) -> Iterator[str]:
    """All processes of a group run the same command with the same model and the same share of a GPU."""
    for each in view.of("LeaderWorkerSet"):
        group = each["spec"]["leaderWorkerTemplate"]
        one, other = (group[key]["spec"]["containers"][0] for key in ("leaderTemplate", "workerTemplate"))
        for key in ("image", "command", "args", "env", "resources", "volumeMounts"):
            if one[key] != other[key]:
                yield f"{title(each)}: leader and worker differ in {key}"


def jobs_end(view: View) -> Iterator[str]:
    for each in view.of("Job"):
        spec = each["spec"]
        bounded = "backoffLimit" in spec and "activeDeadlineSeconds" in spec
        if not bounded or spec["template"]["spec"].get("restartPolicy") != "Never":
            yield f"{title(each)} may go on for ever"


def models_are_checked_before_they_are_served(view: View) -> Iterator[str]:
    """Whoever mounts the model's volume waits for its check; and somebody fills it."""
    for pod in view.pods:
        if "target" not in pod.volumes or pod.component == "model":
            continue
        first = (pod.spec.get("initContainers") or [{}])[0]
        if "check" not in first.get("args", []):
            yield f"{pod.owner} serves whatever is on its volume"
        if not view.has("Job", "forerun-model"):
            yield f"{pod.owner} mounts a volume that nothing fills"


def priorities_are_below_the_clusters_own(view: View) -> Iterator[str]:
    for each in view.of("PriorityClass"):
        if not 0 < each["value"] < 1_000_000 or each.get("globalDefault"):
            yield f"{title(each)} has the value {each['value']}"


def _annotations(view: View) -> Iterator[tuple[str, Object]]:
    for each in view.objects:
        yield title(each), each["metadata"].get("annotations", {})
    for pod in view.pods:
        yield f"{pod.owner}'s pod", pod.template["metadata"].get("annotations", {})


RULES: tuple[Rule, ...] = (
    objects_stand_once,
    names_are_legal,
    objects_are_in_their_namespace,
    the_namespace_is_restricted,
    objects_have_the_common_labels,
    nothing_has_rights,
    no_secret_is_kept_here,
    skipped_checks_have_a_reason,
    budgets_protect_verifiers,
    budgets_let_broken_pods_go,
    selectors_match_templates,
    selectors_do_not_overlap,
    verifiers_are_never_one,
    rollouts_replace_one_at_a_time,
    rollouts_stop_at_what_breaks,
    groups_begin_anew_as_a_whole,
    groups_find_their_leader,
    ranks_are_alike,
    jobs_end,
    models_are_checked_before_they_are_served,
    priorities_are_below_the_clusters_own,
)
