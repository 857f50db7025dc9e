"""An installation has the product alone, as one package."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UnavailableError
from lab.tools.wheel import renamed, stage
from training import demo_pair, prompts

ROOT = Path(__file__).resolve().parent.parent


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
