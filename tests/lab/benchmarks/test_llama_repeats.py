"""The bundled draft's texts repeat themselves: cached, drafted, in company and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.demo_pair import DRAFT_GGUF
from lab.benchmarks.llama_repeats import main


@pytest.mark.llama
def test_texts_of_a_gguf_target_repeat_themselves(tmp_path: Path) -> None:
    out = tmp_path / "repeats.json"
    words = ["--target", str(DRAFT_GGUF), "--threads", "1", "--texts", "2", "--out", str(out)]
    assert main(words) == 0
    for each in json.loads(out.read_text())["texts"]:
        assert each["equal"] == dict.fromkeys(each["equal"], 2)
        assert each["num_doubtful"] == 0
