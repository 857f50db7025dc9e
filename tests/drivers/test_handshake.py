"""A draft and a target that do not share their tokens are told so, with the first token that differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import TargetInfo
from cloud_verifier.server import Server
from cloud_verifier.worker import Worker
from common.acceptance import make_acceptance
from common.errors import Code, UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.core.policies import make_policy
from tests.edge_client.llama.tiny_gguf import TinyShape, write_tiny_gguf
from tests.worlds.models import TinyTarget

pytestmark = [pytest.mark.llama, pytest.mark.grpc]

Table = tuple[bytes | None, ...]


async def handshake(tmp_path: Path, change: dict[int, bytes | None], padding: int = 0) -> None:
    """An edge with a tiny draft meets a target whose table is the draft's with `change` and more padding."""
    from edge_client.edge import Edge, Request
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    draft = write_tiny_gguf(tmp_path / "draft.gguf", TinyShape())
    with LlamaRuntime(LlamaSettings(str(draft), n_ctx=512, threads=1)) as runtime:
        table: Table = (
            tuple(change.get(token, text) for token, text in enumerate(runtime.token_table()))
            + (None,) * padding
        )
        info = TargetInfo("tiny", len(table), 512, 512, (), Vocabulary(table).fingerprint)
        worker = Worker(TinyTarget(info), VerifyScheduler(info))
        async with (
            Server(worker, info, table, "127.0.0.1:0") as server,
            Edge(runtime, f"127.0.0.1:{server.port}") as edge,
        ):
            assert edge.max_positions == 512
            lossy = Request((1, 2), SamplingParams(), make_policy("off"), acceptance=make_acceptance("bild"))
            with pytest.raises(
                UserError, match="does not allow the acceptance rule bild:rollback=5, only coupled"
            ):
                edge.generation(lossy)
            edge.generation(replace(lossy, acceptance=make_acceptance("block")))


async def test_the_first_differing_token_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        await handshake(tmp_path, {65: b"other", 70: b"more"})
    words = str(refused.value)
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert "id 65" in words
    assert "'other' in the target" in words
    assert words.count("fingerprints ") == 1


async def test_padding_makes_no_difference(tmp_path: Path) -> None:
    await handshake(tmp_path, {}, padding=20)
