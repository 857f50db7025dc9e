"""`benchmarks.rivals_transformers`: all of its ways write one greedy text, and their steps are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from demo_models import TARGET_DIR
from tests.benchmarks.one_text import JOB, SETTING, check_one_text

pytestmark = pytest.mark.torch


def test_every_way_writes_the_same_greedy_text() -> None:
    from benchmarks.rivals_transformers import load_rivals

    alone, *others = load_rivals(SETTING)
    check_one_text(alone, others, JOB, "transformers_assisted", "transformers_prompt_lookup")


def test_a_seed_repeats_a_way_s_own_sampled_text() -> None:
    from benchmarks.rivals_transformers import load_rivals

    job = replace(JOB, temperature=0.8)
    for one in load_rivals(SETTING):
        texts = [one.write(each)["tokens"] for each in (job, job, replace(job, seed=4))]
        assert texts[0] == texts[1] != texts[2], one.name


def test_another_draft_must_bring_its_folder(tmp_path: Path) -> None:
    from benchmarks.rivals_transformers import load_draft

    with pytest.raises(UserError, match="--draft-folder"):
        load_draft(replace(SETTING, draft=str(tmp_path / "x.gguf")))
    with pytest.raises(UserError, match="transformers cannot load"):
        load_draft(replace(SETTING, draft_folder=str(tmp_path)))


def test_a_prompt_is_tokenised_without_a_begin_token() -> None:
    from benchmarks.rivals_transformers import tokenize

    (whole,), (empty,) = tokenize(str(TARGET_DIR), ["def f():"]), tokenize(str(TARGET_DIR), [""])
    assert len(whole) > 1
    assert empty == ()
