"""Damaged model files are refused with a sentence and end no process that trusts their trial."""

import pytest

from tests.fuzz.model_files import play


@pytest.mark.llama
@pytest.mark.torch
@pytest.mark.parametrize("cases", [120, pytest.param(4000, marks=pytest.mark.soak)])
def test_no_damaged_file_ends_a_process_that_trusts_its_trial(cases: int) -> None:
    tally = play(cases)
    assert not tally.broken, "\n".join(tally.broken)
    counts = tally.outcomes
    assert counts["gguf: refused by llama.cpp"] > cases / 8
    assert counts["gguf: loads"] > 0, "else nothing was seen of those that pass"
    assert counts["safetensors: refused by our reader"] > cases / 4
