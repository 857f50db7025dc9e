"""The plug-in on the classes of vLLM 0.33.0, as far as they run on a CPU.

These are its loader of proposers, the method of its model runner that calls them, its rejection sampler, and
the checks of its HTTP interface. Without a GPU vLLM takes Triton only if CUDA_VISIBLE_DEVICES is set and
empty.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.torch
WHY = "needs vllm 0.33.0 (pip install vllm==0.33.0)"
gpu_model_runner: Any = pytest.importorskip(
    "vllm.v1.worker.gpu_model_runner", reason=WHY, exc_type=ImportError
)

from vllm.distributed import parallel_state  # noqa: E402
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest  # noqa: E402
from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer  # noqa: E402

from common.sampling import SamplingParams  # noqa: E402
from common.tree import SpeculationTree  # noqa: E402

rejection_sampler: Any = pytest.importorskip(
    "vllm.v1.sample.rejection_sampler", reason=WHY, exc_type=ImportError
)
if torch.cuda.is_available() or not pytest.importorskip("vllm.triton_utils").HAS_TRITON:
    why = "needs no GPU and Triton's interpreter; set CUDA_VISIBLE_DEVICES= (empty)"
    pytest.skip(why, allow_module_level=True)

from forerun_beside.drafts import DraftTree, name_of  # noqa: E402 - after the module that may be missing
from forerun_beside.mailbox import Sender  # noqa: E402
from forerun_beside.worker import Request  # noqa: E402
from forerun_vllm.client import VllmClient  # noqa: E402
from tests.lab.integrations.engine import wait_for  # noqa: E402
from tests.worlds.models import VOCAB, target_alone, tiny_logits  # noqa: E402

PROMPT = [1, 2, 3]
SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True)
CONFIG = SimpleNamespace(
    speculative_config=SimpleNamespace(
        method="custom_class", model="forerun_vllm.proposer.EdgeProposer", num_speculative_tokens=4
    ),
    model_config=SimpleNamespace(max_model_len=64),
)


@pytest.fixture
def proposer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("FORERUN_MAILBOX", str(tmp_path / "drafts.sock"))
    monkeypatch.setattr(parallel_state, "_TP", SimpleNamespace(rank_in_group=0))
    found = create_custom_proposer(CONFIG)
    yield found
    found._mailbox.close()


class Runner:
    """The batch of `GPUModelRunner`, whose own method asks the proposer."""

    def __init__(self, proposer: Any, names: list[str]) -> None:
        tokens = np.zeros((len(names), 64), np.int32)
        tokens[:, : len(PROMPT)] = PROMPT
        lengths = np.full(len(names), len(PROMPT), np.int32)
        self.drafter = proposer
        self.speculative_config = CONFIG.speculative_config
        self.input_batch = SimpleNamespace(
            req_ids=names, token_ids_cpu=tokens, num_tokens_no_spec=lengths, sampling_metadata=None
        )

    def text(self, row: int) -> list[int]:
        text: list[int] = self.input_batch.token_ids_cpu[
            row, : self.input_batch.num_tokens_no_spec[row]
        ].tolist()
        return text

    def write(self, row: int, tokens: list[int]) -> None:
        start = self.input_batch.num_tokens_no_spec[row]
        self.input_batch.token_ids_cpu[row, start : start + len(tokens)] = tokens
        self.input_batch.num_tokens_no_spec[row] += len(tokens)

    def drafts(self, sampled: list[list[int]]) -> list[list[int]]:
        scheduled = SimpleNamespace(total_num_scheduled_tokens=1, num_spec_tokens_to_schedule=4)
        propose = gpu_model_runner.GPUModelRunner.propose_draft_token_ids
        found: list[list[int]] = propose(self, scheduled, sampled, *[None] * 7)
        return found


def decided(drafts: list[list[int]], logits: list[Any], metadata: Any) -> list[list[int]]:
    """What vLLM's rejection sampler writes for chains of one length, without distributions of the drafts.

    `logits` are of each draft and of the token after it, chain by chain. Triton interprets its kernels.
    """
    length, rows = (
        len(drafts[0]),
        torch.tensor(np.array(logits)).reshape(len(drafts), len(drafts[0]) + 1, VOCAB),
    )
    last = (
        torch.multinomial(rows[:, -1].softmax(-1), 1)
        if metadata.all_random
        else rows[:, -1].argmax(-1)[:, None]
    )
    tokens = rejection_sampler.rejection_sample(
        torch.tensor(drafts, dtype=torch.int32).reshape(-1),
        [length] * len(drafts),
        length,
        torch.arange(1, len(drafts) + 1, dtype=torch.int32) * length,
        None,
        rows[:, :-1].reshape(-1, VOCAB).contiguous(),
        last.int().contiguous(),
        metadata,
    )
    return [[token for token in row if token >= 0] for row in tokens.tolist()]


def verdict(text: list[int], chain: list[int]) -> list[int]:
    """What greedy decoding accepts of a chain, and the token after it."""
    logits = [tiny_logits(1, [*text, *chain[:length]]) for length in range(len(chain) + 1)]
    if not chain:
        return [int(logits[0].argmax())]
    greedy = SimpleNamespace(all_greedy=True, all_random=False)
    return decided([chain], logits, greedy)[0]


@pytest.mark.parametrize("quality", [0, 2, 8])
def test_its_runner_drafts_what_edges_sent(proposer: Any, tmp_path: Path, quality: int) -> None:
    """A session, and a request of somebody else; `quality` levels of the drafts are right."""
    key = "0123456789abcdef"
    runner = Runner(proposer, [f"generate-tokens-{name_of(key)}-1a2b3c4d", "cmpl-other-5e6f"])
    sender, expected = Sender(str(tmp_path / "drafts.sock")), target_alone(PROMPT, SAMPLING, ())
    num_steps, chains = 0, [list[int](), list[int]()]
    while len(runner.text(0)) < len(PROMPT) + 40:
        sampled = [verdict(runner.text(row), chains[row]) for row in range(2)]
        for row in range(2):
            runner.write(row, sampled[row])
        written = runner.text(0)[len(PROMPT) :]
        tree = SpeculationTree(runner.text(0))
        here = tree.tip
        for depth, token in enumerate(expected[len(written) :][:6]):
            here = tree.grow(here, token if depth < quality else (token + 1) % VOCAB, -0.4)
        sender.send(key, DraftTree.of(tree))
        wait_for(proposer._mailbox, 1)
        chains = runner.drafts(sampled)
        assert chains[1] == []
        assert len(chains[0]) <= 4
        num_steps += 1
    sender.close()
    assert tuple(runner.text(0)[len(PROMPT) :][:40]) == expected
    assert num_steps == 40 if quality == 0 else num_steps < 20


@pytest.mark.parametrize("rank", [0, 3], ids=["likely", "unlikely"])
def test_sampled_texts_keep_the_targets_law_whatever_is_drafted(rank: int) -> None:
    """The first token's frequencies over 1,500 requests with the same draft."""
    torch.manual_seed(5)
    logits = tiny_logits(1, PROMPT)
    draft = int(np.argsort(-logits)[rank])
    random = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(1500), generators={})
    written = decided([[draft]] * 1500, [logits] * 3000, random)
    law = np.exp(logits) / np.exp(logits).sum()
    found = np.bincount([tokens[0] for tokens in written], minlength=VOCAB) / 1500
    assert np.abs(found - law).max() < 0.05  # four standard errors of the commonest token
    accepted = sum(len(tokens) == 2 for tokens in written) / 1500
    assert accepted == pytest.approx(law[draft], abs=0.05)


async def test_its_http_interface_takes_our_requests() -> None:
    asked = list[dict[str, Any]]()

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/inference/v1/generate"
        asked.append(json.loads(request.content))
        return httpx.Response(
            200, text='data: {"choices": [{"index": 0, "token_ids": [5]}]}\n\ndata: [DONE]\n\n'
        )

    sampling = SamplingParams(temperature=0.8, top_k=9, top_p=0.9, repetition_penalty=1.1, seed=2**64 - 1)
    request = Request(name_of("0" * 16), (1, 2, 3), 2, 30, sampling, "tenant")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine") as http:
        assert [tokens async for tokens in VllmClient(http).texts(request)] == [[5]]
    found = GenerateRequest.model_validate(asked[0])
    found.sampling_params._validate_spec_decode(CONFIG.speculative_config)
    assert (found.request_id, found.token_ids, found.cache_salt) == (name_of("0" * 16), [1, 2, 3], "tenant")
    params = found.sampling_params
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.8, 9, 0.9, 30)
    assert (params.repetition_penalty, params.ignore_eos, params.detokenize) == (1.1, True, False)
