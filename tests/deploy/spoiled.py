"""For every rule an overlay, and edits of it that the rule must complain of."""

from __future__ import annotations

import copy
from typing import Any

from tools.deploy_rules.view import Object, title

Edit = tuple[str, str, Any]
"""Kind/name, the way to a place in that object ("" for the object), and what stands there then."""

GONE = object()
"""In place of a value: nothing stands there."""

TWICE = object()
"""In place of an object: it stands there twice."""

D = "Deployment/forerun-verifier"
J = "Job/forerun-model"
L = "LeaderWorkerSet/forerun-group"
S = "Service/forerun-verifier"
M = "Service/forerun-verifier-metrics"
K = "ScaledObject/forerun-verifier"
POD = "spec.template.spec"
C = f"{POD}.containers.0"
CONTEXT = f"{C}.securityContext"
DENY = "NetworkPolicy/default-deny"
EDGES = "NetworkPolicy/edges-to-verifier"
REGISTRY = "NetworkPolicy/model-from-registry"
CERTIFICATE = "Certificate/forerun-verifier"
RULE = "spec.groups.0.rules.0"
DASHBOARD = '{"title": "x", "panels": [{"targets": [{"expr": "forerun_x"}]}], "templating": {"list": []}}'
ANYBODY: Object = {"ports": [{"port": 50051, "protocol": "TCP"}]}


def spoil(objects: list[Object], edit: Edit) -> None:
    """Carry out one edit. Raises `LookupError` if there is no such object or place."""
    name, way, value = edit
    (found,) = [each for each in objects if title(each) == name]
    if not way:
        _whole(objects, found, value)
        return
    *path, last = way.split(".")
    place: Any = found
    for step in path:
        place = place[_step(place, step)]
    if value is GONE:
        del place[_step(place, last)]
    elif isinstance(place, list) and last == "+":
        place.append(copy.deepcopy(value))
    else:
        place[_step(place, last)] = copy.deepcopy(value)


def _whole(objects: list[Object], found: Object, value: Any) -> None:
    if value is GONE:
        objects.remove(found)
    elif value is TWICE:
        objects.append(copy.deepcopy(found))
    else:
        found.clear()
        found.update(copy.deepcopy(value))


def _step(place: Any, step: str) -> Any:
    """A slash in a key is written as it is, a dot as ~."""
    return int(step) if isinstance(place, list) else step.replace("~", ".")


def extra(kind: str, name: str) -> Edit:
    """One more object, in place of a policy that its rule does not look at."""
    return DENY, "", {"kind": kind, "metadata": {"name": name, "namespace": "forerun"}}


SPOILED: dict[str, tuple[str, list[Edit]]] = {
    # cluster
    "objects_stand_once": ("gpu", [(S, "", TWICE)]),
    "names_are_legal": ("gpu", [(S, "metadata.name", "Verifier_1")]),
    "objects_are_in_their_namespace": ("gpu", [(S, "metadata.namespace", GONE)]),
    "the_namespace_is_restricted": (
        "gpu",
        [("Namespace/forerun", "metadata.labels.pod-security~kubernetes~io/enforce", "baseline")],
    ),
    "objects_have_the_common_labels": ("gpu", [(S, "metadata.labels", GONE)]),
    "nothing_has_rights": ("gpu", [extra("RoleBinding", "admin")]),
    "no_secret_is_kept_here": ("gpu", [extra("Secret", "forerun-verifier-tls")]),
    "skipped_checks_have_a_reason": ("gpu", [(D, "metadata.annotations.checkov~io/skip1", "CKV_K8S_43=no")]),
    "budgets_protect_verifiers": (
        "leaderworkerset",
        [
            (
                "PodDisruptionBudget/forerun-verifier",
                "spec.selector.matchLabels.leaderworkerset~sigs~k8s~io/worker-index",
                "0",
            )
        ],
    ),
    "budgets_let_broken_pods_go": (
        "gpu",
        [("PodDisruptionBudget/forerun-verifier", "spec.unhealthyPodEvictionPolicy", GONE)],
    ),
    "selectors_match_templates": ("gpu", [(D, "spec.selector.matchLabels.a", "b")]),
    "selectors_do_not_overlap": (
        "gpu",
        [(D, "spec.selector.matchLabels", {"app.kubernetes.io/name": "forerun"})],
    ),
    "verifiers_are_never_one": ("gpu", [(D, "spec.replicas", 1)]),
    "rollouts_replace_one_at_a_time": ("gpu", [(D, "spec.strategy.rollingUpdate.maxUnavailable", "50%")]),
    "rollouts_stop_at_what_breaks": ("gpu", [(D, "spec.progressDeadlineSeconds", 60)]),
    "groups_begin_anew_as_a_whole": (
        "leaderworkerset",
        [(L, "spec.leaderWorkerTemplate.restartPolicy", "None")],
    ),
    "groups_find_their_leader": ("leaderworkerset", [(L, "metadata.name", "forerun-verifier")]),
    "ranks_are_alike": (
        "leaderworkerset",
        [(L, "spec.leaderWorkerTemplate.workerTemplate.spec.containers.0.args.+", "--slots=1")],
    ),
    "jobs_end": ("gpu", [(J, "spec.activeDeadlineSeconds", GONE)]),
    "models_are_checked_before_they_are_served": ("gpu", [(D, f"{POD}.initContainers", GONE)]),
    "priorities_are_below_the_clusters_own": (
        "gpu",
        [("PriorityClass/forerun-verifier", "value", 2_000_000_000)],
    ),
    # pods
    "no_host_namespaces": ("gpu", [(D, f"{POD}.hostIPC", True)]),
    "pods_are_nobody": ("gpu", [(J, f"{POD}.securityContext.runAsUser", 0)]),
    "pods_have_seccomp": ("gpu", [(J, f"{POD}.securityContext.seccompProfile.type", "Unconfined")]),
    "pods_have_no_token": ("gpu", [(D, f"{POD}.automountServiceAccountToken", GONE)]),
    "accounts_exist_and_have_no_token": (
        "gpu",
        [("ServiceAccount/forerun-model", "automountServiceAccountToken", True)],
    ),
    "pods_get_no_service_links": ("gpu", [(D, f"{POD}.enableServiceLinks", GONE)]),
    "volumes_are_of_harmless_kinds": (
        "gpu",
        [(D, f"{POD}.volumes.+", {"name": "x", "hostPath": {"path": "/"}})],
    ),
    "scratch_volumes_have_a_limit": ("gpu", [(D, f"{POD}.volumes.+", {"name": "x", "emptyDir": {}})]),
    "secrets_are_for_the_group_alone": (
        "gpu",
        [(D, f"{POD}.volumes.+", {"name": "x", "secret": {"secretName": "y"}})],
    ),
    "mounts_and_volumes_match": ("gpu", [(D, f"{C}.volumeMounts.+", {"name": "x", "mountPath": "/x"})]),
    "what_volumes_name_exists": ("gpu", [("ConfigMap/forerun-model", "", GONE)]),
    "verifiers_have_a_priority": ("gpu", [("PriorityClass/forerun-verifier", "metadata.name", "other")]),
    "verifiers_have_time_to_drain": ("gpu", [(D, f"{POD}.terminationGracePeriodSeconds", 30)]),
    "rollouts_wait_for_the_model": ("gpu", [(D, "spec.progressDeadlineSeconds", 1800)]),
    "torchrun_lets_ranks_drain": ("multi-gpu", [(D, f"{C}.args.+", "--grace=60")]),
    "torchrun_and_tensor_parallel_go_together": (
        "multi-gpu",
        [(D, f"{C}.resources.limits.nvidia~com/gpu", "4")],
    ),
    "verifiers_stop_after_endpoints_know": (
        "leaderworkerset",
        [(L, "spec.leaderWorkerTemplate.workerTemplate.spec.containers.0.lifecycle", GONE)],
    ),
    "verifiers_spread": ("gpu", [(D, f"{POD}.topologySpreadConstraints", GONE)]),
    "templates_have_the_common_labels": (
        "gpu",
        [(J, "spec.template.metadata.labels.app~kubernetes~io/part-of", GONE)],
    ),
    # containers
    "capabilities_are_dropped": ("gpu", [(J, f"{CONTEXT}.capabilities.add", ["SYS_ADMIN"])]),
    "nobody_gains_privileges": ("gpu", [(D, f"{CONTEXT}.allowPrivilegeEscalation", GONE)]),
    "containers_are_nobody": ("gpu", [(D, f"{POD}.initContainers.0.securityContext.runAsUser", 0)]),
    "containers_have_seccomp": ("gpu", [(D, f"{CONTEXT}.seccompProfile", GONE)]),
    "roots_are_read_only": ("gpu", [(D, f"{CONTEXT}.readOnlyRootFilesystem", False)]),
    "little_may_be_written": ("gpu", [(D, f"{C}.volumeMounts.+", {"name": "tmp", "mountPath": "/var"})]),
    "verifiers_only_read_their_model": (
        "gpu",
        [
            (
                D,
                f"{POD}.volumes.+",
                {"name": "target", "persistentVolumeClaim": {"claimName": "forerun-model"}},
            )
        ],
    ),
    "resources_are_bounded": ("gpu", [(D, f"{C}.resources.limits.memory", GONE)]),
    "requests_are_within_limits": ("gpu", [(D, f"{C}.resources.requests.memory", "49Gi")]),
    "gpus_are_whole": ("gpu", [(D, f"{C}.resources.requests.nvidia~com/gpu", "2")]),
    "gpu_options_fit_the_resources": ("cpu-demo", [(D, f"{C}.args.+", "--device=cuda")]),
    "images_have_a_version": ("gpu", [(D, f"{C}.image", "forerun-verifier:latest")]),
    "pods_have_one_image": ("gpu", [(D, f"{C}.image", "forerun-verifier:0.2.0")]),
    "images_are_pulled_anew": ("gpu", [(D, f"{C}.imagePullPolicy", "IfNotPresent")]),
    "variables_hold_no_secrets": ("gpu", [(D, f"{C}.env.+", {"name": "HF_TOKEN", "value": "x"})]),
    "variables_stand_once": ("gpu", [(D, f"{C}.env.+", {"name": "HOME", "value": "/tmp"})]),
    "nothing_is_fetched_behind_ones_back": (
        "gpu",
        [(D, f"{C}.env.+", {"name": "HF_HUB_OFFLINE", "value": "0"})],
    ),
    "caches_are_where_may_be_written": ("gpu", [(D, f"{C}.env.+", {"name": "HOME", "value": "/root"})]),
    "options_exist": ("gpu", [(D, f"{C}.args.+", "--batch-size=8")]),
    "options_stand_once": ("gpu", [(D, f"{C}.args.+", "--grace=30")]),
    "files_named_are_mounted": ("gpu", [(D, f"{C}.args.+", "--tls-cert=/etc/ssl/cert.pem")]),
    "ports_are_those_listened_on": ("gpu", [(D, f"{C}.args.+", "--metrics=0.0.0.0:9465")]),
    "ports_need_no_privilege": ("gpu", [(D, f"{C}.ports.0.hostPort", 50051)]),
    "probes_ask_their_own_service": ("gpu", [(D, f"{C}.livenessProbe.grpc.service", "readiness")]),
    "only_what_serves_is_probed": ("gpu", [(J, f"{C}.livenessProbe", {"exec": {"command": ["true"]}})]),
    "probes_are_patient": ("gpu", [(D, f"{C}.livenessProbe.failureThreshold", 1)]),
    # network
    "services_select_pods": ("gpu", [(S, "spec.selector.app~kubernetes~io/component", "server")]),
    "services_select_only_what_serves": (
        "gpu",
        [(S, "spec.selector", {"app.kubernetes.io/name": "forerun"})],
    ),
    "services_name_ports_of_their_pods": ("gpu", [(S, "spec.ports.0.targetPort", "http")]),
    "services_are_headless": ("gpu", [(S, "spec.clusterIP", GONE)]),
    "metrics_are_read_of_pods_that_are_not_ready": ("gpu", [(M, "spec.publishNotReadyAddresses", GONE)]),
    "all_is_denied_first": ("gpu", [(DENY, "", GONE)]),
    "policies_apply_to_pods": ("gpu", [(EDGES, "spec.podSelector.matchLabels.a", "b")]),
    "policies_name_their_types": ("gpu", [(REGISTRY, "spec.policyTypes", ["Ingress"])]),
    "nobody_is_let_in_unnamed": ("gpu", [(EDGES, "spec.ingress.+", ANYBODY)]),
    "verifiers_are_reached_where_they_should": ("gpu", [(EDGES, "spec.ingress.0.ports.0.port", 50061)]),
    "health_is_for_the_kubelet": (
        "gpu",
        [(EDGES, "spec.ingress.0.ports.+", {"port": 50052, "protocol": "TCP"})],
    ),
    "only_ranks_speak_freely": ("gpu", [(EDGES, "spec.ingress.0.ports", GONE)]),
    "verifiers_leave_for_names_alone": ("gpu", [(REGISTRY, "spec.podSelector", {})]),
    "only_the_model_job_leaves_the_cluster": ("gpu", [(REGISTRY, "spec.egress.0.to.0.ipBlock.except", GONE)]),
    "the_model_job_reaches_its_registry": ("gpu", [(REGISTRY, "", GONE)]),
    "edges_are_spoken_to_by_tls": ("gpu", [(D, f"{C}.args", ["--listen=0.0.0.0:50051"])]),
    "one_thing_says_whose_a_session_is": ("gpu", [(D, f"{C}.args.+", "--tenant-header=x-tenant")]),
    "certificates_are_for_the_service": ("mtls", [(CERTIFICATE, "spec.dnsNames", ["localhost"])]),
    "certificates_have_an_issuer": ("mtls", [("Issuer/forerun-authority", "", GONE)]),
    "certificates_are_renewed_in_time": ("mtls", [(CERTIFICATE, "spec.renewBefore", "1h")]),
    "certificates_are_for_one_purpose": (
        "mtls",
        [(CERTIFICATE, "spec.usages", ["server auth", "client auth"])],
    ),
    "routes_lead_to_services": (
        "gateway",
        [("GRPCRoute/forerun-verifier", "spec.rules.0.backendRefs.0.port", 50061)],
    ),
    "routes_are_for_the_edges_service": (
        "gateway",
        [("GRPCRoute/forerun-verifier", "spec.rules.0.matches.0.method.service", "forerun.v1.AdminService")],
    ),
    "policies_of_the_gateway_have_a_target": (
        "gateway",
        [("ClientTrafficPolicy/forerun-edges", "spec.targetRefs.0.name", "edges")],
    ),
    "the_gateway_keeps_sessions_together": (
        "gateway",
        [("BackendTrafficPolicy/forerun-verifier", "spec.loadBalancer", {"type": "RoundRobin"})],
    ),
    "the_gateway_asks_for_certificates": (
        "gateway",
        [("ClientTrafficPolicy/forerun-edges", "spec.tls.clientValidation", GONE)],
    ),
    # observing
    "monitors_find_their_service": (
        "monitoring",
        [("ServiceMonitor/forerun-verifier", "spec.endpoints.0.port", "http")],
    ),
    "monitors_look_here": (
        "monitoring",
        [("ServiceMonitor/forerun-verifier", "spec.namespaceSelector", {"any": True})],
    ),
    "monitors_have_bounds": ("monitoring", [("ServiceMonitor/forerun-verifier", "spec.sampleLimit", GONE)]),
    "alerts_ask_for_metrics_that_exist": (
        "monitoring",
        [("PrometheusRule/forerun", f"{RULE}.expr", "forerun_queue_length > 1")],
    ),
    "alerts_ask_for_something": ("monitoring", [("PrometheusRule/forerun", f"{RULE}.expr", "vector(1)")]),
    "alerts_say_what_to_do": ("monitoring", [("PrometheusRule/forerun", f"{RULE}.annotations", GONE)]),
    "alerts_have_names_of_their_own": (
        "monitoring",
        [("PrometheusRule/forerun", f"{RULE}.alert", "TargetDown")],
    ),
    "alerts_are_enough": ("monitoring", [("PrometheusRule/forerun", "spec.groups", [])]),
    "dashboards_ask_for_metrics_that_exist": (
        "monitoring",
        [("ConfigMap/forerun-dashboard-fleet", "data.fleet~json", DASHBOARD)],
    ),
    "dashboards_are_found": (
        "monitoring",
        [("ConfigMap/forerun-dashboard-fleet", "metadata.labels.grafana_dashboard", GONE)],
    ),
    "autoscalers_watch_waiting_and_sessions": ("keda", [(K, "spec.triggers.0.type", "cpu")]),
    "autoscalers_ask_for_metrics_that_exist": (
        "keda",
        [(K, "spec.triggers.0.metadata.query", "sum(forerun_gpu_use)")],
    ),
    "autoscalers_go_down_slowly": (
        "keda",
        [
            (
                K,
                "spec.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds",
                60,
            )
        ],
    ),
    "autoscalers_do_not_take_silence_for_rest": (
        "keda",
        [(K, "spec.triggers.1.metadata.ignoreNullValues", GONE)],
    ),
    "autoscalers_have_a_target": ("keda", [(K, "spec.scaleTargetRef.name", "verifier")]),
}
