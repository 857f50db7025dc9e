"""The measurement between tenants, small, against a real verifier in this process."""

from __future__ import annotations

import pytest

from benchmarks.tenant_timing import TENANT, measure
from tests.drivers.tiny import running

pytestmark = pytest.mark.grpc


async def test_it_measures_every_trial_and_another_tenants_prompt_is_read_anew() -> None:
    async with running(tenant_key=TENANT) as system:
        found = await measure(system.address, trials=6, length=40, seed=3)
        counters = system.worker.scheduler.counters
        cached = counters.num_cached_tokens
    assert (found.trials, found.prompt_tokens) == (6, 40)
    assert 0 <= found.distance <= 1
    assert 0 <= found.p <= 1
    assert min(found.ms_sent_by_another, found.ms_sent_by_nobody, found.ms_sent_before) > 0
    assert cached < 6 * 40 + 100, "only what a tenant has sent itself is known"
    assert cached >= 6 * 39
