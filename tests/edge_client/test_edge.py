"""Laws of the edge: what one text taught of the draft, the next one begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.core.priors import SHIPPED
from tests.edge_client.llama.tiny_gguf import TinyShape, write_tiny_gguf

pytestmark = [pytest.mark.llama, pytest.mark.grpc]


async def test_a_text_begins_with_what_the_one_before_it_taught(tmp_path: Path) -> None:
    from edge_client.edge import Edge, Request
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    request = Request((1, 2), SamplingParams(temperature=0.8), make_policy("tree"))
    draft = write_tiny_gguf(tmp_path / "draft.gguf", TinyShape())
    with LlamaRuntime(LlamaSettings(str(draft), n_ctx=512, threads=1)) as runtime:
        edge = Edge(runtime, "127.0.0.1:1")  # nobody need be there
        first = edge.generation(request).session
        assert first.config.prior == SHIPPED.at(0.8)
        for _ in range(50):
            first.calibration.observe((4.0, 3.9, 2.0, 1.0, 0.0), 3)
        second = edge.generation(request).session
        assert second.config.prior == first.calibration.as_prior()
        third = edge.generation(request).session
        assert third.config.prior == second.config.prior  # nothing was observed meanwhile


async def test_an_edge_that_only_knows_the_tokens_writes_without_a_draft_model(tmp_path: Path) -> None:
    from edge_client.edge import Edge, Request
    from edge_client.llama.model import LlamaModel
    from edge_client.llama.settings import LlamaSettings

    draft = write_tiny_gguf(tmp_path / "draft.gguf", TinyShape())
    sampling, policy = SamplingParams(), make_policy("adaptive")
    with LlamaModel(LlamaSettings(str(draft)), weights=False) as model:
        edge = Edge(model, "127.0.0.1:1")
        session = edge.generation(Request((1, 2), sampling, policy, recall=True, drafting=False)).session
        assert session.config.patience is None  # there is nothing to show a guess with
        with pytest.raises(UserError, match="start the edge without --no-drafting"):
            edge.generation(Request((1, 2), sampling, policy))
        with pytest.raises(UserError, match="no draft model is loaded here"):
            edge.alone((1, 2), sampling)
