"""A gate for code that must not be in a program that strangers speak to: `python -m tools.gate`.

It reads the source of the product's packages (`ast`; nothing is imported or run) and refuses

- **pickle** and its kin: formats that run code when they are read;
- **eval** of strings, by `eval`, `exec` or `compile`;
- **foreign code**: `trust_remote_code` that is not False, `torch.load` without `weights_only=True`;
- **yaml** by any loader but the safe one;
- **shell**: a command line in place of a list of words;
- **unbounded** reads: all that there is, of a file, a socket or a body, when somebody else decides how much.

A read is unbounded if no argument says how much at most: `read()`, `readline()`, `readlines()`, `readall()`,
`read_text()`, `read_bytes()`, `json.load`, `tomllib.load`, and of an HTTP request `body()`, `form()` and
`json()`. Of those some are right, as of a file that this program or its user wrote. They stand in
`tools/gate_allowed.py`, function by function, each with its reason; an entry that nothing needs any more is
refused, too. There are no exceptions from the other rules.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.floors import Module, bound_names, load
from tools.gate_allowed import ALLOWED

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["cloud_verifier", "common", "edge_client", "forerun", "link", "simulator"]
"""What is installed on servers and devices."""

PICKLES = frozenset({"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"})
EVALUATORS = frozenset({"eval", "exec", "compile"})
SHELLS = frozenset({"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"})
WHOLE_READS = frozenset({"read", "readline", "readlines", "readall", "read_text", "read_bytes"})
WHOLE_BODIES = frozenset({"request.body", "request.form", "request.json", "response.json"})
WHOLE_LOADS = frozenset({"json.load", "tomllib.load", "linecache.getline", "linecache.getlines"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that the gate refuses."""

    path: str
    line: int
    where: str  # the function, as `Class.method`; empty for a module's own lines
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words} ({self.rule})"


Rule = Callable[[ast.AST, Mapping[str, str]], str | None]
"""From a node, and what imported names stand for, to what is wrong with it."""


def no_pickles(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Reading one runs what is in it."""
    found = list[str]()
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        found = [node.module or ""]
    elif isinstance(node, ast.Call):
        name = _called(node, names)
        if name in ("importlib.import_module", "__import__"):
            found = [value for each in node.args[:1] if isinstance(value := _literal(each), str)]
        elif name == "numpy.load" and _literal(_keyword(node, "allow_pickle")) not in (None, False):
            return "numpy.load reads pickles"
        elif name.endswith(".read_pickle"):
            return f"{name} reads pickles"
    bad = [name for name in found if name.split(".", 1)[0] in PICKLES]
    return f"{bad[0]} is imported; use JSON, protobuf or safetensors" if bad else None


def no_evaluation(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Text that becomes code."""
    if not isinstance(node, ast.Call):
        return None
    name = _called(node, names).removeprefix("builtins.")
    return f"{name}() makes code of text" if name in EVALUATORS else None


def no_foreign_code(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """A model's folder holds weights, not code."""
    if (
        isinstance(node, ast.keyword)
        and node.arg == "trust_remote_code"
        and _literal(node.value) is not False
    ):
        return "trust_remote_code is not False"
    if isinstance(node, ast.Dict) and any(
        _literal(key) == "trust_remote_code" and _literal(value) is not False
        for key, value in zip(node.keys, node.values, strict=True)
    ):
        return "trust_remote_code is not False"
    if not isinstance(node, ast.Call) or _called(node, names) != "torch.load":
        return None
    is_safe = _literal(_keyword(node, "weights_only")) is True
    return None if is_safe else "torch.load without weights_only=True reads pickles"


def no_unsafe_yaml(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Its other loaders make any object."""
    name = _called(node, names) if isinstance(node, ast.Call) else ""
    module, _, function = name.rpartition(".")
    is_yaml = module.split(".", 1)[0] in ("yaml", "ruamel")
    bad = is_yaml and "load" in function and not function.startswith("safe_load")
    return f"{name} makes any object; use yaml.safe_load" if bad else None


def no_shell(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """A shell reads a file's name as a command."""
    if not isinstance(node, ast.Call):
        return None
    if (name := _called(node, names)) in SHELLS:
        return f"{name} runs a shell; give subprocess.run a list of words"
    shell = _keyword(node, "shell")
    if shell is not None and _literal(shell) is not False:
        return "shell=True runs a shell; give a list of words"
    return "a shell is started" if name == "asyncio.create_subprocess_shell" else None


def no_unbounded_reads(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Who sends decides how much memory it costs."""
    if not isinstance(node, ast.Call):
        return None
    name = _called(node, names)
    if name in WHOLE_LOADS or ".".join(name.rsplit(".", 2)[-2:]) in WHOLE_BODIES:
        return f"{name} reads all that there is"
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in WHOLE_READS:
        return None
    method = node.func.attr
    if method in ("read_text", "read_bytes"):
        return f"{method}() reads all that there is"
    return None if any(_literal(each) not in (None, -1) for each in node.args) else f"{method}() has no limit"


RULES: dict[str, Rule] = {
    "pickle": no_pickles,
    "eval": no_evaluation,
    "foreign code": no_foreign_code,
    "yaml": no_unsafe_yaml,
    "shell": no_shell,
    "unbounded": no_unbounded_reads,
}


def findings(module: Module) -> Iterator[Finding]:
    """All of a module, before anything is allowed."""
    names = bound_names(module)
    for node, where in _with_places(module.tree, ""):
        for rule, check in RULES.items():
            if (words := check(node, names)) is not None:
                yield Finding(module.path, getattr(node, "lineno", 0), where, rule, words)


def complaints(modules: Iterable[Module], allowed: Mapping[tuple[str, str], str] = ALLOWED) -> list[str]:
    """What is refused, and what is allowed in vain. `allowed`: (path, function) -> why it may read all."""
    refused, used = list[str](), Counter[tuple[str, str]]()
    for module in modules:
        for found in findings(module):
            place = (found.path, found.where)
            if found.rule == "unbounded" and place in allowed:
                used[place] += 1
            else:
                refused.append(str(found))
    vain = [place for place in allowed if place not in used]
    return refused + [f"{path}: {where} is allowed unbounded reads and has none" for path, where in vain]


def _with_places(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str]]:
    """Every node with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}" if where else child.name
        yield child, inner
        yield from _with_places(child, inner)


def _called(node: ast.Call, names: Mapping[str, str]) -> str:
    """The dotted name of what is called; empty where it is no name."""
    parts, at = list[str](), node.func
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return ""
    return ".".join([names.get(at.id, at.id), *reversed(parts)])


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in node.keywords if each.arg == name), None)


def _literal(node: ast.expr | None) -> object:
    """Its value; None where there is none, and `...` for one that only a run could tell."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ...


def main() -> int:
    """0 if nothing is refused."""
    found = complaints(load(ROOT, PACKAGES))
    print("\n".join(found) if found else f"{', '.join(PACKAGES)}: nothing is refused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
