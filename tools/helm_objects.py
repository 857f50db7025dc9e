"""Writes the objects of the Helm chart from the Kustomize overlays: `python -m tools.helm_objects`.

The overlays are the source; the chart has their objects, each once, and for every overlay the list of those
that belong to it. So the two cannot differ, and what is rendered can be read and tested without kubectl. This
command needs kubectl, whose `kustomize` renders. A test renders anew and compares.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).resolve().parent.parent
OVERLAYS = ROOT / "deploy" / "kubernetes" / "overlays"
OBJECTS = ROOT / "deploy" / "helm" / "forerun-verifier" / "objects"
INDEX = "index.json"

NAMESPACE = "forerun"
PLACE = "RELEASE-NAMESPACE"
"""Stands in the chart's objects wherever the namespace is named."""

NAMED = (
    (r"^( *namespace: ){}$", re.MULTILINE),
    (r"^( *gateway\.envoyproxy\.io/owning-gateway-namespace: ){}$", re.MULTILINE),
    (r"^(kind: Namespace\n(?:.*\n)*?  name: ){}$", re.MULTILINE),
    (r"^(  namespaceSelector:\n    matchNames:\n    - ){}$", re.MULTILINE),
    (r"(forerun-verifier\.){}\b", 0),
    (r"(namespace=\"){}(?=\")", 0),
)
"""Where a namespace is named: in metadata, in names below it, in queries."""

Object = dict[str, Any]


def overlays() -> list[str]:
    """Names of all overlays, sorted."""
    return sorted(path.name for path in OVERLAYS.iterdir() if (path / "kustomization.yaml").is_file())


def rendered(overlay: str, kubectl: str = "kubectl") -> list[Object]:
    """An overlay's objects. Raises `subprocess.CalledProcessError` if Kustomize cannot render it."""
    program = shutil.which(kubectl)
    if program is None:
        raise FileNotFoundError(f"{kubectl} was not found: https://kubernetes.io/docs/tasks/tools/")
    text = subprocess.check_output([program, "kustomize", OVERLAYS / overlay], text=True)
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def key_of(found: Object) -> tuple[str, str]:
    """What tells an object from all others of its namespace."""
    return str(found["kind"]), str(found["metadata"]["name"])


class _Dumper(yaml.SafeDumper):
    """No anchors: each object reads as the cluster gets it. Long texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_block)


def text_of(found: Object) -> str:
    """An object as it stands in the chart."""
    text: str = yaml.dump(found, Dumper=_Dumper, sort_keys=True, width=4096)
    for pattern, flags in NAMED:
        text = re.sub(pattern.replace("{}", NAMESPACE), rf"\g<1>{PLACE}", text, flags=flags)
    return text


def object_of(text: str, namespace: str = NAMESPACE) -> Object:
    """An object of the chart, in a namespace."""
    return cast(Object, yaml.load(text.replace(PLACE, namespace), Loader=yaml.CSafeLoader))


def files_of(all_rendered: dict[str, list[Object]]) -> dict[str, str]:
    """All files of the chart's objects by name, from each overlay's objects."""
    names: dict[str, str] = {}  # an object's text -> the file's name
    index: dict[str, list[str]] = {}
    for overlay, objects in all_rendered.items():
        index[overlay] = []
        for each in objects:
            text = text_of(each)
            names.setdefault(text, _name_of(each, overlay, set(names.values())))
            index[overlay].append(names[text])
    files = {name: text for text, name in names.items()}
    return {INDEX: json.dumps(index, indent=1) + "\n", **files}


def _name_of(found: Object, overlay: str, taken: set[str]) -> str:
    """The first overlay that has an object in this form gives it its name, if the plain one is taken."""
    kind, name = key_of(found)
    plain = f"{kind.lower()}-{name}.yaml"
    return f"{kind.lower()}-{name}.{overlay}.yaml" if plain in taken else plain


def checked_in(overlay: str, folder: Path = OBJECTS) -> list[Object]:
    """An overlay's objects as the chart has them; nothing but a YAML parser is needed."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [object_of((folder / name).read_text(encoding="utf-8")) for name in index[overlay]]


def main() -> int:
    """Rewrite the files, and remove those that no overlay has any more."""
    files = files_of({overlay: rendered(overlay) for overlay in overlays()})
    for path in OBJECTS.iterdir():
        path.unlink()
    for name, text in files.items():
        (OBJECTS / name).write_text(text, encoding="utf-8")
    print(f"{len(files) - 1} objects of {len(overlays())} overlays in {OBJECTS}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
