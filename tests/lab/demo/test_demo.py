"""The whole system: two processes, the bundled pair, a link between them."""

import json
from pathlib import Path

import pytest

from lab.__main__ import main
from tests.support.refusals import refuse

pytestmark = [pytest.mark.torch, pytest.mark.llama, pytest.mark.grpc]


@pytest.mark.parametrize(
    "words", ["--rtt -5", "--rtt nan", "--max-tokens 1", "--prompt ''", "--num-prompts 99"]
)
def test_nonsense_is_refused_before_anything_is_done(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(main, f"demo {words}", tmp_path, monkeypatch, capsys)


def test_the_demo_compares_identical_texts(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--num-prompts", "1", "--max-tokens", "24", "--step-floor", "0", "--rtt", "4", "--json"]
    assert main([*words, "--temperature", "0.8"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report["schemes"]) == {"server_streaming", "sync_best", "heads_alone", "forerun"}
    assert all(scheme["identical"] for scheme in report["schemes"].values())
    assert report["schemes"]["server_streaming"]["target_steps_per_token"] == 1.0
    assert report["schemes"]["server_streaming"]["draft_tokens_per_token"] == 0.0
    assert report["schemes"]["forerun"]["draft_tokens_per_token"] > 0.0
