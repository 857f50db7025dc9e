"""An installation has the product alone, and an edge install stays small beside llama-cpp-python."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from common.errors import UnavailableError
from forerun import demo_pair, prompts

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


@pytest.mark.llama
@pytest.mark.api
@pytest.mark.parametrize("extra", ["edge", "verifier-llama"])
def test_llama_cpp_comes_without_torch(extra: str) -> None:
    servers = {"torch", "transformers", "tokenizers", "safetensors", "pydantic"}
    assert not servers & set(brought(extra))


def test_an_installation_has_the_product_alone() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    include = settings["packages"]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    found = {name for name in packages if any(fnmatch(name, pattern) for pattern in include)}
    parts = {"cloud_verifier", "common", "edge_client", "forerun"}
    assert found == parts | {"schemes", "simulator", "training"}


def test_prompts_of_the_clone_are_missed_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_pair, "PROMPTS", tmp_path / "prompts.json")
    with pytest.raises(UnavailableError):
        prompts.bundled()
