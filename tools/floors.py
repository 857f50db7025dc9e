"""Holds the house's plan: which module may import which, and what the pure floors may touch.

    4  forerun, benchmarks, demo_models           compose the parts
    3  drivers: edge_client, cloud_verifier, link, simulator, common.rpc, common.pb, common.grammar
    2  cores: edge_client.core, cloud_verifier.core
    1  words: the rest of common

Imports go down. Floors 1 and 2 are pure: the clock, the network, files and chance come in as arguments.
Everything here reads source text only (`ast`, `tokenize`); nothing is imported or run. Each law is a function
from one module to a list of messages, empty when the law is held.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FLOORS = {
    "forerun": 4,
    "benchmarks": 4,
    "demo_models": 4,
    "edge_client": 3,
    "cloud_verifier": 3,
    "link": 3,
    "simulator": 3,
    "common.rpc": 3,
    "common.pb": 3,
    "common.grammar": 3,
    "edge_client.core": 2,
    "cloud_verifier.core": 2,
    "common": 1,
}
"""Floor of a module, by the longest prefix of its dotted name that stands here."""

NEIGHBOURS = {
    ("edge_client", "common"): "the driver speaks through common.rpc",
    ("cloud_verifier", "common"): "the driver speaks through common.rpc",
    ("simulator", "common"): "the bytes of a message are those of common.rpc's",
    ("link", "common"): "the emulated link may read messages through common.rpc",
    ("forerun", "demo_models"): "`forerun demo` runs the demo pair",
    ("benchmarks", "forerun"): "the benchmarks run the rig and the schemes of the demo",
    ("benchmarks", "demo_models"): "the benchmarks measure the demo pair",
}
"""(importer, imported) packages that may meet on one floor, and why. No pair stands here both ways."""

UNSCANNED = {"tests", "tools", "deploy"}
"""Top-level folders of Python that are no part of the installed product, and so have no floor."""

PURE_FLOOR = 2
"""Floors up to this one use the standard library and numpy only, and none of `IMPURE`."""

IMPURE = {
    "time": "take `now` (monotonic seconds) as an argument",
    "datetime.datetime.now": "take `now` as an argument",
    "datetime.datetime.utcnow": "take `now` as an argument",
    "datetime.datetime.today": "take `now` as an argument",
    "datetime.date.today": "take `now` as an argument",
    "asyncio": "leave scheduling to the driver; return effects",
    "threading": "leave threads to the driver",
    "multiprocessing": "leave processes to the driver",
    "concurrent": "leave threads to the driver",
    "subprocess": "leave processes to the driver",
    "socket": "leave the network to the driver; return effects",
    "select": "leave the network to the driver; return effects",
    "selectors": "leave the network to the driver; return effects",
    "ssl": "leave the network to the driver; return effects",
    "random": "use common.noise, or take a numpy Generator as an argument",
    "secrets": "take the value as an argument",
    "uuid": "take the identifier as an argument",
    "os.environ": "take the setting as an argument",
    "os.getenv": "take the setting as an argument",
    "os.urandom": "take the value as an argument",
    "os.open": "leave files to the driver",
    "io.open": "leave files to the driver",
}
"""What a pure module may neither import nor name, as dotted origins, and what to do instead."""

NUMPY_RANDOM_TYPES = {"Generator", "BitGenerator", "SeedSequence", "PCG64", "Philox", "default_rng"}
"""The names of numpy.random without global state; making one without a seed reads the system's entropy."""

LONGEST_FUNCTION = 60
"""Lines of a function's body, its docstring included. Longer ones state why in a comment `# long: reason`."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute: `from a import b` is `a.b`, whether b is a module or a thing in one."""

    target: str
    line: int


@dataclass(frozen=True)  # no slots: cached_property keeps its value in the instance
class Module:
    """One source file. `name` is its dotted name ("common.rpc.codec"); `path` stands in messages."""

    name: str
    path: str
    source: str

    @property
    def package(self) -> str:
        """The top-level package: common, for common.rpc.codec."""
        return self.name.split(".", 1)[0]

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source. Raises `SyntaxError`."""
        return ast.parse(self.source, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, in the order of `ast.walk`."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, also those in functions and under TYPE_CHECKING: a type is a dependency too."""
        return [found for node in self.nodes for found in self._imports_of(node)]

    def at(self, line: int) -> str:
        """Where a message points to."""
        return f"{self.path}:{line}"

    def _imports_of(self, node: ast.AST) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = self._absolute(node)
            for alias in node.names:
                yield Import(base if alias.name == "*" else f"{base}.{alias.name}", node.lineno)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = node.level - (1 if self.path.endswith("__init__.py") else 0)
        parts = self.name.split(".")
        base = parts[: len(parts) - above]
        return ".".join(base + ([node.module] if node.module else []))


def load(root: Path, packages: list[str]) -> list[Module]:
    """The modules of these packages below `root`, sorted by path, without generated stubs."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    relative = [path.relative_to(root) for path in paths]
    return [
        Module(_dotted(path), path.as_posix(), (root / path).read_text(encoding="utf-8"))
        for path in relative
        if not is_generated(path)
    ]


def is_generated(path: Path) -> bool:
    """Whether the file is written by `make proto`."""
    return path.name.endswith(("_pb2.py", "_pb2_grpc.py"))


def packages_of(root: Path) -> list[str]:
    """Names of the top-level folders of `root` that hold Python and are part of the product, sorted."""
    folders = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    skipped = UNSCANNED | {"build", "dist"}
    return sorted(path.name for path in folders if path.name not in skipped and any(path.rglob("*.py")))


def floor_of(name: str) -> int | None:
    """Floor of a dotted name; None for what is not ours (numpy, json)."""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((FLOORS[prefix] for prefix in prefixes if prefix in FLOORS), None)


def imports_go_down(module: Module) -> list[str]:
    """An import goes to a lower floor, or stays on its floor within the package or with a named neighbour."""
    return [complaint for found in module.imports if (complaint := _upward(module, found)) is not None]


def sides_stay_apart(module: Module) -> list[str]:
    """The device's code and the server's never import each other, on any floor."""
    sides = {"edge_client": "cloud_verifier", "cloud_verifier": "edge_client"}
    other = sides.get(module.package)
    return [
        f"{module.at(found.line)}: {module.package} imports {found.target}; what both need goes to common"
        for found in module.imports
        if found.target.split(".", 1)[0] == other
    ]


def runtimes_stay_apart(module: Module) -> list[str]:
    """The device's code imports no torch, the server's no llama.cpp: neither install brings the other's."""
    foreign = {
        "edge_client": {"torch", "transformers", "safetensors", "triton"},
        "cloud_verifier": {"llama_cpp"},
        "common": {"torch", "transformers", "safetensors", "triton", "llama_cpp"},
        "link": {"torch", "transformers", "safetensors", "triton", "llama_cpp"},
    }
    banned = foreign.get(module.package, set())
    return [
        f"{module.at(found.line)}: {module.package} imports {found.target}, which its install does not bring"
        for found in module.imports
        if found.target.split(".", 1)[0] in banned
    ]


def pure_imports(module: Module) -> list[str]:
    """Floors 1 and 2 import the standard library, numpy and our modules (`imports_go_down` holds these)."""
    if not _is_pure(module):
        return []
    allowed = sys.stdlib_module_names | {"numpy"}
    return [
        f"{module.at(found.line)}: {module.name} (floor {floor_of(module.name)}) imports {found.target}; "
        f"only the standard library and numpy are allowed there: move the use into a driver (floor 3)"
        for found in module.imports
        if floor_of(found.target) is None and found.target.split(".", 1)[0] not in allowed
    ]


def pure_names(module: Module) -> list[str]:
    """Floors 1 and 2 touch no clock, network, file, thread, environment or hidden random source."""
    if not _is_pure(module):
        return []
    bound = bound_names(module)
    uses = [(found.line, _impure_reason(found.target)) for found in module.imports]
    for node in module.nodes:
        if isinstance(node, (ast.Attribute, ast.Name)):
            uses.append((node.lineno, _impure_reason(_origin(node, bound))))
        elif isinstance(node, ast.Call):
            uses.append((node.lineno, _impure_call(node, bound)))
    lines = dict.fromkeys((line, reason) for line, reason in uses if reason is not None)
    return [f"{module.at(line)}: {module.name} is pure and uses {reason}" for line, reason in lines]


def functions_are_short(module: Module) -> list[str]:
    """No body is longer than `LONGEST_FUNCTION` lines, unless a comment `# long: reason` says why."""
    functions = [node for node in module.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    too_long = [node for node in functions if _body_lines(node) > LONGEST_FUNCTION]
    if not too_long:
        return []
    comments = _comments(module.source)
    return [
        f"{module.at(node.lineno)}: {node.name} has {_body_lines(node)} lines, more than {LONGEST_FUNCTION}; "
        f"split it, or say why not in a comment `# long: reason`"
        for node in too_long
        if not _is_excused(node, comments)
    ]


LAWS = (
    imports_go_down,
    sides_stay_apart,
    runtimes_stay_apart,
    pure_imports,
    pure_names,
    functions_are_short,
)


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _upward(module: Module, found: Import) -> str | None:
    here, there = floor_of(module.name), floor_of(found.target)
    if here is None or there is None or there < here:
        return None
    package = found.target.split(".", 1)[0]
    if there == here and (package == module.package or (module.package, package) in NEIGHBOURS):
        return None
    return (
        f"{module.at(found.line)}: {module.name} (floor {here}) imports {found.target} (floor {there}); "
        f"imports go down: move what is needed to a lower floor, or pass it in from above"
    )


def _is_pure(module: Module) -> bool:
    floor = floor_of(module.name)
    return floor is not None and floor <= PURE_FLOOR


def bound_names(module: Module) -> dict[str, str]:
    """What each imported name stands for: {"np": "numpy", "dt": "datetime.datetime"}."""
    bound: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".", 1)[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def _origin(node: ast.expr, bound: dict[str, str]) -> str:
    """The dotted origin of a name or attribute chain that begins with an import; "" for any other."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _origin(node.value, bound)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _impure_reason(origin: str) -> str | None:
    parts = origin.split(".")
    prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    for prefix in prefixes:
        if prefix in IMPURE:
            return f"{prefix}: {IMPURE[prefix]}"
    if parts[:2] == ["numpy", "random"] and len(parts) > 2 and parts[2] not in NUMPY_RANDOM_TYPES:
        return f"numpy.random.{parts[2]}, which has global state: take a numpy Generator as an argument"
    return None


def _impure_call(node: ast.Call, bound: dict[str, str]) -> str | None:
    if isinstance(node.func, ast.Name) and node.func.id == "open" and "open" not in bound:
        return "open(): leave files to the driver"
    origin = _origin(node.func, bound)
    if origin.startswith("numpy.random.") and not (node.args or node.keywords):
        return f"{origin}() without a seed: take a seed or a numpy Generator as an argument"
    return None


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.body[0].lineno + 1


def _comments(source: str) -> dict[int, str]:
    """Line number to comment text, of comments only (a `#` in a string is none)."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def _is_excused(node: ast.FunctionDef | ast.AsyncFunctionDef, comments: dict[int, str]) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    while first - 1 in comments:  # the comment block right above
        first -= 1
    lines = range(first, (node.end_lineno or node.lineno) + 1)
    reasons = [comments[line].partition("long:") for line in lines if line in comments]
    return any(mark and reason.strip() for _, mark, reason in reasons)
