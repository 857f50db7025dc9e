"""A draft and a target that do not share their tokens are told so, with the first token that differs."""

from pathlib import Path

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.vocabulary import Vocabulary
from edge_client.network.channel import VerifierChannel
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.worlds.models import TinyTarget

pytestmark = [pytest.mark.llama, pytest.mark.grpc]


async def handshake(tmp_path: Path, change: dict[int, bytes | None], padding: int = 0) -> str:
    """A tiny draft's tokens meet a target whose table is the draft's with `change`, and more padding; why
    they do not fit."""
    from common.llama.model import LlamaModel, LlamaSettings

    draft = write_tiny_gguf(tmp_path / "draft.gguf", TinyShape())
    with LlamaModel(LlamaSettings(str(draft)), weights=False) as model:
        own = Vocabulary(model.token_table())
    table = tuple(change.get(token, text) for token, text in enumerate(own.table)) + (None,) * padding
    info = TargetInfo("tiny", len(table), 512, 512, (), Vocabulary(table).fingerprint)
    worker = Worker(TinyTarget(info), VerifyScheduler(info))
    async with (
        Server(worker, info, table, "127.0.0.1:0") as server,
        VerifierChannel(f"127.0.0.1:{server.port}") as channel,
    ):
        described = await channel.describe()
        assert described.max_positions == 512
        same = described.fingerprint == own.fingerprint
        return "" if same else await channel.explain_mismatch(own)


async def test_the_first_differing_token_is_named(tmp_path: Path) -> None:
    words = await handshake(tmp_path, {65: b"other", 70: b"more"})
    assert "id 65" in words
    assert "'other' in the target" in words
    assert words.count("fingerprints ") == 1


async def test_padding_makes_no_difference(tmp_path: Path) -> None:
    assert await handshake(tmp_path, {}, padding=20) == ""
