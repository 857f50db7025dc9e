"""The plug-in on the classes of SGLang 0.5.23, as far as they run on a CPU.

Its CUDA kernels are not run: two have a Triton twin of SGLang's own, which Triton interprets here, and those
that only move KV do nothing. The model is the tiny one, in place of `TpModelWorker`.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

pytestmark = pytest.mark.torch
WHY = "needs sglang 0.5.23 (pip install sglang==0.5.23)"
ngram_worker: Any = pytest.importorskip(
    "sglang.srt.speculative.ngram_worker", reason=WHY, exc_type=ImportError
)

if torch.cuda.is_available():
    why = "needs no GPU and Triton's interpreter; set CUDA_VISIBLE_DEVICES= (empty)"
    pytest.skip(why, allow_module_level=True)

import numpy as np  # noqa: E402 - after the module that may be missing
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

from common.sampling import SamplingParams  # noqa: E402
from common.tree import SpeculationTree  # noqa: E402
from forerun_beside.drafts import DraftTree, name_of  # noqa: E402
from forerun_beside.mailbox import Sender  # noqa: E402
from forerun_beside.worker import Request  # noqa: E402
from forerun_sglang import plugin  # noqa: E402
from forerun_sglang.client import SglangClient  # noqa: E402
from forerun_sglang.rows import PARAMETER, read, told  # noqa: E402
from tests.lab.integrations.engine import wait_for  # noqa: E402
from tests.worlds.models import VOCAB, target_alone, tiny_logits  # noqa: E402

PROMPT = [1, 2, 3]
ROWS = 6


@pytest.fixture(scope="module")
def algorithm() -> Any:
    plugin.register()
    return SpeculativeAlgorithm.from_string("forerun")


class Runner:
    """Stands for `ModelRunner`: the tiny model, which reads each row's tokens by the engine's own mask."""

    max_running_requests = 8
    watermark_state = None
    req_to_token_pool = token_to_kv_pool_allocator = None

    def __init__(self, reqs: list[Any]) -> None:
        self.reqs = reqs

    def forward(self, batch: Any) -> Any:
        logits = [row for at, req in enumerate(self.reqs) for row in self.rows(batch, at, req)]
        output = SimpleNamespace(next_token_logits=torch.tensor(np.array(logits)))
        return SimpleNamespace(logits_output=output)

    def rows(self, batch: Any, at: int, req: Any) -> list[Any]:
        text = [*req.origin_input_ids_unpadded, *req.written]
        if not batch.forward_mode.is_target_verify():
            return [tiny_logits(1, text)]
        assert int(batch.seq_lens[at]) == len(text) - 1
        width = len(text) - 1 + ROWS
        before = sum(ROWS * (int(length) + ROWS) for length in batch.seq_lens[:at])
        mask = batch.spec_info.custom_mask[before : before + ROWS * width].reshape(ROWS, width)
        tokens = batch.input_ids.reshape(-1, ROWS)[at].tolist()
        positions = batch.spec_info.positions.reshape(-1, ROWS)[at].tolist()
        assert tokens[0] == text[-1]
        found = []
        for row in range(ROWS):
            above = [other for other in range(ROWS) if mask[row, len(text) - 1 + other]]
            path = [*text[:-1], *(tokens[other] for other in above)]
            assert positions[row] == len(path) - 1
            found.append(tiny_logits(1, path))
        return found


class Target:
    """Stands for `TpModelWorker`: the model, then the greedy token unless rows are to be verified."""

    def __init__(self, reqs: list[Any]) -> None:
        self.model_runner = Runner(reqs)

    def get_memory_pool(self) -> tuple[None, None]:
        return None, None

    def forward_batch_generation(self, batch: Any, is_verify: bool = False, **_: Any) -> Any:
        output = self.model_runner.forward(batch).logits_output
        tokens = None if is_verify else output.next_token_logits.argmax(dim=-1)
        return SimpleNamespace(logits_output=output, next_token_ids=tokens, can_run_cuda_graph=False)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on CUDA alone: Triton twins, or nothing where only KV moves."""
    from sglang.kernels.ops.speculative.reconstruct_tree import reconstruct_indices_from_tree_mask_triton
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton
    from sglang.srt.speculative import eagle_utils

    def verified(*, topk: int, **named: Any) -> Any:
        verify_tree_greedy_triton(**named)
        return named["predicts"], named["accept_index"], named["accept_token_num"]

    def nothing(*_: Any, **__: Any) -> None:
        """Moves no KV."""

    monkeypatch.setattr(eagle_utils, "verify_tree_greedy_func", verified)
    monkeypatch.setattr(
        ngram_worker, "reconstruct_indices_from_tree_mask_func", reconstruct_indices_from_tree_mask_triton
    )
    for name in (
        "assign_extend_cache_locs_func",
        "prepare_mamba_track_for_verify",
        "record_stream_for_v2_verify",
        "commit_mamba_states_after_verify",
        "move_accept_tokens_to_target_kvcache",
        "set_time_batch",
    ):
        monkeypatch.setattr(ngram_worker, name, nothing)
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(current_stream=nothing))


class Serving:
    """SGLang's loop over a batch: a step that reads the prompts, then steps that verify.

    Overlapped, a step begins before the results of the step before are in `output_ids`.
    """

    def __init__(self, samplings: list[SamplingParams | None], overlapped: bool) -> None:
        self.overlapped = overlapped
        self.previous: Any = None  # the input that the step before has left
        self.reqs = [self.asked(at, sampling) for at, sampling in enumerate(samplings)]
        self.target = Target(self.reqs)
        self.accepted = 0

    def asked(self, at: int, sampling: SamplingParams | None) -> Any:
        custom = None
        if sampling is not None:
            custom = {PARAMETER: told(len(PROMPT), sampling)}
        params = SimpleNamespace(custom_params=custom)
        return SimpleNamespace(
            rid=name_of(f"{at:016x}"),
            origin_input_ids_unpadded=PROMPT,
            output_ids=[],
            written=[],  # the truth
            sampling_params=params,
        )

    def batch(self, mode: Any) -> Any:
        lengths = [len(PROMPT) + len(req.written) - (mode is ForwardMode.DECODE) for req in self.reqs]
        return SimpleNamespace(
            reqs=self.reqs,
            forward_mode=mode,
            seq_lens=torch.tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            req_pool_indices=torch.arange(len(self.reqs)),
            req_to_token_pool=SimpleNamespace(req_to_token=None),
            grammar_needs_sync=lambda: False,
            has_grammar=False,
            return_logprob=False,
            spec_info=self.previous,
            device="cpu",
            sampling_info=SimpleNamespace(
                is_all_greedy=True,
                acc_additive_penalties=None,
                acc_scaling_penalties=None,
                logit_bias=None,
                has_watermark_candidates=False,
            ),
        )

    def step(self, worker: Any, mode: Any) -> None:
        result = worker.forward_batch_generation(self.batch(mode))
        self.previous = result.next_draft_input
        tokens = self.previous.accept_tokens.reshape(len(self.reqs), -1).tolist()
        for req, new, count in zip(self.reqs, tokens, result.accept_lens.tolist(), strict=True):
            if self.overlapped:
                req.output_ids = [*req.written]
            req.written += new[:count]
            if not self.overlapped:
                req.output_ids = [*req.written]
            self.accepted += count - 1


SAMPLINGS = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=7, top_k=4),
    SamplingParams(max_tokens=40, ignore_eos=True, repetition_penalty=1.5, frequency_penalty=0.3),
]


@pytest.mark.usefixtures("kernels", "algorithm")
@pytest.mark.parametrize(("quality", "overlapped"), [(0, False), (3, False), (8, False), (3, True)])
def test_its_own_steps_write_the_targets_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quality: int, overlapped: bool
) -> None:
    """Three sessions and a request of somebody else; `quality` levels of the drafts are right."""
    from sglang.srt.runtime_context import get_context, get_parallel

    from forerun_sglang.worker import ForerunWorker

    monkeypatch.setenv("FORERUN_MAILBOX", str(tmp_path / "drafts.sock"))
    group = SimpleNamespace(rank_in_group=0, world_size=1)
    args = {"speculative_algorithm": "FORERUN", "speculative_num_draft_tokens": ROWS, "device": "cpu"}
    serving = Serving([*SAMPLINGS, None], overlapped)
    expected = [target_alone(PROMPT, each, (0,)) for each in SAMPLINGS]
    with (
        get_context().override_server_args(**args, disable_overlap_schedule=not overlapped) as server_args,
        get_parallel().override(tp_group=group),
    ):
        worker = ForerunWorker(server_args, 0, 0, serving.target)
        worker.alloc_memory_pool()
        serving.step(worker, ForwardMode.EXTEND)
        sender = Sender(str(tmp_path / "drafts.sock"))
        while min(len(req.written) for req in serving.reqs) < 40:
            for at, text in enumerate(expected):
                written = serving.reqs[at].written
                tree = SpeculationTree([*PROMPT, *written])
                here = tree.tip
                for depth, token in enumerate(text[len(written) :][:4]):
                    tree.grow(here, (token + 1) % VOCAB, -0.5)
                    here = tree.grow(here, token if depth < quality else (token + 2) % VOCAB, -0.4)
                sender.send(f"{at:016x}", DraftTree.of(tree))
                wait_for(worker._mailbox, at + 1)
            serving.step(worker, ForwardMode.DECODE)
        sender.close()
        worker._mailbox.close()
    for req, text in zip(serving.reqs, expected, strict=False):
        assert tuple(req.written[:40]) == text
    alone = target_alone(PROMPT, SAMPLINGS[0], (0,))
    assert tuple(serving.reqs[3].written[:40]) == alone
    assert quality == 0 or serving.accepted > 20


async def test_its_http_interface_takes_our_requests() -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams as Theirs

    asked = list[dict[str, Any]]()

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/generate"
        asked.append(json.loads(request.content))
        events = [{"output_ids": [5], "meta_info": {"completion_tokens": 1}}]
        events += [{"output_ids": [5, 6, 7], "meta_info": {"completion_tokens": 3}}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(each)}\n\n" for each in events))

    sampling = SamplingParams(temperature=0.8, logit_bias=((3, 1.5),), seed=2**64 - 1)
    request = Request(name_of("0" * 16), (1, 2, 3), 2, 30, sampling, "tenant")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine") as http:
        assert [tokens async for tokens in SglangClient(http).texts(request)] == [[5], [6, 7]]
    found = GenerateReqInput(**asked[0])
    found.normalize_batch_and_arguments()
    assert (found.rid, found.input_ids, found.extra_key) == (name_of("0" * 16), [1, 2, 3], "tenant")
    params = Theirs(**found.sampling_params)
    params.normalize(None)
    params.verify(32_000)
    assert (params.top_k, params.max_new_tokens, params.ignore_eos) == (1, 30, True)
    assert params.custom_params is not None
    assert read(params.custom_params[PARAMETER]) == (2, sampling)
