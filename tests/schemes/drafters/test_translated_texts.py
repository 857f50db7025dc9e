"""Texts drafted by a model with other tokens are the target's own, and a trimmed draft is such a model."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, open_runtime
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.errors import UserError
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import FloatArray, LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion, SessionConfig, SessionStats
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.draft.group import MemberDrafter
from edge_client.draft.shared_model import SharedDraftModel
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from schemes.drafters.translation import Translation
from tests import wording
from tests.schemes.drafters.test_translation import permuted
from training.demo_pair import DRAFT_GGUF
from training.trimming import Trimming

pytestmark = [pytest.mark.llama, pytest.mark.grpc, pytest.mark.slow]

NUM_TOKENS, KEPT = 3072, 1024
PROMPTS = ("def is_palindrome(text", "import os\n\n\nclass Walker:\n    def")
SAMPLINGS = [SamplingParams(max_tokens=40, ignore_eos=True), SamplingParams(0.8, seed=9, max_tokens=40)]


@pytest.fixture(scope="module")
def words() -> Iterator[LlamaModel]:
    with LlamaModel(LlamaSettings(str(DRAFT_GGUF)), weights=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def trimming() -> Trimming:
    return Trimming(DRAFT_GGUF, Counter({3000: 500, 2999: 400}), KEPT)


@pytest.fixture(scope="module")
def trimmed(trimming: Trimming, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trimming.write(DRAFT_GGUF, path := tmp_path_factory.mktemp("trimmed") / "trimmed.gguf")
    return path


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    """The bundled draft as a target."""
    with open_runtime(str(DRAFT_GGUF), 1024, 64, 256, LlamaOptions(threads=1)) as runtime:
        yield LlamaEngine(runtime, 1024, name="bundled")


@asynccontextmanager
async def channel_to(engine: LlamaEngine) -> AsyncIterator[VerifierChannel]:
    worker = Worker(engine, VerifyScheduler(engine.info))
    async with Server(worker, engine.info, tuple(engine.runtime.token_table()), "127.0.0.1:0") as server:
        async with VerifierChannel(f"127.0.0.1:{server.port}") as channel:
            yield channel
        await worker.wait_until_gone()


async def written(
    channel: VerifierChannel,
    draft: SharedDraftModel | None,
    prompt: Sequence[int],
    sampling: SamplingParams,
    policy: str = "sync:4",  # which waits for each answer: no race
) -> tuple[list[int], SessionStats]:
    """Return a text of the target and what drafting did for it."""
    fingerprint = (await channel.describe()).fingerprint
    seat = None if draft is None else await draft.acquire(prompt)
    config = SessionConfig(tuple(prompt), sampling, fingerprint, patience=None, has_drafter=seat is not None)
    session = EdgeSession(config, make_policy(policy))
    tokens = [token async for emit in Generation(session, channel, seat) for token in emit.tokens]
    if seat is not None:
        seat.release()
    return tokens, session.stats


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
async def test_texts_are_the_target_s_own(
    engine: LlamaEngine, words: LlamaModel, trimmed: Path, tmp_path: Path, sampling: SamplingParams
) -> None:
    order = np.random.default_rng(1).permutation(NUM_TOKENS).tolist()
    shuffled = permuted(DRAFT_GGUF, tmp_path / "shuffled.gguf", order)
    prompts = [words.tokenize(prompt, False) for prompt in PROMPTS]
    async with channel_to(engine) as channel:
        plain = [(await written(channel, None, prompt, sampling))[0] for prompt in prompts]
        accepted = list[float]()
        for file in (shuffled, trimmed):
            settings = LlamaSettings(str(file), n_ctx=1024, threads=1)
            draft = SharedDraftModel(settings, 1, -1.0, target=words)
            texts = [await written(channel, draft, prompt, sampling) for prompt in prompts]
            await draft.close()
            assert [tokens for tokens, _ in texts] == plain
            accepted.append(sum(stats.accepted for _, stats in texts) / sum(map(len, plain)))
    assert accepted[0] > 0.7, "it is the same model; four of five tokens at most"
    assert 0.1 < accepted[1] < accepted[0]


def test_a_trimmed_draft_keeps_scores_and_spells_every_text(
    trimming: Trimming, trimmed: Path, words: LlamaModel
) -> None:
    assert len(trimming.kept) == KEPT
    assert {2999, 3000, *words.eos_ids} <= set(trimming.kept)
    assert trimming.outside({3000: 3, 3071: 1}) == 0.25
    text = "def naïve(x):\n    return 'übergrößenträger' * x  # 你好 🙂\n"
    with LlamaRuntime(LlamaSettings(str(trimmed), n_ctx=512, threads=1)) as runtime:
        assert runtime.num_vocab == KEPT
        translation = Translation(runtime, words)
        assert sorted(translation.draft_of) == trimming.kept
        spelt = translation.text(words.tokenize(text, False))
        assert b"".join(map(runtime.piece, spelt)) == text.encode()
        assert runtime.tokenize(text, False), "its own tokenizer works, too"
        own = [token for token in words.tokenize("for x in range(n):", False) if token in trimming.kept]
        with LlamaRuntime(LlamaSettings(str(DRAFT_GGUF), n_ctx=512, threads=1)) as whole:
            logits = [_last_logits(whole, own), _last_logits(runtime, translation.text(own))]
    np.testing.assert_allclose(logits[1], logits[0][trimming.kept], atol=0.05)


def _last_logits(runtime: LlamaRuntime, tokens: list[int]) -> FloatArray:
    runtime.batch.fill(tokens, list(range(len(tokens))), [0] * len(tokens), [0] * (len(tokens) - 1) + [1])
    assert runtime.decode() == 0
    logits: FloatArray = runtime.logits(1)[0].copy()
    return logits


def test_types_of_weights_and_all_other_metadata_stay(trimmed: Path) -> None:
    before, after = (gguf.GGUFReader(path) for path in (DRAFT_GGUF, trimmed))
    assert [(each.name, each.tensor_type) for each in before.tensors] == [
        (each.name, each.tensor_type) for each in after.tensors
    ]
    assert before.fields.keys() == after.fields.keys()
    assert after.fields["llama.vocab_size"].contents() == KEPT


@pytest.mark.parametrize("size", [100, NUM_TOKENS + 1])
def test_a_size_that_cannot_be_kept_is_refused(size: int) -> None:
    with wording.raises(UserError):
        Trimming(DRAFT_GGUF, Counter(), size)


def test_a_grammar_that_allows_only_tokens_which_the_draft_lacks_ends_its_drafts(
    trimmed: Path, words: LlamaModel
) -> None:
    pytest.importorskip("llguidance")
    sampling = SamplingParams(0.8, top_p=0.9, grammar='start: "a"')
    with LlamaRuntime(LlamaSettings(str(trimmed), n_ctx=512, threads=1)) as runtime:
        runtime.grammars = words.grammars
        translation = Translation(runtime, words)
        del translation.draft_of[words.tokenize("a", False)[0]]
        drafter = MemberDrafter(translation.group(runtime, 1))
        drafter.start([70, 71], 1, sampling)
        assert drafter.expand([DraftRow(1, None, 71, 1)]) == [Expansion(1, (), ())]


async def test_a_grammar_of_the_target_s_tokens_holds(trimmed: Path, words: LlamaModel) -> None:
    pytest.importorskip("llguidance")
    from edge_client.texts.alone import AloneRun

    grammar = 'start: "yes" | "no, never"'
    draft = SharedDraftModel(LlamaSettings(str(trimmed), n_ctx=512, threads=1), 1, -1.0, target=words)
    await draft.prepare(grammar)
    seat = await draft.acquire()
    run = AloneRun(
        seat, words.tokenize("x = ", False), SamplingParams(max_tokens=20, grammar=grammar), words.eos_ids
    )
    tokens = [token async for shown in run.shown() for token in shown.tokens]
    seat.release()
    await draft.close()
    text = b"".join(words.piece(token) for token in tokens if token not in words.eos_ids)
    assert text in (b"yes", b"no, never")
