"""The laws of the floors hold over the repository, and the checker itself catches who breaks them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import floors
from tools.floors import Module

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = floors.packages_of(ROOT)
MODULES = floors.load(ROOT, PACKAGES)
TOOLS = floors.load(ROOT, ["tools"])

Law = Callable[[Module], list[str]]


def broken(law: Law, modules: list[Module]) -> str:
    """What the law has to say about these modules, one complaint a line."""
    return "\n".join(complaint for module in modules for complaint in law(module))


def module(name: str, source: str, path: str | None = None) -> Module:
    return Module(name, path or name.replace(".", "/") + ".py", source)


def extras(name: str) -> set[str]:
    """Names of the distributions that `pip install forerun[name]` asks for directly."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, found = [*project["dependencies"], *project["optional-dependencies"][name]], set[str]()
    while wanted:
        requirement = wanted.pop()
        distribution = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert distribution, f"pyproject.toml: cannot read the requirement {requirement!r}"
        if distribution[0] == project["name"]:
            inner = re.findall(r"[\w-]+", requirement[requirement.index("[") : requirement.index("]")])
            wanted += [item for extra in inner for item in project["optional-dependencies"][extra]]
        else:
            found.add(re.sub(r"[._-]+", "-", distribution[0]).lower())
    return found


# --- the laws, over this repository -----------------------------------------------------------------------


def test_every_package_has_a_floor() -> None:
    homeless = [name for name in PACKAGES if name not in floors.FLOORS]
    assert not homeless, (
        f"no floor for {homeless}: add them to FLOORS in tools/floors.py and to pyproject.toml"
    )


def test_no_neighbours_import_each_other_both_ways() -> None:
    pairs = floors.NEIGHBOURS
    assert not [pair for pair in pairs if pair[::-1] in pairs]


def test_imports_go_down() -> None:
    complaints = broken(floors.imports_go_down, MODULES)
    assert not complaints, complaints


def test_edge_and_verifier_never_import_each_other() -> None:
    complaints = broken(floors.sides_stay_apart, MODULES)
    assert not complaints, complaints


def test_the_device_imports_no_torch_and_the_server_no_llama() -> None:
    complaints = broken(floors.runtimes_stay_apart, MODULES)
    assert not complaints, complaints


def test_pure_floors_import_only_the_standard_library_and_numpy() -> None:
    complaints = broken(floors.pure_imports, MODULES)
    assert not complaints, complaints


def test_pure_floors_touch_no_clock_network_file_or_chance() -> None:
    complaints = broken(floors.pure_names, MODULES)
    assert not complaints, complaints


def test_functions_are_short_or_say_why_not() -> None:
    complaints = broken(floors.functions_are_short, MODULES + TOOLS)
    assert not complaints, complaints


def test_an_edge_install_brings_no_torch() -> None:
    server_only = {"torch", "transformers", "safetensors", "triton", "accelerate"}
    assert not extras("edge") & server_only


def test_a_verifier_install_brings_no_llama_cpp() -> None:
    assert "llama-cpp-python" not in extras("verifier")


# --- the checker catches who breaks them ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("common", 1),
        ("common.tree", 1),
        ("common.rpc", 3),
        ("common.rpc.codec.encode", 3),
        ("common.rpcs", 1),
        ("common.pb.verifier_pb2", 3),
        ("edge_client.core.session", 2),
        ("edge_client.stream", 3),
        ("cloud_verifier.core", 2),
        ("forerun.cli", 4),
        ("numpy.random", None),
    ],
)
def test_floor_is_that_of_the_longest_prefix(name: str, floor: int | None) -> None:
    assert floors.floor_of(name) == floor


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("common.tree", "import edge_client.core.session"),
        ("common.tree", "from common.rpc import codec"),
        ("common.tree", "from common import rpc"),
        ("common.tree", "def f():\n    from common.pb import verifier_pb2"),
        ("edge_client.core.session", "from edge_client import stream"),
        ("edge_client.core.session", "from edge_client.stream import EdgeStream"),
        ("edge_client.core.session", "from .. import stream"),
        ("edge_client.core.session", "from cloud_verifier.core import scheduler"),
        ("edge_client.stream", "import forerun.cli"),
        ("edge_client.stream", "import link"),
        ("common.rpc.codec", "import edge_client.stream"),
        ("link.lane", "import cloud_verifier.service"),
        ("demo_models.train", "import benchmarks"),
    ],
)
def test_an_import_upward_or_sideways_is_caught(name: str, source: str) -> None:
    (complaint,) = floors.imports_go_down(module(name, source))
    assert name in complaint
    assert "imports go down" in complaint


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("common.tree", "from common.errors import ForerunError"),
        ("edge_client.core.session", "from edge_client.core import growth\nimport common.tree"),
        (
            "edge_client.stream",
            "from common.rpc import codec\nfrom edge_client.core.session import EdgeSession",
        ),
        ("edge_client.stream", "from . import settings"),
        ("forerun.cli", "import edge_client, cloud_verifier.core.scheduler, link, numpy, json"),
        ("forerun.demo", "from demo_models import paths"),
    ],
)
def test_an_import_downward_or_at_home_is_allowed(name: str, source: str) -> None:
    assert floors.imports_go_down(module(name, source)) == []


def test_a_relative_import_in_a_package_file_starts_at_the_package() -> None:
    package = module(
        "edge_client.core", "from . import session\nfrom .. import stream", "edge_client/core/__init__.py"
    )
    assert [found.target for found in package.imports] == ["edge_client.core.session", "edge_client.stream"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("edge_client.stream", "import cloud_verifier"),
        ("edge_client.core.session", "from cloud_verifier.core.scheduler import Scheduler"),
        ("cloud_verifier.service", "def f():\n    import edge_client.core"),
    ],
)
def test_sides_that_meet_are_caught(name: str, source: str) -> None:
    (complaint,) = floors.sides_stay_apart(module(name, source))
    assert "common" in complaint


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("edge_client.drafter", "import torch"),
        ("cloud_verifier.engine", "from llama_cpp import llama_cpp"),
        ("common.rpc.codec", "import torch.nn"),
    ],
)
def test_a_foreign_runtime_is_caught(name: str, source: str) -> None:
    assert len(floors.runtimes_stay_apart(module(name, source))) == 1


def test_each_side_may_import_its_own_runtime() -> None:
    assert floors.runtimes_stay_apart(module("edge_client.drafter", "import llama_cpp")) == []
    assert floors.runtimes_stay_apart(module("cloud_verifier.engine", "import torch")) == []


@pytest.mark.parametrize("source", ["import grpc", "from torch import nn", "import google.protobuf"])
def test_a_third_party_import_on_a_pure_floor_is_caught(source: str) -> None:
    assert len(floors.pure_imports(module("common.tree", source))) == 1
    assert len(floors.pure_imports(module("cloud_verifier.core.scheduler", source))) == 1
    assert floors.pure_imports(module("cloud_verifier.service", source)) == []


def test_the_standard_library_and_numpy_are_allowed_on_a_pure_floor() -> None:
    source = "import heapq, json\nfrom numpy.typing import NDArray\nimport common.tree"
    assert floors.pure_imports(module("common.noise", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "import socket",
        "import random as chance",
        "import asyncio.events",
        "from threading import Lock",
        "import secrets",
        "import uuid",
        "import os\nhome = os.environ['HOME']",
        "from os import environ",
        "import os\nos.getenv('HOME')",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime as dt\ndt.now()",
        "from datetime import date\ndate.today()",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy as np\nnp.random.seed(3)",
        "from numpy import random\nrandom.normal()",
        "from numpy.random import shuffle",
        "import numpy as np\nrng = np.random.default_rng()",
        "def f(path):\n    with open(path) as file:\n        return file.read()",
    ],
)
def test_an_impure_use_on_a_pure_floor_is_caught(source: str) -> None:
    complaints = floors.pure_names(module("edge_client.core.session", source))
    assert complaints, source
    assert floors.pure_names(module("edge_client.stream", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import timedelta",
        "import os.path",
        "import numpy as np\nrng = np.random.default_rng(7)\ndef f(rng: np.random.Generator): ...",
        "def f(session, time):\n    session.open(time)",
        "class Port:\n    def open(self): ...",
        "import timeit_like",
    ],
)
def test_a_pure_look_alike_is_allowed(source: str) -> None:
    assert floors.pure_names(module("edge_client.core.session", source)) == []


def body(lines: int, first: str = "    x = 0") -> str:
    return "\n".join([first, *["    x = 1"] * (lines - 1)])


def test_a_long_function_is_caught_by_its_body() -> None:
    assert floors.functions_are_short(module("link.lane", f"def f():\n{body(60)}")) == []
    (complaint,) = floors.functions_are_short(module("link.lane", f"async def f():\n{body(61)}"))
    assert "f has 61 lines" in complaint


@pytest.mark.parametrize(
    "source",
    [
        f"# long: one table\ndef f():\n{body(61)}",
        f"# long: one table,\n# of many lines\n@cache\ndef f():\n{body(61)}",
        "def f():\n" + body(61, "    x = 0  # long: one table"),
    ],
)
def test_a_long_function_with_a_reason_is_allowed(source: str) -> None:
    assert floors.functions_are_short(module("link.lane", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        f"# long:\ndef f():\n{body(61)}",
        f"# long: too far away\n\ndef f():\n{body(61)}",
        "def f():\n" + body(61, '    x = "# long: a string"'),
    ],
)
def test_a_long_function_without_a_reason_is_caught(source: str) -> None:
    assert len(floors.functions_are_short(module("link.lane", source))) == 1


def test_generated_stubs_are_not_read() -> None:
    assert floors.is_generated(Path("common/pb/verifier_pb2_grpc.py"))
    assert floors.is_generated(Path("common/pb/verifier_pb2.py"))
    assert not floors.is_generated(Path("common/rpc/codec.py"))
