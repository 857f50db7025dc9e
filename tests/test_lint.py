"""Each of the house's own rules finds what is planted."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lab.tools import lint

ROOT = Path(__file__).resolve().parent.parent


def rules(source: str) -> list[str]:
    return [rule for _, _, rule in lint.findings(source, "edge_client.x")]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "foreign code"),
        ("data = response.read()", "unbounded"),
        ("data = response.read(None)", "unbounded"),
        ("line = stream.readline()", "unbounded"),
        ("text = Path(name).read_text(encoding='utf-8')", "unbounded"),
        ("data = path.read_bytes()", "unbounded"),
        ("import json\nfound = json.load(file)", "unbounded"),
        ("async def f(request):\n    return await request.body()", "unbounded"),
        ("async def f(self):\n    return await self.request.json()", "unbounded"),
        ("rng = np.random.default_rng()", "chance"),
    ],
)
def test_what_is_planted_is_found(source: str, rule: str) -> None:
    assert rules(source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads(text)",
        "AutoModel.from_pretrained(path, trust_remote_code=False)",
        "file.read(1 << 20)",
        "stream.readline(limit)",
        "rng = np.random.default_rng(7)",
    ],
)
def test_what_is_right_passes(source: str) -> None:
    assert rules(source) == []


def test_a_read_is_allowed_in_its_function_alone_and_only_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "class A:\n    def f(self):\n        self.file.read()\n    def g(self):\n        self.file.read()\n"
    )
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "x.py").write_text(source)
    monkeypatch.setattr(lint, "ALLOWED", {"its own file": "common.x.A.f common.x.gone"})
    assert lint.complaints(tmp_path) == [
        "common/x.py:5: unbounded in common.x.A.g",
        "lab/tools/lint.py: common.x.gone reads nothing without a limit",
    ]


def extras(name: str) -> set[str]:
    """Names of the distributions that `pip install forerun[name]` asks for directly."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][name]]
    return {re.split(r"[^\w-]", each)[0].lower() for each in wanted}


def test_an_edge_install_brings_no_torch_and_a_verifier_install_no_llama_cpp() -> None:
    assert not extras("edge") & {"torch", "transformers", "safetensors", "triton", "accelerate"}
    assert "llama-cpp-python" not in extras("verifier")
