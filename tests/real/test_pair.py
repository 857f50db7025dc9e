"""A larger published pair, Qwen2.5-Coder 1.5B drafted by 0.5B, as its users run it; for `make real`."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.rig import own_places
from tests.clients.programs import FOLDER, IN_ITS_ENVIRONMENT
from tests.conftest import REAL_MODELS, WHERE_PROGRAMS_ARE
from tests.edge_client.draft.tiny_gguf import write_copy
from tests.edge_client.test_daemon import PATIENCE, accepts, ready, start, wait_until
from tests.real.test_stack import UNDRAFTED, Stack, text_of
from tests.support.ports import free_port

TARGET, DRAFT = REAL_MODELS / "qwen-1.5b.gguf", REAL_MODELS / "qwen-0.5b.gguf"

pytestmark = [
    *(pytest.mark.real, pytest.mark.large, pytest.mark.llama, pytest.mark.api, pytest.mark.sdk),
    *(pytest.mark.grpc, pytest.mark.grammar),
    pytest.mark.skipif(
        not (TARGET.is_file() and DRAFT.is_file()),
        reason=f"needs {TARGET.name} and {DRAFT.name} in {REAL_MODELS} (FORERUN_REAL_MODELS)",
    ),
]
in_llama = pytest.mark.parametrize("pair", ["gguf"], indirect=True)

LONG_PATIENCE = 1800.0
"""Seconds. torch takes two minutes to check the target. An agent's first prompt has 5,000 to 8,000 tokens, of
which two processors read some 50 a second."""

TASK = "Write a Python function that returns the largest of three numbers."
COUNT = "Count from 1 to 20."


def _tool(name: str, description: str, parameter: str) -> dict[str, Any]:
    form = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": form}}


TOOLS = [
    _tool("send_mail", "Send a mail to a person.", "person"),
    _tool("get_weather", "Get the current weather of a city.", "city"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The target's weights in bfloat16, as transformers reads them from the file."""
    import torch

    from tests.real.dequantize import dequantize

    folder = tmp_path_factory.mktemp("folder")
    yield dequantize(TARGET, folder, torch.bfloat16)
    shutil.rmtree(folder)  # pytest would keep gigabytes of three runs


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The pair with its target in llama.cpp, where greedy is the default, or in torch."""
    root, address = tmp_path_factory.mktemp("pair"), f"127.0.0.1:{free_port()}"
    places = own_places(root)
    if request.param == "gguf":
        target = write_copy(root / TARGET.name, TARGET, {"general.sampling.temp": 0.0})
        options = ["--slots", "32768"]  # as `forerun launch` advises
    else:
        target = request.getfixturevalue("folder")
        options = ["--slots", "1024", "--dtype", "bfloat16"]
    verifier = start("verify", "--model", str(target), "--listen", address, *options)
    wait_until(lambda: accepts(address), verifier, LONG_PATIENCE)
    running = Stack(address, verifier, ready("--verifier", address, "--draft", str(DRAFT), **places))
    yield running
    assert running.daemon.process.end() == 0
    assert running.verifier.end() == 0
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("pair", "task", "word"),
    [("gguf", TASK, "def "), pytest.param("torch", COUNT, "12, 13", marks=pytest.mark.torch)],
    indirect=["pair"],
    scope="module",
    ids=["gguf", "torch"],
)
def test_a_text_is_the_target_s_own_drafted_and_undrafted(pair: Stack, task: str, word: str) -> None:
    """In torch a step with drafts rounds in another way, so the text is one without near ties."""
    undrafted = text_of(pair.chat(task, max_tokens=60, **UNDRAFTED))
    assert word in undrafted
    for _ in range(5):  # the draft model may still be loading
        drafted = pair.chat(task, max_tokens=60, forerun={"policy": "chain"})
        assert text_of(drafted) == undrafted
        if drafted["forerun"]["accepted"]:
            return
    pytest.fail("no draft was accepted")


@pytest.mark.torch
@pytest.mark.parametrize("pair", ["torch"], indirect=True)
def test_texts_are_transformers_own_but_for_near_ties(pair: Stack, folder: Path) -> None:
    """transformers rounds logits to bfloat16, and another number of rows rounds in another way."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cloud_verifier.engine.sampling.row_logprobs import NEAR_TIE

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    for task, more in itertools.product((TASK, "Explain what a hash table is."), ({}, UNDRAFTED)):
        chat = [{"role": "user", "content": task}]
        prompt = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        answer = pair.chat(task, max_tokens=60, **more)
        assert answer["usage"]["prompt_tokens"] == len(prompt["input_ids"])
        text = tokenizer(text_of(answer))["input_ids"]
        tokens = torch.tensor([*prompt["input_ids"], *text])
        with torch.no_grad():
            logits = model(tokens[None, :-1], logits_to_keep=len(text)).logits[0].float()
        behind = logits.amax(-1) - logits.gather(-1, tokens[-len(text) :, None])[:, 0]
        assert behind.max() <= NEAR_TIE[torch.bfloat16]
        assert (behind > 0).sum() <= len(text) // 10


@in_llama
def test_the_model_chooses_a_tool_and_its_arguments(pair: Stack) -> None:
    """Left to itself this model writes its call into a fence of Markdown."""
    for choice in ("required", "auto"):
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 60}
        answer = pair.chat("What is the weather in Paris?", **asked)
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"].startswith("Paris")


@in_llama
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


FILE = "greet.py"
BEFORE = 'GREETING = "Hello"\n\n\ndef greet(name):\n    return f"{GREETING}, {name}!"\n'
AFTER = BEFORE.replace("Hello", "Good morning")
AIDER = ("--no-check-update", "--analytics-disable", "--yes-always", "--message")
EDITS = {
    "aider": (*AIDER, 'Change the greeting to "Good morning".', FILE),
    "codex": (
        *("exec", "--sandbox", "workspace-write"),
        f'Replace Hello by "Good morning" in {FILE}, with a shell command (exec_command).',
    ),
    "opencode": ("run", "Edit {folder}/" + FILE + ": replace Hello by Good morning."),
}
OPENCODE = {"agent": {"build": {"temperature": 0}}, "permission": {"bash": "deny"}}
MARKS = {"aider": pytest.mark.clients, "codex": pytest.mark.codex, "opencode": pytest.mark.opencode}


@in_llama
@pytest.mark.parametrize("agent", [pytest.param(name, marks=mark) for name, mark in MARKS.items()])
def test_a_launched_agent_edits_a_file(agent: str, pair: Stack, tmp_path: Path) -> None:
    """Codex and opencode make the model call a tool. So small a model must be told the path or the tool."""
    home, folder = tmp_path / "home", tmp_path / "project"
    (home / ".config" / "opencode").mkdir(parents=True)
    (home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(OPENCODE))
    aider = home / "aider"
    aider.write_text(
        f'#!/bin/sh\nexec {shlex.join((*IN_ITS_ENVIRONMENT, str(FOLDER / "agents" / "run_aider.py")))} "$@"\n'
    )
    aider.chmod(0o755)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (folder / FILE).write_text(BEFORE)
    words = [word.format(folder=folder) for word in EDITS[agent]]
    done = subprocess.run(
        [sys.executable, "-m", "forerun", "launch", agent, "--", *words],
        cwd=folder,
        env={
            "PATH": f"{home}{os.pathsep}{WHERE_PROGRAMS_ARE}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HOME": str(home),
            "XDG_STATE_HOME": str(pair.daemon.state.parent),
            "UV_CACHE_DIR": str(Path(sys.prefix) / "clients"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / FILE).read_text() == AFTER, done.stdout + done.stderr
