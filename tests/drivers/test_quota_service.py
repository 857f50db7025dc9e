"""Laws of quotas over the wire: a refusal says when to come again, and a changed file holds without a
restart."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_verifier.core.quotas import Quotas
from cloud_verifier.limits_file import live_limits
from cloud_verifier.telemetry.trust import TENANT_LIMITS
from common.messages import Open
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import encode_request
from common.sampling import SamplingParams
from tests.drivers.tiny import VOCABULARY, running

pytestmark = pytest.mark.grpc

REQUEST = encode_request(
    Open((1, 2, 3), SamplingParams(max_tokens=8, ignore_eos=True), VOCABULARY.fingerprint)
)


async def retry_after(call: Any) -> float:
    """Seconds, as a refused call's status tells them."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    trailing = dict(await call.trailing_metadata())
    (detail,) = Status.FromString(trailing["grpc-status-details-bin"]).details
    retry = RetryInfo()
    assert detail.Unpack(retry)
    found: float = retry.retry_delay.ToTimedelta().total_seconds()
    return found


async def test_a_refusal_says_when_to_come_again_and_a_changed_file_holds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenant.acme]\npositions_per_second = 0.01\nburst = 10\n")
    limits = live_limits(path)  # a text takes two positions of its prompt, and eight
    acme = (("x-tenant", "acme"),)
    async with (
        running(tenant_key="x-tenant", files={TENANT_LIMITS: limits}) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = pb_grpc.VerifierServiceStub(channel)

        async def write(code: grpc.StatusCode) -> Any:
            call = stub.Session(metadata=acme)
            await call.write(REQUEST)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            assert await call.code() is code
            return call

        await write(grpc.StatusCode.OK)
        call = await write(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert 300.0 < await retry_after(call) <= 400.0
        assert "positions a second of its quota" in await call.details()
        path.write_text("[tenant.globex]\nmax_sessions = 1\n")
        system.server.upkeep.look()
        await write(grpc.StatusCode.OK)
        seen = system.worker.snapshot()
        assert seen.quota_refusals == {"positions_per_second": 1}
        assert seen.trust.reloads == {TENANT_LIMITS: 1}
        assert isinstance(limits.value, Quotas)


async def test_a_stream_too_many_is_refused_before_it_says_anything(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenant.acme]\nsessions_per_second = 0.01\nsession_burst = 2\n")
    acme = (("x-tenant", "acme"),)
    async with (
        running(tenant_key="x-tenant", files={TENANT_LIMITS: live_limits(path)}) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = pb_grpc.VerifierServiceStub(channel)
        begun = [stub.Session(metadata=acme) for _ in range(2)]
        for call in begun:
            await call.write(REQUEST)
            assert await call.read() is not grpc.aio.EOF
        call = stub.Session(metadata=acme)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "asked for the 0.01 sessions a second of its quota" in await call.details()
        assert 0.0 < await retry_after(call) <= 100.0
        other = stub.Session(metadata=(("x-tenant", "globex"),))
        await other.write(REQUEST)
        assert await other.read() is not grpc.aio.EOF
        assert system.worker.snapshot().quota_refusals == {"sessions_per_second": 1}
        for call in (*begun, other):
            call.cancel()
