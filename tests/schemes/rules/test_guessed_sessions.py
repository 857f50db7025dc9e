"""Sessions without a device draft are decided by their rule over the verifier's own guesses (Medusa)."""

import numpy as np
import pytest
import torch

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.acceptance import COUPLED, LOSSLESS, Acceptance, AcceptanceRule
from common.choice import choose
from common.sampling import SamplingParams
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from lab.floored_engine import FlooredEngine
from tests.cloud_verifier.engine.serving import PRINT, PROMPTS, TABLE
from tests.cloud_verifier.engine.tiny import target
from tests.schemes.drafters.rig import draft_of, plainly

pytestmark = [pytest.mark.torch, pytest.mark.grpc]

WARM = SamplingParams(temperature=0.8, seed=5, max_tokens=60, ignore_eos=True)


def logits_after(model: TargetModel, tokens: list[int]) -> np.ndarray:
    with plainly(model):
        found: np.ndarray = model.plain_logits(tokens, 1)[0].numpy()
    return found


def is_typical(law: np.ndarray, token: int, epsilon: float = 0.09, delta: float = 0.3) -> bool:
    """Medusa's criterion, written out."""
    entropy = sum(-chance * np.log(chance) for chance in law.tolist() if chance > 0)
    return bool(law[token] > min(epsilon, delta * np.exp(-entropy)))


async def written(model: TargetModel, acceptance: Acceptance) -> tuple[tuple[int, ...], int, int]:
    """A text of an edge without a draft, the steps that it took, and the tokens that guesses have won. Steps
    take as long as a larger target's, so that guesses pay."""
    draft = draft_of("medusa", model)
    engine = FlooredEngine(TorchEngine(model, 512, fingerprint=PRINT, draft=draft), 0.05)
    limits = SchedulerConfig(rules=(*LOSSLESS, AcceptanceRule.TYPICAL))
    worker = Worker(engine, VerifyScheduler(engine.info, limits))
    async with Server(worker, engine.info, TABLE, "127.0.0.1:0") as server:
        config = SessionConfig(
            PROMPTS[0], WARM, PRINT, patience=None, has_drafter=False, acceptance=acceptance
        )
        async with VerifierChannel(f"127.0.0.1:{server.port}") as channel:
            run = Generation(EdgeSession(config, make_policy("off")), channel, None)
            async for _ in run:
                pass
    counters = worker.scheduler.counters
    return run.session.text, counters.num_steps, counters.num_guesses_won


async def test_typical_accepts_a_heads_guess() -> None:
    """Every token of the text is the target's own choice or typical of its law, and some are no choice."""
    model = target("llama")
    text, steps, won = await written(model, Acceptance(AcceptanceRule.TYPICAL))
    tokens, guessed = list(PROMPTS[0]), 0
    for token in text:
        logits = logits_after(model, tokens)
        own = choose(logits, WARM, len(tokens) - 1).token
        law = torch.from_numpy(logits / WARM.temperature).double().softmax(dim=-1).numpy()
        assert token == own or is_typical(law, token)
        guessed += token != own
        tokens.append(token)
    assert len(text) == WARM.max_tokens
    assert guessed
    assert won
    assert steps < WARM.max_tokens


async def test_the_same_guesses_change_no_coupled_text() -> None:
    model = target("llama")
    text, _, _ = await written(model, COUPLED)
    tokens = list(PROMPTS[0])
    for token in text:
        assert token == choose(logits_after(model, tokens), WARM, len(tokens) - 1).token
        tokens.append(token)
