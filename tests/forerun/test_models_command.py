"""`forerun models`: families by name, one's own model, and what cannot be asked together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli import main

TARGET = str(Path(__file__).parents[2] / "demo_models" / "target")


@pytest.mark.torch
def test_families_are_found_by_name_and_by_model_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "gpt-oss", "rwkv", "--windows", "shrunk", "--dtype", "float32"]) == 0
    served, refused = capsys.readouterr().out.splitlines()
    assert served.split()[:2] == ["gpt-oss", "served"]
    assert "full, sinks; window 128, sinks" in served
    assert refused.startswith("RWKV 4")
    assert "refused  its layers carry recurrent state" in refused


@pytest.mark.torch
def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen 3", "--windows", "shrunk", "--dtype", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = {one["family"]: one["served"] for one in found}
    assert verdicts == {"Qwen 3": True, "Qwen 3 MoE": True, "Qwen 3 Next": False, "Qwen 3.5": False}
    assert found[0]["precisions"]["bfloat16"]["worst"] < 1e-5
    assert "linear_attention" in found[2]["reason"]


@pytest.mark.torch
def test_a_model_of_ones_own_is_checked_without_being_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--check", TARGET]) == 0
    words = capsys.readouterr().out
    assert words.startswith(f"{TARGET} is served, in float32.\n")
    assert "8 heads of 32 over 2 KV heads" in words
    assert "weights take 37.2 MB, a token of KV 5,120 bytes" in words
    assert main(["models", "--check", TARGET, "--dtype", "bfloat16", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["served"], facts["layers"], facts["dtype"]) == (True, 10, "bfloat16")
    assert facts["kv_bytes_per_token"] == 2560
    assert facts["exactness"] < 3


@pytest.mark.torch
def test_a_model_that_is_not_served_is_an_error_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud_verifier.engine.tiny import plain_model

    plain_model("jamba").config.save_pretrained(tmp_path)
    assert main(["models", "--check", str(tmp_path)]) == 2
    assert "cannot be served: it has layers of kind linear_attention, mamba" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["llama", "--check", "x"], "--check probes one model"),
        (["--check", "x", "--markdown", "y"], "--check probes one model"),
        (["--quantize", "int8"], "--quantize belongs to --check"),
        (["llama", "--markdown", "x"], "--markdown writes the tables of all families"),
        (["--windows", "shrunk", "--markdown", "x"], "--markdown writes the tables of all families"),
    ],
)
def test_what_cannot_be_asked_together_is_told(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.torch
def test_an_unknown_family_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "hal 9000"]) == 2
    assert "no family is called 'hal 9000'" in capsys.readouterr().err
