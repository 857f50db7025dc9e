"""Locks hold what pyproject.toml asks for, by hash."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "deploy" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGES = {"edge": "edge", "verifier-cpu": "verifier", "verifier-cuda": "verifier"}
"""Lock of an image -> the extra that it holds."""

PIN = re.compile(r"([\w.-]+)==([^\s;]+)(?: ; (.+?))?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*")


@dataclass(frozen=True, slots=True)
class Pin:
    """A distribution of a lock."""

    name: str  # normalised
    version: str
    marker: str  # empty: everywhere


def pins(lock: str) -> dict[str, Pin]:
    """The distributions of a lock. Each line must pin one by its hashes."""
    text = re.sub(r"\\\n\s*", " ", (LOCKS / f"{lock}.txt").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    matches = [PIN.fullmatch(line) for line in lines]
    assert all(matches), [line[:80] for line, match in zip(lines, matches, strict=True) if not match]
    found = [Pin(re.sub(r"[._-]+", "-", m[1]).lower(), m[2], m[3] or "") for m in matches if m]
    return {pin.name: pin for pin in found}


@pytest.mark.parametrize("lock", sorted(path.stem for path in LOCKS.glob("*.txt")))
def test_every_line_is_held_by_its_hash(lock: str) -> None:
    assert pins(lock)
    assert "://" not in (LOCKS / f"{lock}.txt").read_text(encoding="utf-8"), "an index of one machine"


@pytest.mark.parametrize("name", IMAGES)
def test_a_lock_satisfies_what_the_project_asks_for(name: str) -> None:
    found = pins(name)
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][IMAGES[name]]):
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
