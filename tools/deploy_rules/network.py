"""Rules for who reaches whom: Services, network policies, TLS, the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.deploy_rules.view import MODEL, VERIFIER, Object, Pod, Rule, View, title

PROTO = Path(__file__).resolve().parents[2] / "proto" / "forerun" / "v1" / "verifier.proto"
METADATA = "169.254.0.0/16"  # where clouds tell a node its credentials
WORLD = "2000::/3"  # of IPv6 what is routed; clouds' metadata has private addresses there
SESSION_HEADER = "x-session-id"
IDENTITIES = {"--tenant-header", "--tenant-certificate", "--token-keys"}
IN_PLAIN_TEXT = {"cpu-demo"}
"""Overlays for trying out, whose pods only the cluster's own edges reach."""


def services_select_pods(view: View) -> Iterator[str]:
    for each in view.of("Service"):
        if not view.matching(each["spec"].get("selector", {})):
            yield f"{title(each)} selects no pod"


def services_select_only_what_serves(view: View) -> Iterator[str]:
    for each in view.of("Service"):
        for pod in view.matching(each["spec"].get("selector", {})):
            if not pod.serves:
                yield f"{title(each)} selects {pod.owner}, which does not listen"


def services_name_ports_of_their_pods(view: View) -> Iterator[str]:
    for each in view.of("Service"):
        for port in each["spec"]["ports"]:
            for pod in view.matching(each["spec"]["selector"]):
                found = {known["name"]: known["containerPort"] for known in pod.main.get("ports", [])}
                if found.get(port["targetPort"]) != port["port"]:
                    yield f"{title(each)}: {pod.owner} has no port {port['targetPort']} ({port['port']})"


def services_are_headless(view: View) -> Iterator[str]:
    """A virtual address would hand a session that comes back to any pod; and one scrape to one of them."""
    for each in view.of("Service"):
        if each["spec"].get("clusterIP") != "None" or each["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"{title(each)} has an address of its own"


def metrics_are_read_of_pods_that_are_not_ready(view: View) -> Iterator[str]:
    for each in view.of("Service"):
        wanted = each["metadata"]["name"].endswith("-metrics")
        if bool(each["spec"].get("publishNotReadyAddresses")) != wanted:
            yield f"{title(each)} publishes pods at the wrong time"


def all_is_denied_first(view: View) -> Iterator[str]:
    for each in view.of("NetworkPolicy"):
        spec = each["spec"]
        closed = spec["podSelector"] == {} and not spec.get("ingress") and not spec.get("egress")
        if closed and sorted(spec["policyTypes"]) == ["Egress", "Ingress"]:
            return
    yield "nothing denies what no policy allows"


def policies_apply_to_pods(view: View) -> Iterator[str]:
    for each in view.of("NetworkPolicy"):
        selector = each["spec"]["podSelector"].get("matchLabels", {})
        if selector and not view.matching(selector):
            yield f"{title(each)} applies to no pod"


def policies_name_their_types(view: View) -> Iterator[str]:
    """Kubernetes guesses them otherwise, and an empty list of rules then denies nothing."""
    for each in view.of("NetworkPolicy"):
        for key, kind in (("ingress", "Ingress"), ("egress", "Egress")):
            if each["spec"].get(key) and kind not in each["spec"]["policyTypes"]:
                yield f"{title(each)} has rules for {key} that do not count"


def nobody_is_let_in_unnamed(view: View) -> Iterator[str]:
    for each in view.of("NetworkPolicy"):
        for rule in each["spec"].get("ingress", []):
            for peer in rule.get("from") or [{}]:
                if not peer.get("podSelector", {}).get("matchLabels"):
                    yield f"{title(each)} lets in whoever comes from {peer or 'anywhere'}"


def verifiers_are_reached_where_they_should(view: View) -> Iterator[str]:
    for pod in view.verifiers:
        allowed = {port for policy, rule in _rules(view, pod, "ingress") for port in _ports(policy, rule)}
        if allowed - {"*"} != {50051, 9464}:
            yield f"{pod.owner} is reached on {sorted(map(str, allowed))}"


def health_is_for_the_kubelet(view: View) -> Iterator[str]:
    for pod in view.verifiers:
        for policy, rule in _rules(view, pod, "ingress"):
            if 50052 in _ports(policy, rule):
                yield f"{title(policy)} opens the health port of {pod.owner}"


def only_ranks_speak_freely(view: View) -> Iterator[str]:
    """A rule without ports is for the pods of one group, and stays within the namespace."""
    for each in view.of("NetworkPolicy"):
        for rule in [*each["spec"].get("ingress", []), *each["spec"].get("egress", [])]:
            peers = [*(rule.get("from") or []), *(rule.get("to") or [])]
            inside = all("podSelector" in peer and "namespaceSelector" not in peer for peer in peers)
            if not rule.get("ports") and not (view.of("LeaderWorkerSet") and inside and peers):
                yield f"{title(each)} has a rule without ports"


def verifiers_leave_for_names_alone(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.component != VERIFIER:
            continue
        allowed = {port for policy, rule in _rules(view, pod, "egress") for port in _ports(policy, rule)}
        if allowed - {"*"} != {53} or ("*" in allowed and not view.of("LeaderWorkerSet")):
            yield f"{pod.owner} may leave by {sorted(map(str, allowed))}"


def only_the_model_job_leaves_the_cluster(view: View) -> Iterator[str]:
    for each in view.of("NetworkPolicy"):
        for rule in each["spec"].get("egress", []):
            blocks = [peer["ipBlock"] for peer in rule.get("to") or [] if "ipBlock" in peer]
            applied = view.matching(each["spec"]["podSelector"].get("matchLabels", {}))
            if blocks and ({pod.component for pod in applied} != {MODEL} or _ports(each, rule) != {443}):
                yield f"{title(each)} lets {[pod.owner for pod in applied]} leave the cluster"
            if any(_has_private(block) for block in blocks):
                yield f"{title(each)} reaches the cloud's metadata"


def the_model_job_reaches_its_registry(view: View) -> Iterator[str]:
    for pod in view.pods:
        if pod.component != MODEL:
            continue
        allowed = {port for policy, rule in _rules(view, pod, "egress") for port in _ports(policy, rule)}
        if allowed != {53, 443}:
            yield f"{pod.owner} leaves by {sorted(map(str, allowed))}"
        blocks = [
            peer["ipBlock"]["cidr"]
            for _, rule in _rules(view, pod, "egress")
            for peer in rule.get("to") or []
            if "ipBlock" in peer
        ]
        if not any(":" in block for block in blocks):
            yield f"{pod.owner} reaches no registry by IPv6, which names are looked up for first"


def edges_are_spoken_to_by_tls(view: View) -> Iterator[str]:
    for pod in view.verifiers:
        wanted = {"--tls-cert", "--tls-key", "--tls-client-ca"}
        given = wanted & pod.options.keys()
        if given != (set() if view.overlay in IN_PLAIN_TEXT else wanted):
            yield f"{pod.owner} has {sorted(given)} of TLS"


def one_thing_says_whose_a_session_is(view: View) -> Iterator[str]:
    """Where two could disagree, an attacker chooses. A header is never it: anybody can send one."""
    for pod in view.verifiers:
        given = IDENTITIES & pod.options.keys()
        if len(given) != (0 if view.overlay in IN_PLAIN_TEXT else 1) or "--tenant-header" in given:
            yield f"{pod.owner} takes tenants from {sorted(given)}"


def certificates_are_for_the_service(view: View) -> Iterator[str]:
    mounted = {pod.volumes["tls"]["secret"]["secretName"] for pod in view.verifiers if "tls" in pod.volumes}
    for each in view.of("Certificate"):
        if (
            each["spec"]["secretName"] in mounted
            and "forerun-verifier.forerun.svc" not in each["spec"]["dnsNames"]
        ):
            yield f"{title(each)} is not for the name that edges ask for"


def certificates_have_an_issuer(view: View) -> Iterator[str]:
    for each in view.of("Certificate"):
        if not view.has("Issuer", each["spec"]["issuerRef"]["name"]):
            yield f"{title(each)} is signed by nobody"


def certificates_are_renewed_in_time(view: View) -> Iterator[str]:
    for each in view.of("Certificate"):
        duration, before = (int(each["spec"][key].removesuffix("h")) for key in ("duration", "renewBefore"))
        if not 24 * 7 <= before <= duration / 2:
            yield f"{title(each)} holds {duration} h and is renewed {before} h before"


def certificates_are_for_one_purpose(view: View) -> Iterator[str]:
    for each in view.of("Certificate"):
        usages = {"server auth", "client auth"} & set(each["spec"].get("usages", []))
        if not each["spec"].get("isCA") and len(usages) != 1:
            yield f"{title(each)} is for {sorted(usages)}"


def routes_lead_to_services(view: View) -> Iterator[str]:
    services = {each["metadata"]["name"]: each for each in view.of("Service")}
    for each in view.of("GRPCRoute"):
        for rule in each["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                ports = [port["port"] for port in services.get(backend["name"], _NOTHING)["spec"]["ports"]]
                if backend["port"] not in ports:
                    yield f"{title(each)} leads to {backend['name']}:{backend['port']}, which is not here"


def routes_are_for_the_edges_service(view: View) -> Iterator[str]:
    text = PROTO.read_text(encoding="utf-8")
    for each in view.of("GRPCRoute"):
        for service in {
            m["method"]["service"] for rule in each["spec"]["rules"] for m in rule.get("matches", [{}])
        }:
            if "package forerun.v1;" not in text or f"service {service.rpartition('.')[2]} " not in text:
                yield f"{title(each)} is for {service}, which is no service for edges"


def policies_of_the_gateway_have_a_target(view: View) -> Iterator[str]:
    kinds = ("BackendTrafficPolicy", "BackendTLSPolicy", "ClientTrafficPolicy")
    for each in view.of(*kinds):
        for target in each["spec"]["targetRefs"]:
            if not view.has(target["kind"], target["name"]):
                yield f"{title(each)} is for {target['kind']}/{target['name']}, which is not here"


def the_gateway_keeps_sessions_together(view: View) -> Iterator[str]:
    for each in view.of("GRPCRoute"):
        policies = [
            policy["spec"]["loadBalancer"]
            for policy in view.of("BackendTrafficPolicy")
            if {"group": "gateway.networking.k8s.io", "kind": each["kind"], "name": each["metadata"]["name"]}
            in policy["spec"]["targetRefs"]
        ]
        wanted = {"type": "Header", "header": {"name": SESSION_HEADER}}
        if [policy.get("consistentHash") for policy in policies] != [wanted]:
            yield f"{title(each)} sends a session that comes back to any verifier"


def the_gateway_asks_for_certificates(view: View) -> Iterator[str]:
    asked = {
        target["name"]
        for policy in view.of("ClientTrafficPolicy")
        for target in policy["spec"]["targetRefs"]
        if policy["spec"].get("tls", {}).get("clientValidation", {}).get("caCertificateRefs")
    }
    for each in view.of("Gateway"):
        if each["metadata"]["name"] not in asked:
            yield f"{title(each)} lets anybody in"


def _has_private(block: Object) -> bool:
    """Whether addresses that are not routed in the world are among a block's."""
    if ":" in block["cidr"]:
        return bool(block["cidr"] != WORLD)
    return METADATA not in block.get("except", [])


_NOTHING: Object = {"spec": {"ports": []}}


def _rules(view: View, pod: Pod, which: str) -> Iterator[tuple[Object, Object]]:
    """Policies that apply to a pod, with each of their rules."""
    for policy in view.of("NetworkPolicy"):
        selector = policy["spec"]["podSelector"].get("matchLabels", {})
        if selector.items() <= pod.labels.items():
            for rule in policy["spec"].get(which, []):
                yield policy, rule


def _ports(policy: Object, rule: Object) -> set[int | str]:
    """Of a rule; "*" if it names none."""
    return {port["port"] for port in rule.get("ports", [])} or {"*"}


RULES: tuple[Rule, ...] = (
    services_select_pods,
    services_select_only_what_serves,
    services_name_ports_of_their_pods,
    services_are_headless,
    metrics_are_read_of_pods_that_are_not_ready,
    all_is_denied_first,
    policies_apply_to_pods,
    policies_name_their_types,
    nobody_is_let_in_unnamed,
    verifiers_are_reached_where_they_should,
    health_is_for_the_kubelet,
    only_ranks_speak_freely,
    verifiers_leave_for_names_alone,
    only_the_model_job_leaves_the_cluster,
    the_model_job_reaches_its_registry,
    edges_are_spoken_to_by_tls,
    one_thing_says_whose_a_session_is,
    certificates_are_for_the_service,
    certificates_have_an_issuer,
    certificates_are_renewed_in_time,
    certificates_are_for_one_purpose,
    routes_lead_to_services,
    routes_are_for_the_edges_service,
    policies_of_the_gateway_have_a_target,
    the_gateway_keeps_sessions_together,
    the_gateway_asks_for_certificates,
)
