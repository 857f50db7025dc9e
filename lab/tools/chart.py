"""Writes the objects of the Helm chart from the Kustomize overlays: `make chart`.

The overlays are the source. The chart holds each of their objects once, and for each overlay the list of its
objects. kubectl renders the overlays.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ROOT / "deploy" / "kubernetes" / "overlays"
CHART = ROOT / "deploy" / "helm" / "forerun-verifier"

NAMESPACE = "forerun"
PLACE = "RELEASE-NAMESPACE"
"""Stands in the chart's objects for the namespace, in metadata, names and queries."""

NAMED = (
    r"^( *namespace: ){}$",
    r"^( *gateway\.envoyproxy\.io/owning-gateway-namespace: ){}$",
    r"^(kind: Namespace\n(?:.*\n)*?  name: ){}$",
    r"^(  namespaceSelector:\n    matchNames:\n    - ){}$",
    r"(forerun-verifier\.){}\b",
    r"(namespace=\"){}(?=\")",
)

Object = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes each object as the cluster gets it: without anchors, and long texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _as_block)


def overlays() -> list[str]:
    """Names of all overlays, sorted."""
    return sorted(path.name for path in OVERLAYS.iterdir() if (path / "kustomization.yaml").is_file())


def rendered(folder: Path) -> list[Object]:
    """Return the objects of a kustomization. Raises `CalledProcessError` if kubectl cannot render it."""
    program = shutil.which("kubectl")
    if program is None:
        raise FileNotFoundError("kubectl was not found: https://kubernetes.io/docs/tasks/tools/")
    text = subprocess.check_output([program, "kustomize", folder], text=True)
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def text_of(document: Object) -> str:
    """Return an object as the chart has it."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=True, width=4096)
    for pattern in NAMED:
        text = re.sub(pattern.replace("{}", NAMESPACE), rf"\g<1>{PLACE}", text, flags=re.MULTILINE)
    return text


def write(chart: Path = CHART) -> None:
    """Replace the chart's objects. The first overlay with an object in this form gives the file its name."""
    files: dict[str, str] = {}  # an object's text -> the file's name
    index: dict[str, list[str]] = {}
    for overlay in overlays():
        index[overlay] = []
        for each in rendered(OVERLAYS / overlay):
            text, name = text_of(each), f"{each['kind'].lower()}-{each['metadata']['name']}"
            taken = f"{name}.yaml" in files.values()
            index[overlay].append(
                files.setdefault(text, f"{name}.{overlay}.yaml" if taken else f"{name}.yaml")
            )
    shutil.rmtree(chart / "objects", ignore_errors=True)
    (chart / "objects").mkdir()
    (chart / "objects" / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    for text, name in files.items():
        (chart / "objects" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
    print(CHART)
