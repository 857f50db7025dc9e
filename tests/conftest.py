"""What all tests share: which of them a machine can run, what they cost, and how Hypothesis searches.

A test that needs an optional part carries its mark (`torch`, `llama`, `gpu`, ...) and imports that part
inside the test or a fixture, so that its file can be collected anywhere; a file whose `pytestmark` names
`torch` or `triton` imports it at its top. On a developer's machine a test without its part is skipped with
the reason, such a file is left out; in continuous integration (CI=true) a missing part fails it, because a
test that nobody runs protects nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.wording import WORDING

NEEDED_MODULES = {
    "torch": (("torch", "transformers"), "pip install 'forerun[verifier]'"),
    "triton": (("torch", "transformers", "triton"), "pip install triton"),
    "llama": (("llama_cpp",), "pip install 'forerun[edge]'"),
    "grammar": (("llguidance",), "pip install 'forerun[edge]'"),
    "api": (("starlette", "uvicorn", "jinja2", "httpx", "platformdirs"), "pip install 'forerun[edge,dev]'"),
    "sdk": (("starlette", "uvicorn", "openai", "anthropic"), "pip install 'forerun[edge,dev]'"),
    "broker": (("aiomqtt", "nacl"), "pip install 'forerun[edge]'"),
    "browser": (("selenium",), "pip install 'forerun[dev]'"),
    "quantized": (("torchao",), "pip install 'forerun[verifier,quantized]'"),
    "ray": (("ray", "mmh3"), "pip install -e lab/integrations/forerun_ray"),
    "site": (("zensical", "yaml"), "pip install 'forerun[docs]'"),
    "parallel": (("accelerate",), "pip install 'forerun[verifier,parallel]'"),
}
"""Mark -> modules that its tests import, and how to get them."""

NEEDED_PROGRAMS = {
    "broker": ("mosquitto",),
    "browser": ("chromium", "chromedriver"),
    "node": ("node", "npm"),
    "claude": ("claude",),
    "codex": ("codex",),
    "opencode": ("opencode",),
    "kube": ("kubectl",),
    "helm": ("helm",),
    "promtool": ("promtool",),
    "proxies": ("nginx", "haproxy"),
    "envoy": ("envoy",),
}
"""Mark -> programs that its tests start; `.ci/run` installs them where it may."""

NOWHERE = frozenset(os.environ.get("FORERUN_TESTS_WITHOUT", "").split())
"""Marks whose programs `.ci/run` could not get on this machine; their tests say so and are skipped."""

TESTS = Path(__file__).parent

CLIENTS = TESTS / "clients"

PYTHON_CLIENTS = Path(sys.prefix) / "clients" / ".forerun-installed"
"""What `make clients` leaves when each script of tests/clients/python has its environment."""

AGENTS = CLIENTS / "agents" / "node_modules" / ".bin"

ENVOY = Path(sys.prefix) / "envoy" / "envoy" / "_bin"

NODE_PACKAGES = CLIENTS / "node" / "node_modules"

HELM_PACKAGES = TESTS / "deploy" / "helm" / "node_modules"

REAL_MODELS = Path(os.environ.get("FORERUN_REAL_MODELS") or Path(sys.prefix) / "models").absolute()
"""Published GGUF files. `make test` fetches `SMOLLM2` into the second folder."""

SMOLLM2 = "smollm2-135m.gguf"

QUICK = (
    *(TESTS / "cloud_verifier" / "core", TESTS / "edge_client" / "core", TESTS / "common"),
    *(TESTS / "drivers", TESTS / "golden", TESTS / "worlds"),
)
"""Folders of `make quick`: the two cores, what both sides share, random worlds, and texts over gRPC."""

NOT_QUICK = {
    *NEEDED_MODULES,
    *NEEDED_PROGRAMS,
    *("clients", "grpc", "gpu", "large", "real", "slow", "soak"),
} - {"grammar"}
"""Marks of the tests that `make quick` leaves out, unless the test is marked `smoke` as well."""

AT_ITS_TOP = re.compile(
    r"^(import torch$|pytestmark = .*pytest\.mark\.(?P<kind>torch|triton)\b)", re.MULTILINE
)
"""What tells a file whose tests all need torch or triton, which it may then import at its top."""

NOT_IMPORTED = {"torch", "transformers", "llama_cpp"}
"""`make quick` imports none of them."""

WHERE_PROGRAMS_ARE = os.pathsep.join(
    (
        *(os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"),
        *(str(HELM_PACKAGES / ".bin"), str(AGENTS), str(ENVOY)),
    )
)
"""Debian puts a broker beside other daemons, where only root's PATH looks; `make test` fetches Helm, and
`make clients` coding agents."""


def has_driver() -> bool:
    """Whether there is an NVIDIA driver: what torch and triton ask first, and costs no import of them."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


# Triton decides when it is imported, so this must come before any test: numpy runs its kernels without a GPU.
if not has_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# xdist starts a process for each processor. Torch's threads in each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What commands keep between runs, such as which draft files may be loaded, is not put among that of whoever
# runs the tests.
STATE = tempfile.TemporaryDirectory(prefix="forerun-state-")
os.environ["XDG_STATE_HOME"] = STATE.name

# The same examples in every run: a failure can be repeated, and a passing change stays passing.
settings.register_profile("forerun", derandomize=True, deadline=None)
settings.load_profile("forerun")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-wording", action="store_true", help="rewrite tests/wording.json")
    parser.addoption("--quick", action="store_true", help="run the tests of `make quick` only")


class ImportRefused:
    """A finder that fails the import of a heavy module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in NOT_IMPORTED:
            raise ImportError(f"a test of `make quick` imports {name}; mark it", name=name)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        sys.meta_path.insert(0, ImportRefused())
    WORDING.refresh = config.getoption("--refresh-wording")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders that are not of `make quick`, and files that a run cannot even import."""
    quick = config.getoption("--quick")
    if quick and not any(collection_path.is_relative_to(folder) for folder in QUICK):
        leads_there = any(folder.is_relative_to(collection_path) for folder in QUICK)
        return None if leads_there else True
    if collection_path.is_dir():
        return None
    heavy = AT_ITS_TOP.search(collection_path.read_text("utf-8"))
    if heavy is None:
        return None
    if quick:
        return True
    return (find_spec(heavy["kind"] or "torch") is None and os.environ.get("CI") != "true") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    WORDING.collected = {item.nodeid for item in items}
    if config.getoption("--quick"):
        quick, rest = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            (quick if is_quick({mark.name for mark in item.iter_markers()}) else rest).append(item)
        config.hook.pytest_deselected(items=rest)
        items[:] = quick


def is_quick(marks: set[str]) -> bool:
    return "smoke" in marks or not marks & NOT_QUICK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report takes the texts of a test from its worker to the process that writes the file."""
    report = yield
    if WORDING.refresh and call.when == "call":
        report.user_properties.append(("wording", WORDING.said))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        for name, texts in report.user_properties:
            if name == "wording":
                WORDING.passed(report.nodeid, texts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if WORDING.refresh and not hasattr(session.config, "workerinput"):
        WORDING.write()


def pytest_runtest_setup(item: pytest.Item) -> None:
    WORDING.begin(item.nodeid)
    for mark in item.iter_markers():
        reason = why_not(mark.name)
        if reason:
            if os.environ.get("CI") == "true" and mark.name not in NOWHERE:
                pytest.fail(f"{reason} (a failure because CI=true)", pytrace=False)
            pytest.skip(reason)
        if mark.name == "gpu" and not has_cuda():
            pytest.skip("needs a CUDA device")  # also in CI: its machines have none


def why_not(mark: str) -> str:
    """Why tests with this mark cannot run here; empty if they can."""
    modules = missing_modules(mark)
    if modules:
        return f"needs {' and '.join(modules)}: {NEEDED_MODULES[mark][1]}"
    programs = [name for name in NEEDED_PROGRAMS.get(mark, ()) if program(name) is None]
    if programs and mark in ("claude", "codex", "opencode", "envoy"):
        return f"needs the program {mark}: make clients"
    if programs and mark == "kube":
        return "needs kubectl: https://kubernetes.io/docs/tasks/tools/"
    if programs:
        return f"needs the programs {' and '.join(programs)}; .ci/run installs them"
    if mark == "clients" and not PYTHON_CLIENTS.exists():
        return "needs the Python clients: make clients"
    if mark == "node" and not NODE_PACKAGES.is_dir():
        return "needs the packages of Node: npm ci --prefix tests/clients/node, as `make test` does"
    if mark == "real" and not (REAL_MODELS / SMOLLM2).is_file():
        return f"needs {REAL_MODELS / SMOLLM2}: `make test` fetches it, or FORERUN_REAL_MODELS names a folder"
    return ""


@cache
def program(name: str) -> str | None:
    """Where a program is; None if it is not installed."""
    return shutil.which(name, path=WHERE_PROGRAMS_ARE)


@cache
def missing_modules(mark: str) -> tuple[str, ...]:
    """Names of the modules that tests with this mark need and that are not installed."""
    modules, _ = NEEDED_MODULES.get(mark, ((), ""))
    return tuple(name for name in modules if find_spec(name) is None)


@cache
def has_cuda() -> bool:
    """Whether torch is installed and sees a CUDA device."""
    if missing_modules("torch"):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile: bits depend on their number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
