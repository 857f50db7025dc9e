"""What both kinds of rivals are asked to write in tests, and that all of them write the same."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.rivals import Job, Lookahead, Rival, Setting
from demo_models import DRAFT_GGUF, TARGET_DIR

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
TEXT = [100, 200, 300, 400, 500, 600]
JOB = Job("", tuple(TEXT), 16, 0.0, 3)


def check_one_text(alone: Rival, others: Sequence[Rival], job: Job, drafts: str, lookup: str) -> None:
    """`alone` writes without drafts; `others` are a draft model and prompt lookup, so named, each with both
    draft lengths."""
    text = alone.write(job)
    assert text["stats"] == {"target_steps": 16, "evaluated": 16, "proposed": 0, "drafted": 0}
    assert len(text["tokens"]) == len(text["arrivals_ms"]) == 16
    runs = {(one.name, one.variant): one.write(job) for one in others}
    assert {key for key, run in runs.items() if run["tokens"] != text["tokens"]} == set()
    assert list(runs) == [(drafts, "3"), (drafts, "8@0.1"), (lookup, "3"), (lookup, "8")]
    stats = runs[drafts, "3"]["stats"]
    assert 0 < stats["proposed"] == stats["drafted"]
    assert stats["target_steps"] < 16
