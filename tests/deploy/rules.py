"""What our programs ask of every overlay. Standard tools hold the rest (`make manifests`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from cloud_verifier.server.lifecycle import FLUSH_TIME
from lab.tools.chart import OVERLAYS, Object, rendered

TORCHRUN_PATIENCE = 30.0  # seconds after SIGTERM, after which torchrun kills
ENDING_TIME = 3.0  # seconds that a process with a GPU may take to end
METADATA = "169.254.0.0/16"  # where clouds give a node its credentials
IN_PLAIN_TEXT = {"cpu-demo"}  # for trying out; only the cluster's own edges reach its pods
PORTS = {"grpc": "--listen", "http": "--http"}
PROBES = {"startupProbe": "/livez", "readinessProbe": "/readyz", "livenessProbe": "/livez"}


@cache
def checked(overlay: str) -> list[Object]:
    """The objects of an overlay. They are shared: change none."""
    return rendered(OVERLAYS / overlay)


def title(manifest: Object) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


@dataclass
class Pod:
    """A pod's template."""

    owner: str  # kind/name of what makes pods of it, and which template where there are two
    template: Object
    serves: bool  # whether edges reach it: a verifier that is not a further rank

    def __post_init__(self) -> None:
        self.spec: Any = self.template["spec"]
        self.containers: list[Any] = [*self.spec.get("initContainers", []), *self.spec["containers"]]
        self.main: Any = self.spec["containers"][0]
        self.volumes: dict[str, Object] = {each["name"]: each for each in self.spec.get("volumes", [])}
        words = (each.partition("=") for each in self.main.get("args", []) if each.startswith("--"))
        self.options: dict[str, str] = {name: value for name, _, value in words}
        self.labels: dict[str, str] = dict(self.template["metadata"]["labels"])
        if "LeaderWorkerSet" in self.owner:  # it adds the rank's index
            self.labels["leaderworkerset.sigs.k8s.io/worker-index"] = "0" if self.serves else "1"
        self.is_verifier = self.labels["app.kubernetes.io/component"] == "verifier"


@dataclass(frozen=True, slots=True)
class View:
    """All objects of one overlay."""

    overlay: str
    objects: list[Object]

    def of(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def has(self, kind: str, name: str) -> bool:
        return any(each["metadata"]["name"] == name for each in self.of(kind))

    @property
    def pods(self) -> list[Pod]:
        plain = self.of("Deployment", "Job")
        pods = [Pod(title(each), each["spec"]["template"], each["kind"] == "Deployment") for each in plain]
        for each in self.of("LeaderWorkerSet"):
            group = each["spec"]["leaderWorkerTemplate"]
            pods.append(Pod(f"{title(each)} leader", group["leaderTemplate"], serves=True))
            pods.append(Pod(f"{title(each)} worker", group["workerTemplate"], serves=False))
        return pods

    @property
    def verifiers(self) -> list[Pod]:
        """The pods that serve."""
        return [pod for pod in self.pods if pod.serves]

    def matching(self, selector: dict[str, str]) -> list[Pod]:
        return [pod for pod in self.pods if selector and selector.items() <= pod.labels.items()]

    def reached(self, pod: Pod, way: str) -> set[int | str]:
        """The ports that policies open for a pod, "ingress" or "egress"; "*" for a rule without ports."""
        ports = set[int | str]()
        for policy in self.of("NetworkPolicy"):
            if policy["spec"]["podSelector"].get("matchLabels", {}).items() <= pod.labels.items():
                for rule in policy["spec"].get(way, []):
                    ports |= {port["port"] for port in rule.get("ports", [])} or {"*"}
        return ports


def ports_are_those_listened_on(view: View) -> None:
    """Containers, probes, Services, monitors and routes name the ports of the program's options."""
    for pod in view.verifiers:
        listened = {name: int(pod.options[option].rpartition(":")[2]) for name, option in PORTS.items()}
        assert {each["name"]: each["containerPort"] for each in pod.main["ports"]} == listened
        for probe, path in PROBES.items():
            assert pod.main[probe]["httpGet"] == {"path": path, "port": "http"}
    services = {each["metadata"]["name"]: each for each in view.of("Service")}
    for each in services.values():
        selected = view.matching(each["spec"]["selector"])
        assert selected == view.verifiers, title(each)
        known = {(port["name"], port["containerPort"]) for pod in selected for port in pod.main["ports"]}
        assert {(port["targetPort"], port["port"]) for port in each["spec"]["ports"]} <= known
    for route in view.of("GRPCRoute"):
        for backend in (backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]):
            assert backend["port"] in [each["port"] for each in services[backend["name"]]["spec"]["ports"]]
    for monitor in view.of("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (read,) = [each for each in services.values() if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for port in read["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == ports


def what_is_named_is_there(view: View) -> None:
    """Files of options are mounted; volumes, accounts, priorities, issuers and targets are in the overlay."""
    for pod in view.pods:
        mounted = {mount["mountPath"] for mount in pod.main.get("volumeMounts", [])}
        for path in (value for value in pod.options.values() if value.startswith("/etc/")):
            assert any(path.startswith(f"{each}/") for each in mounted), path
        names = {mount["name"] for each in pod.containers for mount in each.get("volumeMounts", [])}
        assert names == pod.volumes.keys(), pod.owner
        for source in (source for each in pod.containers for source in each.get("envFrom", [])):
            assert view.has("ConfigMap", source["configMapRef"]["name"])
        for volume in pod.volumes.values():
            assert "configMap" not in volume or view.has("ConfigMap", volume["configMap"]["name"])
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or view.has("PersistentVolumeClaim", claim)
        assert view.has("ServiceAccount", pod.spec["serviceAccountName"])
        assert not pod.is_verifier or view.has("PriorityClass", pod.spec["priorityClassName"])
        if pod.is_verifier and "target" in pod.volumes:
            assert ".forerun-model" in pod.spec["initContainers"][0]["args"][0], "the job fills the volume"
            assert pod.volumes["target"]["persistentVolumeClaim"]["readOnly"] is True
    for each in view.of("Certificate"):
        assert view.has("Issuer", each["spec"]["issuerRef"]["name"])
    targets = [each["spec"]["scaleTargetRef"] for each in view.of("ScaledObject")]
    for each in view.of("BackendTrafficPolicy", "BackendTLSPolicy", "ClientTrafficPolicy"):
        targets += each["spec"]["targetRefs"]
    assert all(view.has(each["kind"], each["name"]) for each in targets)


def drains_are_not_cut_short(view: View) -> None:
    """The kubelet, torchrun and a roll-out wait longer than the verifier's own times."""
    for pod in (pod for pod in view.pods if pod.is_verifier):
        sleep = float(pod.main["lifecycle"]["preStop"]["exec"]["command"][1])
        assert sleep >= 5.0, "endpoints have not forgotten the pod"
        grace = float(pod.options["--grace"])
        drain, patience = grace + FLUSH_TIME + ENDING_TIME, pod.spec["terminationGracePeriodSeconds"]
        assert patience >= max(1.5 * (sleep + grace), sleep + drain), pod.owner
        if "torch.distributed.run" in pod.main["command"]:
            assert drain <= TORCHRUN_PATIENCE, pod.owner
    for each in view.of("Deployment"):
        pod = Pod(title(each), each["spec"]["template"], serves=True)
        load = pod.main["startupProbe"]["periodSeconds"] * pod.main["startupProbe"]["failureThreshold"]
        assert each["spec"]["progressDeadlineSeconds"] >= load


def gpus_and_ranks_fit(view: View) -> None:
    """A process for each GPU of torchrun's, and the same command for all ranks of a group."""
    for pod in (pod for pod in view.pods if pod.is_verifier):
        gpus = pod.main["resources"]["limits"].get("nvidia.com/gpu")
        assert (gpus is not None) == (pod.options.get("--device", "cpu") == "cuda"), pod.owner
        command = " ".join(pod.main["command"])
        is_parallel = "torch.distributed.run" in command
        assert is_parallel == ("--tensor-parallel" in pod.options), pod.owner
        processes = re.search(r"--nproc-per-node=(\d+)", command)
        assert not is_parallel or int(processes[1] if processes else 1) == int(gpus), pod.owner
    for each in view.of("LeaderWorkerSet"):
        group = each["spec"]["leaderWorkerTemplate"]
        one, other = (group[key]["spec"]["containers"][0] for key in ("leaderTemplate", "workerTemplate"))
        for key in ("image", "command", "args", "env", "resources", "volumeMounts"):
            assert one[key] == other[key]
        assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert not view.has("Service", each["metadata"]["name"]), "its controller makes one of this name"


def only_what_must_is_reached(view: View) -> None:
    """All traffic is denied first. Verifiers are reached by edges and Prometheus, and leave for DNS alone."""
    closed = [each["spec"] for each in view.of("NetworkPolicy") if each["metadata"]["name"] == "default-deny"]
    assert closed == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    between_ranks = {"*"} if view.of("LeaderWorkerSet") else set[str]()
    for pod in view.pods:
        leaves = {53} | between_ranks if pod.is_verifier else {53, 443}
        assert view.reached(pod, "egress") == leaves, pod.owner
        if pod.serves:
            assert view.reached(pod, "ingress") - between_ranks == {50051, 9464}
    for policy in view.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert all(peer["podSelector"]["matchLabels"] for peer in rule["from"])
        for rule in policy["spec"].get("egress", []):
            blocks = [peer["ipBlock"] for peer in rule.get("to", []) if "ipBlock" in peer]
            assert all(":" in block["cidr"] or METADATA in block["except"] for block in blocks)


def sessions_have_one_owner(view: View) -> None:
    """Edges are spoken to by mutual TLS, and one thing alone names a session's tenant."""
    is_plain = view.overlay in IN_PLAIN_TEXT
    for pod in view.verifiers:
        tls = {"--tls-cert", "--tls-key", "--tls-client-ca"}
        assert tls & pod.options.keys() == (set() if is_plain else tls)
        given = {"--tenant-header", "--tenant-certificate", "--token-keys"} & pod.options.keys()
        assert len(given) == (0 if is_plain else 1)
        assert "--tenant-header" not in given, "every client can send a header"
    for each in view.of("BackendTrafficPolicy"):
        hashed = each["spec"]["loadBalancer"]["consistentHash"]
        assert hashed == {"type": "Header", "header": {"name": "x-session-id"}}
    assert all(each["spec"]["tls"]["clientValidation"] for each in view.of("ClientTrafficPolicy"))


def sessions_have_somewhere_to_go(view: View) -> None:
    """Two verifiers at least; one goes at a time; an autoscaler is slow and takes silence for nothing."""
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in view.of("ScaledObject")}
    for each in view.of("Deployment", "LeaderWorkerSet"):
        replicas = each["spec"].get("replicas")
        assert replicas is None if each["metadata"]["name"] in scaled else replicas >= 2, title(each)
    assert [each["spec"]["maxUnavailable"] for each in view.of("PodDisruptionBudget")] == [1]
    for each in view.of("ScaledObject"):
        down = each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert [(policy["type"], policy["value"]) for policy in down["policies"]] == [("Pods", 1)]
        assert down["stabilizationWindowSeconds"] >= 300
        assert each["spec"]["minReplicaCount"] >= 2
        told = [trigger["metadata"].get("ignoreNullValues") for trigger in each["spec"]["triggers"]]
        assert "false" in told


def pods_are_restricted(view: View) -> None:
    """The pod security standard `restricted`, also in a LeaderWorkerSet, which no tool looks into."""
    for each in view.of("Namespace"):
        assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in view.pods:
        assert pod.spec["automountServiceAccountToken"] is False
        assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        kinds = {key for volume in pod.volumes.values() for key in volume}
        assert kinds <= {"name", "emptyDir", "configMap", "secret", "persistentVolumeClaim"}
        for container in pod.containers:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["runAsUser"] == 10001
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
            assert (context["allowPrivilegeEscalation"], context["privileged"]) == (False, False)


RULES: tuple[Callable[[View], None], ...] = (
    ports_are_those_listened_on, what_is_named_is_there, drains_are_not_cut_short, gpus_and_ranks_fit,
    only_what_must_is_reached, sessions_have_one_owner, sessions_have_somewhere_to_go, pods_are_restricted,
)  # fmt: skip
