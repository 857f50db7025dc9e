"""The example engine behind the real service: real edges get the text that the model writes alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.choice import choose
from common.messages import TokenLogprobs
from common.sampling import SamplingParams
from edge_client.core.effects import NOTHING_READ, DraftRow, Expansion, Reroot, SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from example_engine import LIMITS, PlainEngine, load
from tests.support.drafter_thread import DrafterThread

pytestmark = [pytest.mark.torch, pytest.mark.grpc, pytest.mark.slow]

PROMPT = (50, 60, 70, 80)
SAMPLINGS = [
    SamplingParams(max_tokens=12, ignore_eos=True),
    SamplingParams(
        max_tokens=12, ignore_eos=True, temperature=0.9, top_p=0.9, seed=5, repetition_penalty=1.2
    ),
]


class Knowing:
    """A `SessionDrafter` that knows the text: each node has the right child, beside a wrong one, likelier at
    every third position."""

    reading = NOTHING_READ

    def __init__(self, text: Sequence[int]) -> None:
        self.text = [*PROMPT, *text, 0]

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        """It knows the prompt, too."""

    def reroot(self, change: Reroot) -> None:
        """It keeps nothing."""

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        return [self._children(row) for row in rows]

    def _children(self, row: DraftRow) -> Expansion:
        right = self.text[min(row.position + 1, len(self.text) - 1)]
        order = (right + 1, right) if row.position % 3 == 0 else (right, right + 1)
        return Expansion(row.id, order, (1.0, 0.0))


@pytest.fixture(scope="module")
def loaded() -> tuple[PlainEngine, tuple[bytes | None, ...]]:
    return load("lab/demo_models/target", 512)


@torch.inference_mode()
def alone(engine: PlainEngine, sampling: SamplingParams) -> tuple[list[int], list[float]]:
    """The model's own text and each token's log-probability, by plain forwards over the whole text."""
    text, logprobs = list(PROMPT), list[float]()
    prompt = np.array(PROMPT, np.int32)
    while len(text) < len(PROMPT) + sampling.max_tokens:
        logits = engine._model(torch.tensor([text])).logits[0, -1].float()
        generated = np.array(text[len(PROMPT) :], np.int32)
        text.append(choose(logits.numpy(), sampling, len(text) - 1, prompt, generated).token)
        logprobs.append(float(logits.log_softmax(-1)[text[-1]]))
    return text[len(PROMPT) :], logprobs


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
async def test_edges_get_the_text_that_the_model_writes_alone(
    loaded: tuple[PlainEngine, tuple[bytes | None, ...]], sampling: SamplingParams
) -> None:
    engine, table = loaded
    expected, logprobs = alone(engine, sampling)
    worker = Worker(engine, VerifyScheduler(engine.info, LIMITS))
    config = SessionConfig(PROMPT, sampling, engine.info.fingerprint, patience=None, logprobs=2)
    told = list[TokenLogprobs]()
    async with (
        Server(worker, engine.info, table, "127.0.0.1:0") as server,
        VerifierChannel(f"127.0.0.1:{server.port}") as channel,
    ):
        with DrafterThread(Knowing(expected)) as drafts:
            run = Generation(EdgeSession(config, make_policy("sync:4")), channel, drafts)
            async for emit in run:
                told += emit.logprobs
    assert list(run.session.text) == expected
    assert run.session.stats.accepted > 4, "no draft came in time"
    assert [each.logprob for each in told] == pytest.approx(logprobs, abs=1e-4)
    assert all(len(each.top) == 2 for each in told)
    worker.scheduler.check_integrity()
