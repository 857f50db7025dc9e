"""Implements `forerun launch`: starts a coding agent that uses the running daemon."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from common.config.command_line import add_command, add_options, read_options
from common.config.setting import setting
from common.errors import UnavailableError, UserError
from edge_client.process import run_file as daemon_file
from edge_client.process.client import client_of, url_of
from edge_client.process.paths import read_token
from edge_client.process.run_file import DaemonRecord
from forerun.options import PlaceOption
from forerun.terminal import note

DESCRIPTION = """\
Start a coding agent that uses the running daemon (`forerun edge`). Words after -- are the agent's own:

  forerun launch codex
  forerun launch claude -- --continue
  forerun launch opencode --model TARGET -- run 'Explain this folder.'

Environment variables and options of the agent's command line choose the daemon, for this start alone. The
agent's own configuration files stay unchanged and keep their other settings. An agent that could not work, as
no text can be written or the context is too small, is not started without --anyway.

--print shows them as shell commands and starts nothing. They read the daemon's token from its file."""

NO_TOKEN = "none"  # noqa: S105
"""Given to agents that refuse to start without a token, if the daemon asks for none."""

OUTPUT_SHARE = 4
"""Share of the context, as a divisor, that one answer may take. Agents keep the rest for the prompt."""

ROOMY = 32_768
"""Tokens of a context in which agents can work. Their own prompts and tools take 5,000 to 20,000."""

SPARE = 768
"""Tokens of `ROOMY` that may lack. A verifier keeps some of as many --slots for nodes (`--max-nodes`)."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Says how agents reach the daemon, and with which model."""

    url: str  # without /v1
    model: str
    context: int | None  # most tokens of prompt and answer; None: unknown
    token_file: str = ""  # of the daemon; empty: it asks for no token

    @property
    def longest_answer(self) -> int:
        """Return the most tokens of one answer. Needs a known `context`."""
        assert self.context is not None
        return max(1, self.context // OUTPUT_SHARE)


@dataclass(frozen=True, slots=True)
class Start:
    """Holds what an agent is started with."""

    token_name: str  # of the environment variable that holds the daemon's token
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agent:
    install: str  # the command that installs it
    start: Callable[[ModelAccess], Start]
    context: int = 0  # least tokens that leave room for work beside its own prompt and tools


def _codex(to: ModelAccess) -> Start:
    """Override Codex' configuration: https://developers.openai.com/codex/config-reference

    Only with a command for the token Codex asks the daemon for its models, with context and instructions.
    """
    provider = "model_providers.forerun"
    settings: dict[str, Any] = {
        "model": to.model,
        "model_provider": "forerun",
        f"{provider}.name": "Forerun",
        f"{provider}.base_url": f"{to.url}/v1",
        f"{provider}.wire_api": "responses",
    }
    if to.token_file:
        settings |= {f"{provider}.auth.command": "cat", f"{provider}.auth.args": [to.token_file]}
    else:
        settings[f"{provider}.env_key"] = "FORERUN_TOKEN"
    if to.context is not None:
        settings["model_context_window"] = to.context
    values = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    return Start("FORERUN_TOKEN", [word for each in values for word in ("-c", each)])


def _claude(to: ModelAccess) -> Start:
    """Set Claude Code's variables: https://docs.claude.com/en/docs/claude-code/settings

    Variables in the user's settings go before those of the process, and `--settings` before both. The token
    stays out of the words, which other users see.
    """
    models = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    environment = {
        "ANTHROPIC_BASE_URL": to.url,
        **{f"ANTHROPIC_{name}": to.model for name in models},
        "ANTHROPIC_API_KEY": "",  # a key for the real API is none of the daemon's business
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes with each request, ahead of what could be cached
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if to.context is not None:  # else Claude Code assumes a million tokens, and never shortens a conversation
        environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(to.context)
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(to.longest_answer)
    settings: dict[str, Any] = {"env": {**environment, "ANTHROPIC_AUTH_TOKEN": NO_TOKEN}}
    if to.token_file:
        settings["env"]["ANTHROPIC_AUTH_TOKEN"] = ""
        settings["apiKeyHelper"] = shlex.join(["cat", to.token_file])
    words = ("--settings", json.dumps(settings, ensure_ascii=False))
    return Start("ANTHROPIC_AUTH_TOKEN", words, environment)


def _opencode(to: ModelAccess) -> Start:
    """Add a provider to opencode's configuration: https://opencode.ai/docs/providers"""
    model: dict[str, Any] = {"name": to.model}
    if to.context is not None:
        model["limit"] = {"context": to.context, "output": to.longest_answer}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Forerun",
        "options": {"baseURL": f"{to.url}/v1", "apiKey": "{env:FORERUN_TOKEN}"},
        "models": {to.model: model},
    }
    name = f"forerun/{to.model}"
    content = {"provider": {"forerun": provider}, "model": name, "small_model": name}
    return Start("FORERUN_TOKEN", (), {"OPENCODE_CONFIG_CONTENT": json.dumps(content, ensure_ascii=False)})


def _aider(to: ModelAccess) -> Start:
    """Set aider's options: https://aider.chat/docs/llms/openai-compat.html

    The variable of aider's own option goes before OPENAI_API_KEY and before keys in aider's files.
    """
    options = ("--openai-api-base", f"{to.url}/v1", "--model", f"openai/{to.model}")
    return Start("AIDER_OPENAI_API_KEY", (*options, "--no-show-model-warnings"))


AGENTS = {
    "codex": Agent("npm install -g @openai/codex", _codex, ROOMY),
    "claude": Agent("npm install -g @anthropic-ai/claude-code", _claude, ROOMY),
    "opencode": Agent("npm install -g opencode-ai", _opencode, ROOMY),
    "aider": Agent("pip install aider-chat", _aider),
}
"""By the name of the program."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(PlaceOption):
    """Declares which agent is started."""

    agent: str = setting(
        "", f"one of {', '.join(AGENTS)}", choices=(*AGENTS,), metavar="AGENT", is_argument=True
    )
    model: str = setting("", "one of the daemon's models (default: its first)", "NAME")
    anyway: bool = setting(False, "start the agent even if it could not work")
    shown: bool = setting(False, "print shell commands and start nothing", flag="--print")


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "launch", "start a coding agent that uses the running daemon", description=DESCRIPTION
    )
    parser.usage = "%(prog)s AGENT [options] [-- ARG ...]"
    add_options(parser, LaunchOptions)
    parser.set_defaults(
        arguments=[], run=lambda options: _run(read_options(options, LaunchOptions), options.arguments)
    )


def _run(options: LaunchOptions, arguments: Sequence[str]) -> int:
    """Become the agent, or print how. Raise `ForerunError`."""
    record = daemon_file.read(options.paths.daemon)
    if record is None:
        raise UnavailableError(f"no edge daemon is running; {daemon_file.HOW_TO_START}")
    agent, program = AGENTS[options.agent], shutil.which(options.agent)
    if program is None and not options.shown:
        raise UserError(f"{options.agent} is not installed; install it with: {agent.install}")
    to = _connection(record, options.model)
    if hindrances := _hindrances(record, to, options.agent):
        if not (options.anyway or options.shown):
            raise UnavailableError("; ".join((*hindrances, "--anyway starts the agent nonetheless")))
        for words in hindrances:
            note(words)
    start = agent.start(to)
    command = [options.agent, *start.options, *arguments]
    if program is None or options.shown:
        print(_as_shell(start, command, record))
        return 0
    _become(program, command, {**os.environ, **start.environment, start.token_name: _token(record)})


def _connection(record: DaemonRecord, model: str) -> ModelAccess:
    """Ask the daemon for the model of this name, or for its first. Raise `ForerunError`."""
    url, client = url_of(record), client_of(record)
    card = client.get(f"/v1/models/{quote(model)}") if model else client.get("/v1/models")["data"][0]
    return ModelAccess(url, card["id"], card["meta"]["max_positions"], record.token_file)


def _hindrances(record: DaemonRecord, to: ModelAccess, name: str) -> list[str]:
    """Return what will keep the agent from working: it shows none of this itself."""
    advice, least = list[str](), AGENTS[name].context
    if to.context is not None and to.context < least - SPARE:
        advice.append(
            f"{to.model} has a context of {to.context} tokens, which {name}'s own prompt and tools fill; "
            f"serve a target of {least} tokens or more, with as many --slots of `forerun verify`"
        )
    try:
        client_of(record).get("/readyz")
    except UnavailableError:
        advice.append("the daemon can write no texts now; `forerun doctor` says why and what to do")
    return advice


def _token(record: DaemonRecord) -> str:
    return read_token(Path(record.token_file)) if record.token_file else NO_TOKEN


def _as_shell(start: Start, words: Sequence[str], record: DaemonRecord) -> str:
    """Return commands of a POSIX shell. The token stays in its file."""
    token = f'"$(cat {shlex.quote(record.token_file)})"' if record.token_file else NO_TOKEN
    lines = [f"export {name}={shlex.quote(value)}" for name, value in start.environment.items()]
    return "\n".join([*lines, f"export {start.token_name}={token}", shlex.join(words)])


def _become(program: str, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process, so that signals, terminal and exit code are the program's own."""
    sys.stdout.flush()
    try:
        os.execve(program, [*words], environment)  # noqa: S606 - a program from `AGENTS`
    except OSError as error:
        raise UserError(f"{program} cannot be started: {error.strerror or error}") from error
