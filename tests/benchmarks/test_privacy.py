"""The measurement of the levels, small: it runs, and counts what the strictest promises."""

from __future__ import annotations

import pytest

from common.rpc.frames import DOWN_BYTES, STRICT_DOWN, STRICT_UP, UP_BYTES
from demo_models import DRAFT_GGUF, TARGET_DIR
from forerun.rig import RigSettings

pytestmark = [pytest.mark.grpc, pytest.mark.torch, pytest.mark.llama]


async def test_a_strict_system_is_measured_and_has_one_size_per_direction() -> None:
    from benchmarks.privacy import Work, measure

    settings = RigSettings(str(TARGET_DIR), str(DRAFT_GGUF), rtt_ms=0.0, pin=False)
    (strict,) = await measure(settings, Work(prompts=2, seeds=2, tokens=6), ["strict"])
    assert (strict.privacy, strict.ms_per_token_ratio) == ("strict", 1.0)
    assert (strict.sizes_up, strict.largest_up) == (1, STRICT_UP * UP_BYTES)
    assert (strict.sizes_down, strict.largest_down) == (1, STRICT_DOWN * DOWN_BYTES)
    assert strict.told_by_sizes == strict.chance == pytest.approx(1 / 3, abs=1e-3)
