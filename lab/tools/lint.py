"""The rules that no linter has: `python -m lab.tools.lint` (part of `make static`).

- unbounded: a read without a limit lets the sender decide how much memory it costs. `ALLOWED` names the
  functions that may read all of a file, each with its reason.
- foreign code: `trust_remote_code` runs the code of a model's folder.
- chance: a numpy Generator without a seed, in a package whose results must be repeatable.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("cloud_verifier", "common", "edge_client", "forerun", "lab/integrations"),
    *("schemes", "simulator", "training"),
)
READS = {"read", "readline", "readlines", "readall", "read_text", "read_bytes"}
CALLS = {"json.load", "tomllib.load", "request.body", "request.form", "request.json"}

ALLOWED = {
    "this program wrote the file": """
        edge_client.texts.resume._read edge_client.process.run_file.read_any
        training.doctest_child.main training.prompts.bundled edge_client.api.page.page_routes
        edge_client.api.app._openapi
        simulator.sweep._has_finished_cells simulator.tables.Table.keep
        simulator.tables.Table.load""",
    "the user or the configuration names the file": """
        edge_client.fleet.mqtt._password forerun.commands.chat._plain_line forerun.options.read_prompt
        simulator.documents.read_text simulator.tables.read_rows""",
    "this program started the process; asyncio limits a line to 64 KiB": """
        training.doctest_child.main""",
    "the kernel writes the file": """
        edge_client.process.run_file._start_on_linux""",
    "`Guarded` ends a request's body at api.max_body_bytes": """
        edge_client.api.app._body""",
    "the size is checked first": """
        common.config.merge.read_toml forerun.commands.verify.check
        schemes.drafters.file_index._text_in""",
}
"""Reason -> functions that may read without a limit, by their dotted names."""


def findings(source: str, module: str) -> Iterator[tuple[int, str, str]]:
    """Line, dotted function and rule of everything wrong in a module, before anything is allowed."""
    for node, where in _nodes(ast.parse(source), module):
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.lineno, where, "foreign code"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            limits = [each for each in node.args if ast.unparse(each) not in ("-1", "None")]
            is_read = isinstance(node.func, ast.Attribute) and node.func.attr in READS and not limits
            if is_read or ".".join(name.split(".")[-2:]) in CALLS:
                yield node.lineno, where, "unbounded"
            elif name.endswith("default_rng") and not (node.args or node.keywords):
                yield node.lineno, where, "chance"


def complaints(root: Path = ROOT) -> list[str]:
    """List what is refused in the product, and what is allowed in vain."""
    allowed = {name for names in ALLOWED.values() for name in names.split()}
    refused, used = list[str](), set[str]()
    for path in (path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for line, where, rule in findings(path.read_text(encoding="utf-8"), module):
            if rule == "unbounded" and where in allowed:
                used.add(where)
            else:
                refused.append(f"{path.relative_to(root)}:{line}: {rule} in {where}")
    return refused + [
        f"lab/tools/lint.py: {name} reads nothing without a limit" for name in sorted(allowed - used)
    ]


def _nodes(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield every node with the dotted name of its function."""
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}"
        yield child, inner
        yield from _nodes(child, inner)


if __name__ == "__main__":
    refused = complaints()
    print("\n".join(refused))
    sys.exit(bool(refused))
