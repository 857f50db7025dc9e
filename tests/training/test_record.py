"""Laws of recording: the text is the target's alone, and each position holds what the draft said there."""

from pathlib import Path

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from common.errors import ForerunError
from common.sampling import SamplingParams
from forerun.cli import main
from simulator.files import experiment_from
from simulator.recordings import Recording, RecordingHeader, read_recording, write_recording
from tests import wording
from tests.worlds.models import FINGERPRINT, VOCAB, TinyDrafter, TinyTarget, target_alone
from training.record import BATCH, WIDTHS, recorded_text, said_before, write_texts

SAMPLING = SamplingParams(temperature=0.7, seed=5, max_tokens=20)
EOS = 3


def target(num_slots: int = 4096) -> TinyTarget:
    return TinyTarget(TargetInfo("tiny", VOCAB, 200, num_slots, (EOS,), FINGERPRINT))


def test_texts_are_the_targets_alone_over_several_batches() -> None:
    prompts = [[place % VOCAB, 1, place // VOCAB] for place in range(2 * BATCH + 3)]
    texts = write_texts(target(), prompts, SAMPLING)
    assert [tuple(text) for text in texts] == [target_alone(prompt, SAMPLING, (EOS,)) for prompt in prompts]


def test_a_prompt_that_the_verifier_refuses_is_an_error() -> None:
    with pytest.raises(ForerunError):
        write_texts(target(), [[1, 2], [VOCAB]], SAMPLING)
    with pytest.raises(ForerunError):
        write_texts(target(num_slots=8), [[1] * 50], SAMPLING)


def test_a_draft_that_is_the_target_is_right_everywhere() -> None:
    (text,) = write_texts(target(), [[1, 2]], SAMPLING)
    said = said_before(TinyDrafter(blend=0.0), [1, 2], text, SAMPLING)
    found = recorded_text([1, 2], text, said)
    assert found.ranks == (1,) * len(text)
    assert (found.prompt_tokens, list(found.tokens)) == (2, text)


def test_a_recording_of_another_draft_reads_back_and_says_where_it_was_right(tmp_path: Path) -> None:
    (text,) = write_texts(target(), [[1, 2]], SAMPLING)
    found = recorded_text([1, 2], text, said_before(TinyDrafter(blend=0.9), [1, 2], text, SAMPLING))
    for token, ids, rank in zip(text, found.candidates, found.ranks, strict=True):
        assert rank == (ids.index(token) + 1 if token in ids else None)
    recording = Recording(RecordingHeader("tiny", "tiny", 0.7, 5), (found,))
    write_recording(tmp_path / "a.jsonl", recording)
    assert read_recording(tmp_path / "a.jsonl") == recording


@pytest.mark.torch
@pytest.mark.llama
def test_a_recording_of_the_bundled_pair_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    words = ["record", "--out", str(out), "--max-tokens", "24", "--temperature", "0.8", "--ignore-eos"]
    prompts = ["--prompt", "def parse(line):\n", "--prompt", "import os\n"]
    assert main([*words, *prompts, "--threads", "1"]) == 0
    assert "2 texts, 48 tokens" in capsys.readouterr().out
    recording = read_recording(out)
    assert (recording.header.target, recording.header.draft) == ("target", "draft-q8_0.gguf")
    assert sorted(recording.header.draft_step_ms) == list(WIDTHS)
    assert all(len(ids) == 5 for text in recording.texts for ids in text.candidates)
    assert recording.hit_rate > 0.3
    draft = experiment_from({"draft": {"recording": "a.jsonl"}}, tmp_path).world.draft
    assert draft.mean == recording.hit_rate


@pytest.mark.torch
@pytest.mark.llama
def test_a_prompt_beyond_the_context_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "--out", str(tmp_path / "a.jsonl"), "--context", "40", "--max-tokens", "32"]
    assert main([*words, "--prompt", "def f(a, b, c, d, e):\n" * 3]) == 2
    wording.keep(capsys.readouterr().err)
