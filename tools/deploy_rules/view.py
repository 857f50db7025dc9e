"""Rendered objects as rules look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Object = dict[str, Any]

MODEL = "model"
VERIFIER = "verifier"
COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's template, and what makes pods of it."""

    owner: str  # kind/name, and which template where there are two
    template: Object
    serves: bool  # whether edges reach it: a verifier that is not a further rank of one

    @property
    def spec(self) -> Object:
        found: Object = self.template["spec"]
        return found

    @property
    def labels(self) -> dict[str, str]:
        """Those that it will have; the leader's index is LeaderWorkerSet's own doing."""
        found: dict[str, str] = dict(self.template["metadata"].get("labels", {}))
        if "LeaderWorkerSet" in self.owner:
            found["leaderworkerset.sigs.k8s.io/worker-index"] = "0" if self.serves else "1"
        return found

    @property
    def component(self) -> str:
        return self.labels.get(COMPONENT, "")

    @property
    def containers(self) -> list[Object]:
        """Of all kinds."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def main(self) -> Object:
        found: Object = self.spec["containers"][0]
        return found

    @property
    def options(self) -> dict[str, str]:
        """Of the main container's arguments: `--name=value`, or `--name`."""
        parts = (each.partition("=") for each in self.main.get("args", []) if each.startswith("--"))
        return {name: value for name, _, value in parts}

    @property
    def volumes(self) -> dict[str, Object]:
        return {each["name"]: each for each in self.spec.get("volumes", [])}


@dataclass(frozen=True)  # no slots: cached_property keeps its value in the instance
class View:
    """All objects of one overlay."""

    overlay: str
    objects: list[Object]

    def of(self, *kinds: str) -> list[Object]:
        """In the order in which they are rendered."""
        return [each for each in self.objects if each["kind"] in kinds]

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.of(kind)}

    def has(self, kind: str, name: str) -> bool:
        return name in self.names(kind)

    @cached_property
    def pods(self) -> list[Pod]:
        return [pod for each in self.objects for pod in _pods_of(each)]

    @cached_property
    def verifiers(self) -> list[Pod]:
        """Those that serve."""
        return [pod for pod in self.pods if pod.serves]

    def matching(self, selector: dict[str, str]) -> list[Pod]:
        """Pods that have all these labels; an empty selector has none."""
        return [pod for pod in self.pods if selector and selector.items() <= pod.labels.items()]


Rule = Callable[[View], Iterator[str]]


def title(found: Object) -> str:
    """What an object is called in a complaint."""
    return f"{found['kind']}/{found['metadata']['name']}"


def _pods_of(found: Object) -> Iterator[Pod]:
    if found["kind"] in ("Deployment", "Job"):
        template = found["spec"]["template"]
        yield Pod(title(found), template, serves=found["kind"] == "Deployment")
    elif found["kind"] == "LeaderWorkerSet":
        group = found["spec"]["leaderWorkerTemplate"]
        yield Pod(f"{title(found)} leader", group["leaderTemplate"], serves=True)
        yield Pod(f"{title(found)} worker", group["workerTemplate"], serves=False)
