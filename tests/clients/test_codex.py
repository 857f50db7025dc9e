"""The Codex CLI, without an account, works on files through the daemon (docs/clients.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge_client.api.model_lists import CODEX_INSTRUCTIONS, CODEX_VERSION, codex_card
from tests.clients.answers import call
from tests.clients.programs import WORD, launch, output_of
from tests.clients.scripted import MODEL, NUM_SLOTS, THINKING, newest, scripted
from tests.edge_client.api.served import TOKEN

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.codex]

CONFIGURATION = """
model = "{model}"
model_provider = "forerun"

[model_providers.forerun]
name = "Forerun"
base_url = "http://{address}/v1"

[model_providers.forerun.auth]
command = "cat"
args = ["{token}"]
"""


def configure(home: Path, address: str) -> None:
    """Write what docs/clients.md says."""
    token = home / "token"
    token.write_text(TOKEN, encoding="utf-8")
    text = CONFIGURATION.format(model=MODEL, address=address, token=token)
    (home / "config.toml").write_text(text, encoding="utf-8")


async def codex(
    home: Path, *words: str, options: tuple[str, ...] = (), **variables: str
) -> list[dict[str, Any]]:
    """Run Codex until it has answered. Returns its events."""
    asked = ("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", *words)
    out = await output_of(home, "codex", *options, *asked, **{"CODEX_HOME": str(home), **variables})
    return [json.loads(line) for line in out.splitlines()]


def said(events: list[dict[str, Any]]) -> list[str]:
    items = [each["item"] for each in events if each["type"] == "item.completed"]
    return [each["text"] for each in items if each["type"] == "agent_message"]


async def test_a_command_is_run_and_its_output_read(tmp_path: Path) -> None:
    """Each prompt begins with the one before it, so that both sides prefill only what is new."""
    (tmp_path / "note.txt").write_text(f"the word is {WORD}\n", encoding="utf-8")
    prompts = dict[str, None]()

    def script(prompt: str) -> str:
        prompts[prompt] = None
        if "What else?" in prompt:
            return "Nothing else."
        reads = call("exec_command", cmd="cat note.txt")
        return f"It says {WORD}." if WORD in prompt else f"I read it. {reads}"

    async with scripted(script) as address:
        configure(tmp_path, address)
        first = await codex(tmp_path, "What does note.txt say?")
        (thread,) = [each["thread_id"] for each in first if each["type"] == "thread.started"]
        more = await codex(tmp_path, "resume", thread, "What else?")
    assert said(first) == ["I read it.", f"It says {WORD}."]
    assert said(more) == ["Nothing else."]
    assert first[-1]["type"] == more[-1]["type"] == "turn.completed"
    assert first[-1]["usage"]["output_tokens"] > 0
    told = list(prompts)
    assert CODEX_INSTRUCTIONS in told[0]
    assert len(told) == 3
    assert told[1].startswith(told[0])
    assert told[2].startswith(f"{told[1]}It says {WORD}.")


async def test_reasoning_is_no_answer_and_comes_back(tmp_path: Path) -> None:
    """With the options of `forerun launch codex`."""
    prompts = dict[str, None]()
    thought = "<think>\nI ponder.\n</think>\n\nI look."

    def script(prompt: str) -> str:
        prompts[prompt] = None
        writes = call("exec_command", cmd=f"printf {WORD} > copy.txt")
        return "Done." if newest(prompt).startswith("tool") else f"{thought}{writes}"

    async with scripted(script, THINKING) as address:
        options, variables = launch("codex", address)
        events = await codex(tmp_path, "Go.", options=options, **variables)
    assert said(events) == ["I look.", "Done."]
    assert (tmp_path / "copy.txt").read_text(encoding="utf-8") == WORD
    assert events[-1]["usage"]["reasoning_output_tokens"] > 0
    first, second = prompts
    assert second.startswith(f"{first}{thought}")


async def test_tools_of_all_kinds_are_called(tmp_path: Path) -> None:
    """A custom tool, whose input is free text, and one of a namespace: Codex says that there is no agent."""
    patch = f"*** Begin Patch\n*** Add File: new.txt\n+{WORD}\n*** End Patch\n"
    calls = [call("apply_patch", input=patch), call("multi_agent_v1__close_agent", target="nobody")]
    prompts = dict[str, None]()

    def script(prompt: str) -> str:
        prompts[prompt] = None
        return [*calls, "Done."][len(prompts) - 1]

    model = {**codex_card(MODEL, 0, NUM_SLOTS), "apply_patch_tool_type": "freeform"}
    (tmp_path / "models.json").write_text(json.dumps({"models": [model]}), encoding="utf-8")
    async with scripted(script) as address:
        configure(tmp_path, address)
        option = f"model_catalog_json={json.dumps(str(tmp_path / 'models.json'))}"
        events = await codex(tmp_path, "Write down the word.", options=("-c", option))
    assert said(events) == ["Done."]
    assert (tmp_path / "new.txt").read_text(encoding="utf-8") == f"{WORD}\n"
    assert "invalid agent id nobody" in newest([*prompts][-1])


async def test_a_prompt_that_does_not_fit_is_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.clients.scripted.NUM_SLOTS", 4096)
    async with scripted(lambda prompt: "a") as address:
        configure(tmp_path, address)
        events = await codex(tmp_path, "Hello.")
    assert events[-1]["type"] == "turn.failed"
    assert "ran out of room in the model's context window" in events[-1]["error"]["message"]


async def test_the_list_of_models_is_codex_own() -> None:
    async with scripted(lambda prompt: "a") as address, httpx.AsyncClient() as client:
        url, headers = f"http://{address}/v1/models", {"authorization": f"Bearer {TOKEN}"}
        told = (await client.get(url, params={CODEX_VERSION: "0.169.0"}, headers=headers)).json()
        cards = (await client.get(url, headers=headers)).json()["data"]
    assert [each["slug"] for each in told["models"]] == [each["id"] for each in cards]
    first = told["models"][0]
    assert first == codex_card(MODEL, 0, cards[0]["meta"]["max_positions"])
    assert first["context_window"] > 0
