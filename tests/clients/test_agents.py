"""Coding agents work on a file through the daemon, with the variables and options of `forerun launch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.answers import call
from tests.clients.programs import FOLDER, IN_ITS_ENVIRONMENT, WORD, launch, output_of
from tests.clients.scripted import scripted

pytestmark = [pytest.mark.api, pytest.mark.grpc]


@pytest.mark.clients
async def test_aider_edits_a_file(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("nothing yet\n")
    (tmp_path / ".aider.conf.yml").write_text("openai-api-key: other\nmodel: openai/other\n")
    (tmp_path / ".env").write_text("OPENAI_API_KEY=other\n")
    quiet = ("--no-git", "--no-check-update", "--analytics-disable", "--yes-always")
    aider = (*IN_ITS_ENVIRONMENT, str(FOLDER / "agents" / "run_aider.py"))
    async with scripted(lambda prompt: f"Here it is.\n\nnote.txt\n```\n{WORD}\n```\n") as address:
        options, variables = launch("aider", address)
        asked = (*options, *quiet, "--message", "Write the word.", "note.txt")
        await output_of(tmp_path, *aider, *asked, **variables)
    assert file.read_text() == f"{WORD}\n"


@pytest.mark.opencode
async def test_opencode_calls_a_tool_and_reads_its_result(tmp_path: Path) -> None:
    """It asks for a title at the same time."""
    file = tmp_path / "note.txt"
    file.write_text(f"the word is {WORD}\n")

    def script(prompt: str) -> str:
        if "Generate a title" in prompt:
            return "A note"
        return f"It says {WORD}." if WORD in prompt else call("read", filePath=str(file))

    async with scripted(script) as address:
        options, variables = launch("opencode", address)
        asked = (*options, "run", "--format", "json", "What does note.txt say?")
        out = await output_of(tmp_path, "opencode", *asked, **variables)
    events = [json.loads(line) for line in out.splitlines()]
    parts = [event["part"] for event in events if "part" in event]
    assert [part["tool"] for part in parts if part["type"] == "tool"] == ["read"]
    assert "".join(part["text"] for part in parts if part["type"] == "text") == f"It says {WORD}."
