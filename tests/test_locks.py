"""Locks hold what pyproject.toml asks for, by hash; bills of materials and audits are of the locks."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from tools import audit, locks, sbom

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGES = [name for name, lock in locks.LOCKS.items() if lock.extras]
LINUX = [
    {
        "sys_platform": "linux",
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.1",
    }
    for machine in ("x86_64", "aarch64")
    for python in ("3.11", "3.12", "3.13")
]


def pins(name: str) -> dict[str, locks.Pin]:
    return {pin.name: pin for pin in locks.read(locks.path_of(name))}


@pytest.mark.parametrize("name", locks.LOCKS)
def test_every_line_is_held_by_its_hash(name: str) -> None:
    text = locks.path_of(name).read_text(encoding="utf-8")
    starts = re.findall(r"^[a-z]", text, re.MULTILINE)
    found = locks.read(locks.path_of(name))
    assert len(found) == len(starts) == len({(pin.name, pin.version) for pin in found})
    assert all(pin.hashes for pin in found)
    assert "://" not in text, "no place of a machine, no index"


@pytest.mark.parametrize("name", IMAGES)
def test_a_lock_satisfies_what_the_project_asks_for(name: str) -> None:
    found = pins(name)
    (extra,) = locks.LOCKS[name].extras
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]):
        asked = Requirement(text)
        pin = found[re.sub(r"[._-]+", "-", asked.name).lower()]
        assert asked.specifier.contains(pin.version), f"{pin.name} {pin.version} is not {asked}"
        assert not pin.marker, f"{pin.name} is asked for everywhere"


@pytest.mark.parametrize("name", IMAGES)
def test_direct_requirements_are_those_that_the_tests_run_with(name: str) -> None:
    lines = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8").splitlines()
    tested = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    found = pins(name)
    for each in tested:
        pin = found.get(re.sub(r"[._-]+", "-", each.name).lower())
        assert pin is None or each.specifier.contains(pin.version), f"{pin} is not {each}"


@pytest.mark.parametrize(
    "environment", LINUX, ids=lambda each: f"{each['platform_machine']}-{each['python_version']}"
)
def test_sides_stay_apart(environment: dict[str, str]) -> None:
    def here(name: str) -> set[str]:
        return {
            pin.name
            for pin in pins(name).values()
            if not pin.marker or Marker(pin.marker).evaluate(environment)
        }

    assert not {"torch", "transformers", "safetensors", "triton"} & here("edge")
    assert not {name for name in here("edge") if name.startswith("nvidia-")}
    for name in ("verifier-cpu", "verifier-cuda"):
        assert "llama-cpp-python" not in here(name)
        assert "torch" in here(name)
    assert not {name for name in here("verifier-cpu") if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert "triton" in here("verifier-cuda")


def test_what_builds_is_locked_too() -> None:
    backend = {
        Requirement(text).name
        for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    }
    assert backend <= set(pins("build"))
    assert {"scikit-build-core", "cmake", "ninja"} <= set(pins("build")), (
        "what llama-cpp-python is built with"
    )
    shared = set(pins("build")) & set(pins("verifier-cpu"))
    assert {name: pins("build")[name].version for name in shared} == {
        name: pins("verifier-cpu")[name].version for name in shared
    }


@pytest.mark.parametrize(
    "line",
    [
        "numpy==1.0",
        "numpy>=1.0 --hash=sha256:" + "0" * 64,
        "-e .",
        "git+https://host/x --hash=sha256:" + "0" * 64,
        "numpy==1.0 --hash=md5:00",
    ],
)
def test_a_line_that_pins_nothing_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(line + "\n")
    with pytest.raises(locks.LockError, match=r"x\.txt: a line pins nothing"):
        locks.read(path)


def test_a_lock_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    one, two = "1" * 64, "2" * 64
    lines = [
        "# made",
        "Torch_x==2.0+cpu ; sys_platform == 'linux' \\",
        f"    --hash=sha256:{one} \\",
        f"    --hash=sha256:{two}",
        "    # via",
        "    #   a",
        "    #   forerun (pyproject.toml)",
        "a==1 \\",
        f"    --hash=sha256:{two}",
        "    # via -c constraints",
    ]
    path.write_text("\n".join(lines) + "\n")
    assert locks.read(path) == [
        locks.Pin("torch-x", "2.0+cpu", "sys_platform == 'linux'", (one, two), ("a", "forerun")),
        locks.Pin("a", "1", "", (two,), ("constraints",)),
    ]


# --- bills of materials -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", locks.LOCKS)
def test_bills_are_what_the_locks_say(name: str) -> None:
    written = sbom.place_of(name).read_text(encoding="utf-8")
    assert written == sbom.text_of(name), "run python -m tools.sbom"


@pytest.mark.parametrize("name", locks.LOCKS)
def test_a_bill_has_the_shape_of_cyclonedx(name: str) -> None:
    found: dict[str, Any] = json.loads(sbom.place_of(name).read_text(encoding="utf-8"))
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"])
    assert found["metadata"]["component"]["version"] == PROJECT["version"]
    components = found["components"]
    assert [each["name"] for each in components] == [pin.name for pin in locks.read(locks.path_of(name))]
    for each in components:
        assert each["purl"] == each["bom-ref"]
        assert each["purl"].startswith(f"pkg:pypi/{each['name']}@")
        (reference,) = each["externalReferences"]
        assert all(re.fullmatch("[0-9a-f]{64}", one["content"]) for one in reference["hashes"])
    refs = {found["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in components)}
    assert {each["ref"] for each in found["dependencies"]} == refs
    below = {ref for each in found["dependencies"] for ref in each["dependsOn"]}
    assert below | {found["metadata"]["component"]["bom-ref"]} == refs, "everything is brought by something"


def test_what_is_vendored_is_told() -> None:
    (llama,) = [
        each
        for each in sbom.bill("edge", locks.read(locks.path_of("edge")))["components"]
        if each["name"] == "llama-cpp-python"
    ]
    assert [each["name"] for each in llama["components"]] == ["llama.cpp", "ggml"]


@pytest.mark.llama
def test_what_is_vendored_has_those_releases() -> None:
    import llama_cpp

    files = {path.name for path in (Path(llama_cpp.__file__).parent / "lib").iterdir()}
    if not any(name.endswith(".so") for name in files):
        pytest.skip("only on Linux do the libraries' names tell their releases")
    for name, release, _ in sbom.VENDORED["llama-cpp-python"]:
        assert f"lib{name.replace('llama.cpp', 'llama')}.so.{release}" in files


# --- the audit ----------------------------------------------------------------------------------------------

TODAY = datetime.date(2026, 11, 1)
ENTRY = '[[ignored]]\nid = "PYSEC-1"\nreason = "{}"\nuntil = 2026-12-01\n'


def test_ignored_findings_have_a_reason_and_an_end() -> None:
    text = ENTRY.format("nothing here calls that function")
    assert [each.id for each in audit.ignored(text, TODAY)] == ["PYSEC-1"]
    with pytest.raises(audit.AuditError, match="without a reason"):
        audit.ignored(ENTRY.format("no"), TODAY)
    with pytest.raises(audit.AuditError, match="look at it again"):
        audit.ignored(text, datetime.date(2026, 12, 1))


def test_what_is_ignored_now_can_be_read() -> None:
    audit.ignored(audit.IGNORED.read_text(encoding="utf-8"), TODAY)


@pytest.mark.parametrize(("code", "is_clean"), [(0, True), (1, False)])
def test_an_audit_asks_strictly_about_public_releases(tmp_path: Path, code: int, is_clean: bool) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncp "$2" {tmp_path}/asked\nexit {code}\n')
    program.chmod(0o755)
    entry = audit.Ignored("PYSEC-1", "nothing here calls that function", datetime.date(2027, 1, 1))
    assert audit.audit("verifier-cpu", str(program), "osv", [entry]) is is_clean
    words = (tmp_path / "words").read_text().split()
    assert {"--strict", "--disable-pip", "--ignore-vuln=PYSEC-1", "osv"} <= set(words)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "torch==2.13.0" in asked
    assert len(asked) == len(locks.read(locks.path_of("verifier-cpu")))
