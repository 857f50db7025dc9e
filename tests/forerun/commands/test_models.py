"""`forerun models`: a model is probed without being served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli import main
from forerun.demo_pair import DRAFT_GGUF

DRAFT = str(DRAFT_GGUF)
TARGET = str(Path(__file__).parents[3] / "lab" / "demo_models" / "target")


@pytest.mark.torch
def test_a_model_of_ones_own_is_checked_without_being_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--check", TARGET, "--dtype", "bfloat16", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["served"], facts["layers"], facts["dtype"]) == (True, 10, "bfloat16")
    assert facts["kv_bytes_per_token"] == 5120
    assert facts["exactness"] < 3


@pytest.mark.torch
def test_a_model_that_is_not_served_is_an_error_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud_verifier.engine.tiny import plain_model

    plain_model("llama4_text").config.save_pretrained(tmp_path)
    assert main(["models", "--check", str(tmp_path)]) == 2
    assert "cannot be served: it has layers of kind chunked_attention" in capsys.readouterr().err


@pytest.mark.llama
def test_a_gguf_file_is_checked_without_being_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--check", DRAFT, "--threads", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["served"] is True
    assert facts["deterministic"] is True
    assert facts["equal_rows"] == facts["rows"] > 0
    assert main(["models", "--check", DRAFT, "--dtype", "bfloat16"]) == 2
    assert "--dtype" in capsys.readouterr().err
