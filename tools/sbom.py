"""Bills of materials, `deploy/sbom/*.cdx.json`, made from the locks: `python -m tools.sbom`.

CycloneDX 1.6 as JSON: every distribution of a lock with its release, its package URL, the hashes that pip
holds it to, and what brings it. The same lock gives the same bytes. Base images and their system packages are
not in it: of those a scanner of the built image tells.
"""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.locks import LOCKS, ROOT, Pin, path_of, read

FOLDER = ROOT / "deploy" / "sbom"
SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"

VENDORED = {"llama-cpp-python": [("llama.cpp", "0.5.0", "MIT"), ("ggml", "0.25.3", "MIT")]}
"""What a distribution's own source brings in its folders: name, release, licence."""


def bill(name: str, pins: Sequence[Pin]) -> dict[str, Any]:
    """The document of a lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [_component(pin) for pin in pins]
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, own, components], sort_keys=True))
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            },
            "properties": [{"name": "forerun:lock", "value": f"deploy/locks/{name}.txt"}],
        },
        "components": components,
        "dependencies": _dependencies(own, pins),
    }


def purl(pin: Pin) -> str:
    """Its package URL."""
    return f"pkg:pypi/{pin.name}@{quote(pin.version, safe='')}"


def _component(pin: Pin) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": purl(pin),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{pin.name}/",
                "comment": "a hash for each of its files",
                "hashes": [{"alg": "SHA-256", "content": each} for each in pin.hashes],
            }
        ],
    }
    if pin.marker:
        found["properties"] = [{"name": "forerun:where", "value": pin.marker}]
    if pin.name in VENDORED:
        found["components"] = [_vendored(pin, *each) for each in VENDORED[pin.name]]
    return found


def _vendored(pin: Pin, name: str, version: str, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"{purl(pin)}#{name}",
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": licence}}],
    }


def _dependencies(own: str, pins: Sequence[Pin]) -> list[dict[str, Any]]:
    """Who brings whom. What nobody in the lock brings, the project itself asks for."""
    needs: dict[str, set[str]] = {own: set(), **{purl(pin): set() for pin in pins}}
    refs: dict[str, list[str]] = {}  # one name may have two releases, for two releases of Python
    for pin in pins:
        refs.setdefault(pin.name, []).append(purl(pin))
    for pin in pins:
        above = [ref for name in pin.brought_by for ref in refs.get(name, [own])]
        for ref in above or [own]:
            needs[ref].add(purl(pin))
    return [{"ref": ref, "dependsOn": sorted(below)} for ref, below in needs.items()]


def text_of(name: str) -> str:
    """The file's content."""
    return json.dumps(bill(name, read(path_of(name))), indent=1) + "\n"


def place_of(name: str) -> Path:
    return FOLDER / f"{name}.cdx.json"


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in LOCKS:
        place_of(name).write_text(text_of(name), encoding="utf-8")
        print(place_of(name).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
