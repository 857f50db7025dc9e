"""An installation has the product alone, and an edge install stays small beside llama-cpp-python."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from common.errors import UnavailableError
from forerun import demo_pair, prompts
from forerun.wheel import renamed, stage

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 66 * 2**20
MAX_DISTRIBUTIONS = 36
COMPILED = "llama-cpp-python"
"""Built on the device, and as large as its options make it; what it brings itself is not counted either."""


def asked(extra: str) -> list[Requirement]:
    """What `pip install forerun[extra]` asks for directly."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"][extra])
    ]


def name_of(requirement: Requirement) -> str:
    return re.sub(r"[._-]+", "-", requirement.name).lower()


def brought_by(requirements: list[Requirement]) -> dict[str, Distribution]:
    """These and all that they need, by name."""
    found, waiting = dict[str, Distribution](), list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = name_of(requirement)
        if name in found:
            continue
        found[name] = distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            wanted = [{"extra": extra} for extra in (requirement.extras or {""})]
            if needed.marker is None or any(needed.marker.evaluate(each) for each in wanted):
                waiting.append(needed)
    return found


def size(of: Distribution) -> int:
    """Bytes of its files, without what Python compiles them to."""
    paths = [Path(str(of.locate_file(file))) for file in of.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def brought(extra: str) -> dict[str, Distribution]:
    """What an extra brings."""
    try:
        return brought_by(asked(extra))
    except PackageNotFoundError as error:
        pytest.skip(f"needs {error.name}: pip install 'forerun[{extra}]'")


def edge() -> dict[str, Distribution]:
    """What the edge extra brings, without llama-cpp-python and what that needs anyway."""
    everything = brought("edge")
    try:
        compiled = brought_by([Requirement(COMPILED)])
    except PackageNotFoundError as error:
        pytest.skip(f"needs {error.name}: pip install 'forerun[edge]'")
    ours = {name_of(each) for each in asked("edge")} - {COMPILED, "numpy"}
    return {name: each for name, each in everything.items() if name not in compiled or name in ours}


@pytest.mark.llama
@pytest.mark.api
def test_an_edge_install_is_small() -> None:
    found = edge()
    sizes = {name: size(each) for name, each in found.items()}
    assert len(found) <= MAX_DISTRIBUTIONS, sorted(found)
    assert sum(sizes.values()) <= MAX_BYTES, sorted(sizes.items(), key=lambda each: -each[1])


IMPORTS = """
import sys
import forerun.cli, forerun.edge_client.core.session, forerun.cloud_verifier.core.scheduler
import forerun.schemes.relay.session, forerun.simulator.proxy.cli
print(sorted(name for name in sys.modules if name.partition(".")[0] in forerun.PARTS))
"""


def test_a_wheel_has_one_package(tmp_path: Path) -> None:
    """No module of it is imported by the name of a folder of the clone."""
    stage(ROOT, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["forerun"]
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_modules_public_name_is_the_same_module_in_a_clone() -> None:
    public = importlib.import_module("forerun.common.tree")
    assert public is importlib.import_module("common.tree")
    assert public.__spec__ is not None
    assert public.__spec__.name == "common.tree"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from common.tree import Node\n", "from forerun.common.tree import Node\n"),
        ("    import schemes.rules\n", "    import forerun.schemes.rules\n"),
        ('"common.tree"', '"forerun.common.tree"'),
        ("'schemes.policies.amusd:AmusdPolicy'", "'forerun.schemes.policies.amusd:AmusdPolicy'"),
        ('"common.place", "common"', '"common.place", "common"'),
        ("import commons", "import commons"),
    ],
)
def test_a_wheel_renames_modules_and_nothing_else(text: str, expected: str, tmp_path: Path) -> None:
    for module in ("common/tree", "schemes/policies/amusd"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / f"{module}.py").touch()
    assert renamed(text, tmp_path) == expected


def test_prompts_of_the_clone_are_missed_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_pair, "PROMPTS", tmp_path / "prompts.json")
    with pytest.raises(UnavailableError):
        prompts.bundled()
