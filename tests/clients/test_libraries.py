"""Libraries for Python and Node, against a daemon with a scripted target.

Each script of python/ names its library with the exact version (PEP 723) and has an environment of its own,
which `make clients` makes. OpenAI's and Anthropic's SDKs are those that all tests use. Those of node/ share
one environment, of `make test`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import EXPECTED, answer
from tests.clients.programs import FOLDER, IN_ITS_ENVIRONMENT, output_of
from tests.clients.scripted import MODEL, scripted
from tests.edge_client.api.served import TOKEN

pytestmark = [pytest.mark.api, pytest.mark.grpc]

SDKS = {"openai_sdk": "openai", "anthropic_sdk": "anthropic"}
"""Packages of this environment, by their scripts."""


def scripts(folder: str, without: Collection[str] = ()) -> list[Any]:
    paths = (each for each in sorted((FOLDER / folder).iterdir()) if each.suffix in (".py", ".mjs"))
    return [pytest.param(each, id=each.stem) for each in paths if each.stem not in ("cases", *without)]


async def check(home: Path, *words: str | Path) -> None:
    """Run a script. Each of its cases must get its answer."""
    async with scripted(answer) as address:
        cases: dict[str, Any] = json.loads(await output_of(home, *words, f"http://{address}", TOKEN, MODEL))
    assert cases
    for case, told in cases.items():
        assert told, case
        assert told == {key: EXPECTED[case].get(key) for key in told}, case


@pytest.mark.sdk
@pytest.mark.parametrize("name", SDKS)
async def test_sdks(name: str, tmp_path: Path) -> None:
    script, package = FOLDER / "python" / f"{name}.py", SDKS[name]
    assert f'"{package}=={version(package)}"' in script.read_text(), "the version that docs/clients names"
    await check(tmp_path, sys.executable, script)


@pytest.mark.clients
@pytest.mark.parametrize("script", scripts("python", SDKS))
async def test_python(script: Path, tmp_path: Path) -> None:
    await check(tmp_path, *IN_ITS_ENVIRONMENT, script)


@pytest.mark.node
@pytest.mark.parametrize("script", scripts("node"))
async def test_node(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments stand between the events of streams."""
    monkeypatch.setattr("edge_client.api.text_streams.KEEP_ALIVE_TIME", 0.0005)
    await check(tmp_path, "node", script)
