"""Laws of one verifier as its edge sees it: what it says costs the edge little, however often it changes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.grpc


async def test_one_whose_tokens_are_others_each_time_is_asked_for_all_of_them_once() -> None:
    import grpc.aio

    from common.pb import verifier_pb2_grpc as pb_grpc
    from common.rpc.describe import Description, encode_description
    from common.vocabulary import Vocabulary
    from edge_client.verifiers.addresses import VerifierAddress
    from edge_client.verifiers.member import TABLE_AGAIN, Member
    from edge_client.verifiers.status import Health

    own = Vocabulary([b"a", b"b"])

    class Changing(pb_grpc.VerifierServiceServicer):
        """Says another fingerprint each time."""

        asked, tables = 0, 0

        async def Describe(self, request: Any, context: Any) -> Any:
            self.asked += 1
            self.tables += request.include_vocabulary
            table = (b"a", b"x") if request.include_vocabulary else None
            name = self.asked.to_bytes(32, "big")
            return encode_description(Description("m", 2, 64, name, vocabulary=table))

    server, service, now = grpc.aio.server(), Changing(), [0.0]
    pb_grpc.add_VerifierServiceServicer_to_server(service, server)
    address = VerifierAddress("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    member = Member(address, "127.0.0.1", own, None, lambda: now[0], lambda member: None)
    try:
        for _ in range(5):
            await member.probe()
            now[0] += TABLE_AGAIN / 10
            assert member.health is Health.UNFIT
        assert service.tables == 1
        assert "others again than it said" in member.why
        now[0] += TABLE_AGAIN
        await member.probe()
        assert service.tables == 2
        assert "others again" not in member.why
    finally:
        await member.close()
        await server.stop(None)
