"""Claude Code, without an account, works on files through the daemon (docs/clients.md)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import call
from tests.clients.programs import WORD, launch, output_of
from tests.clients.scripted import MODEL, NUM_SLOTS, newest, scripted
from tests.edge_client.api.served import TOKEN

pytestmark = [pytest.mark.api, pytest.mark.grpc, pytest.mark.claude]

NAMED = {"ANTHROPIC_MODEL": MODEL, "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(NUM_SLOTS)}
"""Variables that name the daemon's model. Without them Claude Code asks for one of Anthropic's."""


async def claude(address: str, home: Path, *words: str, **variables: str) -> dict[str, Any]:
    """Run Claude Code until it has answered. Returns what it says about its run."""
    own = {
        "ANTHROPIC_BASE_URL": f"http://{address}",
        "ANTHROPIC_AUTH_TOKEN": TOKEN,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    asked = ("claude", "-p", "--output-format", "json", *words)
    told: dict[str, Any] = json.loads(await output_of(home, *asked, **{**own, **variables}))
    return told


async def test_a_file_is_read_and_in_the_next_turn_another_is_written(tmp_path: Path) -> None:
    """Each prompt begins with the one before it, so that both sides prefill only what is new. The second turn
    is started as by `forerun launch claude`, beside the user's settings for another server."""
    file, copy, token = (tmp_path / name for name in ("note.txt", "copy.txt", "token"))
    token.write_text(TOKEN, encoding="utf-8")
    file.write_text(f"the word is {WORD}\n", encoding="utf-8")
    prompts = dict[str, None]()

    def script(prompt: str) -> str:
        prompts[prompt] = None
        told = newest(prompt)
        if "copy.txt" in told:
            return "Done."
        if "Write it down" in told:
            return call("Write", file_path=str(copy), content=WORD)
        return f"It says {WORD}." if WORD in told else f"I read it. {call('Read', file_path=str(file))}"

    tools = ("--allowedTools", "Read,Write", "--")
    async with scripted(script) as address:
        first = await claude(address, tmp_path, *tools, "What does note.txt say?", **NAMED)
        other = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_AUTH_TOKEN": "other"}
        settings = {"env": {**other, "ANTHROPIC_MODEL": "other"}, "model": "opus"}
        (tmp_path / ".claude" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        options, variables = launch("claude", address, str(token))
        asked = (*options, "--continue", *tools, "Write it down.")
        more = await claude(address, tmp_path, *asked, **variables)
    assert (first["result"], first["is_error"], first["num_turns"]) == (f"It says {WORD}.", False, 2)
    assert (more["result"], more["is_error"]) == ("Done.", False)
    assert copy.read_text(encoding="utf-8") == WORD
    assert [each["modelUsage"][MODEL]["contextWindow"] for each in (first, more)] == [NUM_SLOTS] * 2
    told = list(prompts)
    assert [after.startswith(before) for before, after in pairwise(told)] == [True] * 3
    assert told[2].startswith(f"{told[1]}It says {WORD}.")
    assert "billing-header" not in told[-1]


async def test_a_tool_that_is_loaded_later_changes_no_earlier_token(tmp_path: Path) -> None:
    """Claude Code puts it into the request's list of tools, which stands at the beginning of a prompt."""
    prompts = dict[str, None]()

    def script(prompt: str) -> str:
        prompts[prompt] = None
        return call("ToolSearch", query="select:WebFetch") if len(prompts) == 1 else "Loaded."

    async with scripted(script) as address:
        told = await claude(address, tmp_path, "Load WebFetch.")
    assert (told["result"], told["num_turns"]) == ("Loaded.", 2)
    first, second = prompts
    assert second.startswith(first)
    assert '"name": "WebFetch"' in second.removeprefix(first)


async def test_a_prompt_that_does_not_fit_is_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude Code shortens a conversation after that error."""
    monkeypatch.setattr("tests.clients.scripted.NUM_SLOTS", 10_000)
    async with scripted(lambda prompt: "a") as address:
        told = await claude(address, tmp_path, "Hello.")
    assert (told["is_error"], told["terminal_reason"]) == (True, "prompt_too_long")
