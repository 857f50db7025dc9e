"""`benchmarks.rivals_transformers`: all of its ways write one greedy text, and their steps are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rivals import Job, Lookahead, Setting
from common.errors import UserError
from demo_models import DRAFT_GGUF, TARGET_DIR

pytestmark = pytest.mark.torch

SETTING = Setting(
    target=str(TARGET_DIR),
    draft=str(DRAFT_GGUF),
    target_gguf="",
    draft_folder="",
    lookaheads=(Lookahead(3), Lookahead(8, 0.1)),
    floor_s=0.0,
    threads=1,
    num_positions=64,
)
JOB = Job("", (100, 200, 300, 400, 500, 600), 16, 0.0, 3)


def test_every_way_writes_the_same_greedy_text() -> None:
    from benchmarks.rivals_transformers import load_rivals

    alone, *others = load_rivals(SETTING)
    text = alone.write(JOB)
    assert text["stats"] == {"target_steps": 16, "evaluated": 16, "proposed": 0, "drafted": 0}
    assert len(text["tokens"]) == len(text["arrivals_ms"]) == 16
    runs = {(one.name, one.variant): one.write(JOB) for one in others}
    assert {key for key, run in runs.items() if run["tokens"] != text["tokens"]} == set()
    assert list(runs) == [
        ("transformers_assisted", "3"),
        ("transformers_assisted", "8@0.1"),
        ("transformers_prompt_lookup", "3"),
        ("transformers_prompt_lookup", "8"),
    ]
    stats = runs["transformers_assisted", "3"]["stats"]
    assert 0 < stats["proposed"] == stats["drafted"]
    assert stats["target_steps"] < 16


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
