"""`forerun launch` beside a running daemon, with a program that tells what it was started with."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_client.process import run_file as daemon_file
from edge_client.process.run_file import this_process
from forerun.commands.launch import AGENTS
from tests import wording
from tests.edge_client.api.served import TOKEN
from tests.forerun.beside import command, daemon

pytestmark = [pytest.mark.api, pytest.mark.grpc]

CODE = 7
PROGRAM = f"""\
#!{sys.executable}
import json, os, sys
print(json.dumps({{"words": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit({CODE})
"""
PAIR = "tiny@tiny-draft"


@dataclass
class Started:
    """What a program was started with."""

    words: list[str]
    environment: dict[str, str]
    notes: str = ""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs, one named as each agent."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in AGENTS:
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    return folder


async def run(programs: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **more}
    return await asyncio.to_thread(
        subprocess.run, words, env=environment, capture_output=True, text=True, check=False
    )


async def launched(programs: Path, *words: str, **more: str) -> Started:
    found = await run(programs, sys.executable, "-m", "forerun", "launch", *words, **more)
    assert found.returncode == CODE, found.stderr
    return Started(**json.loads(found.stdout), notes=found.stderr)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_program_gets_address_token_and_model_also_by_the_printed_commands(
    agent: str, state: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with daemon(state) as served:
        started = await launched(programs, agent, "--anyway", "--", "--its-own", "a 'word'", "--", "b")
        assert await command("launch", agent, "--print", "--", "--its-own", "a 'word'", "--", "b") == 0
        printed = capsys.readouterr().out
        by_hand = await run(programs, "sh", "-c", printed)
        other = await launched(programs, agent, "--anyway", "--model", "tiny-draft")
    said = json.dumps([started.words, started.environment])
    assert f"http://{served.address}" in said
    assert TOKEN in started.environment.values()
    assert TOKEN not in json.dumps(started.words)  # other users see the words
    assert PAIR in said
    assert PAIR not in json.dumps([other.words, other.environment])
    assert TOKEN not in printed
    again = Started(**json.loads(by_hand.stdout))
    assert again.words == started.words
    assert started.words[-4:] == ["--its-own", "a 'word'", "--", "b"]
    shells_own = {"_", "PWD", "OLDPWD", "SHLVL"}
    assert {
        name
        for name, value in started.environment.items()
        if again.environment.get(name) != value and name not in shells_own
    } == set()


@pytest.mark.parametrize("words", [["exec", "hello"], ["--sandbox", "x"], ["--modle", "x"]])
async def test_an_agents_words_without_the_dashes_are_an_error_that_names_them(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        await command("launch", "codex", *words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert words[0] in told
    assert "--\n" in told
    wording.keep(told)


async def test_codex_gets_toml(state: Path, programs: Path) -> None:
    import tomllib

    async with daemon(state) as served:
        words = (await launched(programs, "codex", "--anyway")).words
    assert words[::2] == ["-c"] * (len(words) // 2)
    found = tomllib.loads("\n".join(words[1::2]))
    assert found["model"] == PAIR
    provider = found["model_providers"][found["model_provider"]]
    assert provider["base_url"] == served.url
    command = [provider["auth"]["command"], *provider["auth"]["args"]]
    assert (await run(programs, *command)).stdout.strip() == TOKEN


async def test_opencode_gets_a_limit_below_the_context(state: Path, programs: Path) -> None:
    async with daemon(state):
        started = await launched(programs, "opencode", "--anyway")
    content: Any = json.loads(started.environment["OPENCODE_CONFIG_CONTENT"])
    limit = content["provider"]["forerun"]["models"][PAIR]["limit"]
    assert 0 < limit["output"] < limit["context"] <= 512


async def test_claude_gets_settings_which_go_before_the_users(state: Path, programs: Path) -> None:
    async with daemon(state) as served:
        started = await launched(programs, "claude", "--anyway")
    assert started.words[0] == "--settings"
    settings = json.loads(started.words[1])
    assert settings["env"]["ANTHROPIC_BASE_URL"] == f"http://{served.address}"
    assert settings["env"]["ANTHROPIC_AUTH_TOKEN"] == "", "else the user's own would be sent"
    assert (await run(programs, "sh", "-c", settings["apiKeyHelper"])).stdout.strip() == TOKEN


async def test_an_agent_that_could_not_work_is_started_only_if_told_so(state: Path, programs: Path) -> None:
    forerun = sys.executable, "-m", "forerun", "launch"
    refused = list[str]()
    async with daemon(state):  # a context of 512 tokens
        assert (await launched(programs, "aider")).notes == ""
        refused.append(await refusal(programs, *forerun, "codex"))
        assert (await launched(programs, "codex", "--anyway")).notes
        shown = await run(programs, *forerun, "codex", "--print")
        assert (shown.returncode, bool(shown.stdout), bool(shown.stderr)) == (0, True, True)
    async with daemon(state, not_ready="no verifier answers"):
        refused += [await refusal(programs, *forerun, agent) for agent in ("aider", "codex")]
        assert (await launched(programs, "aider", "--anyway")).notes
    assert "--slots" in refused[0]
    assert "--slots" not in refused[1]
    wording.keep("".join(refused))


async def refusal(programs: Path, *words: str) -> str:
    found = await run(programs, *words)
    assert (found.returncode, found.stdout) == (1, "")
    return found.stderr


async def test_claude_is_given_no_key_of_the_real_api(state: Path, programs: Path) -> None:
    async with daemon(state):
        started = await launched(programs, "claude", "--anyway", ANTHROPIC_API_KEY="a-real-key")
    assert "a-real-key" not in started.environment.values()


async def test_what_cannot_be_started_is_an_error(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(state))
    assert await command("launch", "codex") == 1  # no daemon
    async with daemon(state):
        assert await command("launch", "codex") == 2  # no codex
        assert await command("launch", "codex", "--print", "--model", "unknown") == 2
    for record in ({"listen": "unix:/run/forerun.sock"}, {"listen": "127.0.0.1:1", "tls_cert": "/tls.crt"}):
        daemon_file.write(state / "edge.pid", this_process(started_at=0.0, version="1.2.3", **record))
        assert await command("launch", "codex", "--print") != 0
    wording.keep(capsys.readouterr().err)
