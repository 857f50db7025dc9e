"""Each of the house's own rules finds what is planted."""

from pathlib import Path

import pytest

from lab.tools import lint


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
def test_a_planted_fault_is_reported(source: str, rule: str) -> None:
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
def test_sound_code_passes(source: str) -> None:
    assert rules(source) == []


def test_an_unbounded_read_is_allowed_only_in_the_function_that_is_named_and_that_still_has_one(
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
