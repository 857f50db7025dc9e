"""The product holds nothing that the gate refuses, and the gate catches what is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import gate
from tools.floors import Module, load
from tools.gate_allowed import ALLOWED

ROOT = Path(__file__).resolve().parent.parent


def refused(source: str) -> list[str]:
    """Rules that a module with this source breaks, in order."""
    return [found.rule for found in gate.findings(Module("edge_client.x", "edge_client/x.py", source))]


def test_the_product_is_clean() -> None:
    assert not gate.complaints(load(ROOT, gate.PACKAGES))


def test_it_is_looked_at_as_a_whole() -> None:
    modules = load(ROOT, gate.PACKAGES)
    assert {module.package for module in modules} == set(gate.PACKAGES)
    assert len(modules) > 300


def test_every_read_that_is_allowed_has_a_reason() -> None:
    assert all(len(reason) > 10 for reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import pickle", "pickle"),
        ("import dill as d", "pickle"),
        ("from marshal import loads", "pickle"),
        ("import shelve, json", "pickle"),
        ("def f():\n    from cloudpickle import dumps", "pickle"),
        ("from importlib import import_module\nimport_module('pickle')", "pickle"),
        ("__import__('marshal')", "pickle"),
        ("import numpy as np\nnp.load('a.npy', allow_pickle=True)", "pickle"),
        ("import pandas\npandas.read_pickle(path)", "pickle"),
        ("eval('1')", "eval"),
        ("exec(text)", "eval"),
        ("compile(text, 'x', 'exec')", "eval"),
        ("import builtins\nbuiltins.eval(text)", "eval"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "foreign code"),
        ("AutoModel.from_pretrained(path, trust_remote_code=trust)", "foreign code"),
        ("options = {'trust_remote_code': True}", "foreign code"),
        ("import torch\ntorch.load(path)", "foreign code"),
        ("import torch as t\nt.load(path, weights_only=False)", "foreign code"),
        ("from torch import load\nload(path)", "foreign code"),
        ("import yaml\nyaml.load(text, Loader=yaml.SafeLoader)", "yaml"),
        ("from yaml import unsafe_load_all\nunsafe_load_all(text)", "yaml"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell"),
        ("import subprocess\nsubprocess.Popen(words, shell=flag)", "shell"),
        ("import os\nos.system('ls')", "shell"),
        ("import asyncio\nasyncio.create_subprocess_shell('ls')", "shell"),
        ("data = response.read()", "unbounded"),
        ("data = response.read(-1)", "unbounded"),
        ("data = response.read(None)", "unbounded"),
        ("line = stream.readline()", "unbounded"),
        ("lines = file.readlines()", "unbounded"),
        ("text = Path(name).read_text(encoding='utf-8')", "unbounded"),
        ("data = path.read_bytes()", "unbounded"),
        ("import json\nfound = json.load(file)", "unbounded"),
        ("from tomllib import load\nfound = load(file)", "unbounded"),
        ("async def f(request):\n    return await request.body()", "unbounded"),
        ("async def f(self):\n    return await self.request.json()", "unbounded"),
    ],
)
def test_what_is_planted_is_caught(source: str, rule: str) -> None:
    assert refused(source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads(text)",
        "import re\nre.compile(text)",
        "model.eval()",
        "AutoModel.from_pretrained(path, trust_remote_code=False)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import yaml\nyaml.safe_load(text)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "file.read(1 << 20)",
        "file.read(limit)",
        "stream.readline(limit)",
        "import numpy as np\nnp.load('a.npy')",
        "text = 'pickle and eval(x) in words'",
    ],
)
def test_what_is_right_is_let_through(source: str) -> None:
    assert refused(source) == []


def test_a_read_is_allowed_in_its_function_alone_and_only_while_it_is_there() -> None:
    method = "    def {}(self):\n        return self.file.read()\n"
    source = f"class A:\n{method.format('f')}\n{method.format('g')}"
    module = Module("edge_client.x", "edge_client/x.py", source)
    allowed = {("edge_client/x.py", "A.f"): "its own file", ("edge_client/x.py", "gone"): "once"}
    assert gate.complaints([module], allowed) == [
        "edge_client/x.py:6: read() has no limit (unbounded)",
        "edge_client/x.py: gone is allowed unbounded reads and has none",
    ]


def test_only_reads_can_be_allowed() -> None:
    module = Module("edge_client.x", "edge_client/x.py", "def f():\n    eval(text)")
    allowed = {("edge_client/x.py", "f"): "it seemed right"}
    assert any("(eval)" in words for words in gate.complaints([module], allowed))
