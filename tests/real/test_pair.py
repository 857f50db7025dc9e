"""A larger published pair, Qwen2.5-Coder 1.5B drafted by 0.5B, as its users run it; for `make real`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REAL_MODELS
from tests.edge_client.test_daemon import PATIENCE, ready, start
from tests.ports import free_port
from tests.real.test_stack import UNDRAFTED, Stack, text_of

TARGET, DRAFT = REAL_MODELS / "qwen-1.5b.gguf", REAL_MODELS / "qwen-0.5b.gguf"

pytestmark = [
    *(pytest.mark.large, pytest.mark.llama, pytest.mark.api, pytest.mark.sdk),
    *(pytest.mark.grpc, pytest.mark.grammar),
    pytest.mark.skipif(
        not (TARGET.is_file() and DRAFT.is_file()),
        reason=f"needs {TARGET.name} and {DRAFT.name} in {REAL_MODELS} (FORERUN_REAL_MODELS)",
    ),
]

TASK = "Write a Python function that returns the largest of three numbers."


def _tool(name: str, description: str, parameter: str) -> dict[str, Any]:
    form = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": form}}


TOOLS = [
    _tool("send_mail", "Send a mail to a person.", "person"),
    _tool("get_weather", "Get the current weather of a city.", "city"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root, address = tmp_path_factory.mktemp("pair"), f"127.0.0.1:{free_port()}"
    names = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
    places = {name: str(root / name.lower()) for name in names}
    verifier = start("verify", "--model", str(TARGET), "--listen", address, "--slots", "4096")
    found = Stack(address, verifier, ready("--verifier", address, "--draft", str(DRAFT), **places))
    yield found
    assert found.daemon.process.end() == 0
    assert found.verifier.end() == 0


def test_a_text_is_the_target_s_own_drafted_and_undrafted(pair: Stack) -> None:
    undrafted = text_of(pair.chat(TASK, max_tokens=60, **UNDRAFTED))
    assert "def " in undrafted
    for _ in range(5):  # the draft model may still be loading
        drafted = pair.chat(TASK, max_tokens=60, forerun={"policy": "chain"})
        assert text_of(drafted) == undrafted
        if drafted["forerun"]["accepted"]:
            return
    pytest.fail("no draft was accepted")


def test_the_model_chooses_a_tool_and_its_arguments(pair: Stack) -> None:
    """Without `required` this model writes its call into a fence of Markdown, which is text."""
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
    found = pair.chat("What is the weather in Paris?", **asked)
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"].startswith("Paris")


def test_the_doctor_finds_nothing_wrong(pair: Stack, tmp_path: Path) -> None:
    where = ("--draft", str(DRAFT), "--verifier", pair.address)
    done = subprocess.run(
        [sys.executable, "-m", "forerun", "doctor", *where],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
