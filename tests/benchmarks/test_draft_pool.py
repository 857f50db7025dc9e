"""`benchmarks.draft_pool`: every session drafts all its steps, together as in turn."""

from __future__ import annotations

from argparse import Namespace

import pytest

pytestmark = pytest.mark.llama


async def test_a_pace_is_of_all_rows_asked_for() -> None:
    from benchmarks.draft_pool import measure, rows_a_second
    from demo_models import DRAFT_GGUF
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    arguments = Namespace(context=20, steps=4, rounds=1, processor_time=True)
    with LlamaRuntime(LlamaSettings(str(DRAFT_GGUF), n_ctx=256, n_seq_max=32, threads=1)) as runtime:
        pace, fairness = await rows_a_second(runtime, 3, 2, arguments)
        assert pace > 0
        assert fairness > 0.9
        measured = await measure(runtime, 2, 1, arguments)
    assert (measured.sessions, measured.width) == (2, 1)
    assert measured.gain == pytest.approx(measured.together / measured.in_turn, abs=0.01)
