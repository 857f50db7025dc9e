"""Runs the doctests of functions that a model wrote.

A function is first checked: its syntax tree may hold arithmetic, strings, containers, loops, conditions, and
calls of itself, of `BUILTINS` and of `METHODS`. Then a child process with limits on time and memory, without
files, modules and other builtins, evaluates its examples.
"""

from __future__ import annotations

import ast
import doctest
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

CHILD: Final = Path(__file__).with_name("doctest_child.py")
CPU_SECONDS: Final = 1
MEMORY: Final = 256 << 20
PATIENCE: Final = 20.0
"""Seconds by the clock for a process, also on a busy machine."""

MOST_CHARACTERS: Final = 20_000
"""Of a function."""

BUILTINS: Final = frozenset((
    "abs", "all", "any", "bool", "chr", "dict", "divmod", "enumerate", "filter", "float", "frozenset",
    "int", "isinstance", "len", "list", "map", "max", "min", "ord", "pow", "range", "repr", "reversed",
    "round", "set", "sorted", "str", "sum", "tuple", "zip",
))  # fmt: skip
METHODS: Final = frozenset((
    "add", "append", "capitalize", "clear", "copy", "count", "difference", "discard", "endswith",
    "extend", "find", "get", "index", "insert", "intersection", "isalnum", "isalpha", "isdigit",
    "islower", "isspace", "isupper", "items", "join", "keys", "ljust", "lower", "lstrip", "pop", "remove",
    "removeprefix", "removesuffix", "replace", "reverse", "rfind", "rjust", "rstrip", "setdefault",
    "sort", "split", "splitlines", "startswith", "strip", "swapcase", "title", "union", "update", "upper",
    "values", "zfill",
))  # fmt: skip
"""No `format`: its fields reach attributes that no syntax tree shows."""

NODES: Final = (
    ast.Expression,
    # statements
    ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr,
    ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass,
    # expressions
    ast.BoolOp, ast.boolop, ast.UnaryOp, ast.UAdd, ast.USub, ast.Not, ast.Compare, ast.cmpop, ast.IfExp,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr,
    ast.BitXor, ast.Call, ast.keyword, ast.Lambda, ast.Starred, ast.JoinedStr, ast.FormattedValue,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Slice, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.comprehension, ast.expr_context,
)  # fmt: skip
"""What a function may consist of, besides names, attributes and constants."""

CONSTANTS: Final = (str, int, float, bool, type(None))


class Verdict(Enum):
    """What became of a function's examples."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the verdict on a function, and why it failed or was refused."""

    function: str
    verdict: Verdict
    why: str = ""


class RefusedError(ValueError):
    """A function holds what is not allowed. The message says what."""


def run_doctests(text: str) -> list[Outcome]:
    """Return the verdicts on the functions of `text` that have examples or do not parse.

    A function begins at a line with `def` and ends where the next one begins.
    """
    parts = (part for part in re.split(r"^(?=def )", text, flags=re.MULTILINE) if part.startswith("def "))
    return [outcome for part in parts if (outcome := _run(part)) is not None]


def check(source: str) -> ast.FunctionDef:
    """Return the one function that `source` defines. Raise `SyntaxError`, or `RefusedError`."""
    if len(source) > MOST_CHARACTERS:
        raise RefusedError(f"it has {len(source)} characters; at most {MOST_CHARACTERS} are allowed")
    function, *others = _parsed(source).body
    if others:
        raise RefusedError(f"line {others[0].lineno}: a statement outside of the function is not allowed")
    check_nodes(function)
    found: ast.FunctionDef = function
    return found


def check_nodes(*trees: ast.AST) -> None:
    """Raise `RefusedError` if the trees hold what is not allowed."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    known = BUILTINS | set(_bound(nodes))
    for node in nodes:
        if (why := _objection(node, known)) is not None:
            raise RefusedError(f"line {getattr(node, 'lineno', 1)}: {why}")


def _objection(node: ast.AST, known: frozenset[str]) -> str | None:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) if name.startswith("__"):
            return f"{name} is not allowed"
        case ast.FunctionDef(decorator_list=[_, *_]):
            return "a decorator is not allowed"
        case ast.FormattedValue(format_spec=ast.AST()):
            return "a format specification is not allowed"
        case ast.Name(id=name):
            return None if name in known else f"{name} is neither defined nor allowed"
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return None if name in METHODS else f".{name} is not allowed"
        case ast.Constant(value=value):
            return None if isinstance(value, CONSTANTS) else f"{value!r} is not allowed"
    return None if isinstance(node, NODES) else f"{type(node).__name__} is not allowed"


def _bound(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def _parsed(source: str, mode: str = "exec") -> Any:
    try:
        return ast.parse(source, mode=mode)
    except (RecursionError, MemoryError) as error:
        raise RefusedError("it is nested too deeply") from error


def _run(source: str) -> Outcome | None:
    name = source[4:].partition("(")[0].strip()
    try:
        function = check(source)
        examples = doctest.DocTestParser().get_examples(ast.get_docstring(function) or "")
        for example in examples:
            check_nodes(function, _parsed(example.source, "eval"))
    except RefusedError as error:
        return Outcome(name, Verdict.REFUSED, str(error))
    except (SyntaxError, ValueError) as error:  # ValueError: examples that are not indented evenly
        return Outcome(name, Verdict.FAILED, f"it does not parse: {error}")
    return _judged(name, source, examples) if examples else None


def _judged(name: str, source: str, examples: Sequence[doctest.Example]) -> Outcome:
    results = _evaluated(source, [example.source.strip() for example in examples])
    if isinstance(results, str):
        return Outcome(name, Verdict.FAILED, results)
    for example, got in zip(examples, results, strict=True):
        if got != (want := example.want.strip()):
            return Outcome(name, Verdict.FAILED, f"{example.source.strip()} is {got}, not {want}")
    return Outcome(name, Verdict.PASSED)


def _evaluated(source: str, examples: list[str]) -> list[str] | str:
    """Return what each example shows, or why the process came to no end."""
    task = {
        "source": source,
        "examples": examples,
        "builtins": sorted(BUILTINS),
        "seconds": CPU_SECONDS,
        "memory": MEMORY,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(CHILD)],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {PATIENCE:g} s"
    if done.returncode:
        return f"it needs more than {CPU_SECONDS} s or {MEMORY >> 20} MiB, or cannot be defined"
    found: list[str] = json.loads(done.stdout)
    return found
