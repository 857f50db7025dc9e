"""Makes the tables of docs/clients.md: the clients of tests/clients, their versions and their cases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CASES = {
    "chat": ("chat",),
    "streamed": ("streamed",),
    "tools": ("tools", "tools_streamed", "responses_tools"),
    "structured output": ("structured", "structured_by_tool"),
    "Responses API": ("responses",),
    "errors": ("error",),
}
"""Columns of the table, and the cases of scripts that fill them."""

AGENTS = {
    "@anthropic-ai/claude-code": "Claude Code",
    "@openai/codex": "Codex CLI",
    "opencode-ai": "opencode",
}
"""Coding agents by their package."""


@dataclass(frozen=True, slots=True)
class Client:
    """Holds what a script of tests/clients tells about itself."""

    package: str
    version: str
    cases: frozenset[str]
    script: Path

    @property
    def tested(self) -> list[str]:
        """Name the columns of the table whose cases the script has."""
        return [column for column, cases in CASES.items() if self.cases & {*cases}]


def table(root: Path) -> str:
    """Return the tables of agents and of libraries. Raise `ValueError` for a script that cannot be read."""
    lines = ["", "| agent | version |", "|---|---|"]
    lines += [f"| {name} | {version} |" for name, version in agents(root).items()]
    lines += ["", f"| library | version | {' | '.join(CASES)} |", f"|---|---|{'---|' * len(CASES)}"]
    for client in libraries(root):
        marks = ("yes" if column in client.tested else "" for column in CASES)
        lines.append(f"| `{client.package}` | {client.version} | {' | '.join(marks)} |")
    return "\n".join([*lines, ""])


def agents(root: Path) -> dict[str, str]:
    """Return the coding agents with their versions. Raise `ValueError` for a script that cannot be read."""
    folder = root / "tests" / "clients" / "agents"
    pins = {AGENTS[package]: version for package, version in _packages(folder).items()}
    return pins | {"aider": _python(folder / "run_aider.py").version}


def libraries(root: Path) -> Iterator[Client]:
    """Yield the libraries' clients. Raise `ValueError` for a script that cannot be read."""
    folder = root / "tests" / "clients"
    for script in sorted((folder / "python").glob("*.py")):
        if script.stem != "cases":
            yield _python(script)
    packages = _packages(folder / "node")
    for script in sorted((folder / "node").glob("*.mjs")):
        if script.stem != "cases":
            text = script.read_text(encoding="utf-8")
            package = _found(r'^import .* from "(.*)";', text, script)
            cases = frozenset(re.findall(r"^  async (\w+)\(", text, re.MULTILINE))
            yield Client(f"{package} (Node)", packages[package], cases, script)


def _python(script: Path) -> Client:
    """Read a script's first dependency (PEP 723) and its cases."""
    text = script.read_text(encoding="utf-8")
    package, _, version = _found(r'^# dependencies = \["(.*?)"', text, script).partition("==")
    cases = re.findall(r"^run\((.*)\)$", text, re.MULTILINE)
    return Client(package.partition("[")[0], version, frozenset(", ".join(cases).split(", ")), script)


def _packages(folder: Path) -> dict[str, str]:
    pins: dict[str, str] = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    return pins


def _found(pattern: str, text: str, script: Path) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"{script} holds no line like {pattern}")
    return match[1]
