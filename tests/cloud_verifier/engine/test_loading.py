"""A load takes the attention and the memory that there are; what cannot be is refused in a sentence."""

import pytest
import torch

from cloud_verifier.core.admission import longest_session
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import CPU_SLOTS, SchedulerConfig, slots_that_fit
from cloud_verifier.engine import torch_loading as loading
from cloud_verifier.engine.attention import triton_backend as triton_attention
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.graphs import DeviceRunner
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.parallel import LeadingBackend
from cloud_verifier.engine.torch_engine import RowByRow, TorchEngine
from cloud_verifier.engine.torch_loading import (
    SHARE,
    accelerate,
    backend_of,
    choose_slots,
    largest_step,
    replays,
)
from common.errors import UserError
from lab import demo_models
from tests import wording
from tests.cloud_verifier.engine.tiny import Session, Slots, plain_model, target

pytestmark = pytest.mark.triton


GIB = 1 << 30
TARGET = str(demo_models.TARGET_DIR)


def test_auto_takes_what_a_gpu_has_with_a_margin() -> None:
    free, slot, gpu = 22 * GIB, 2 * 1024 * 1024, torch.device("cuda")
    found = choose_slots(None, free, slot, gpu, 4096, 256)
    assert SHARE * free - 2 * slot < (found + 1) * slot <= SHARE * free
    assert choose_slots(found, free, slot, gpu, 4096, 256) == found
    with wording.raises(UserError) as caught:
        choose_slots(20000, free, slot, gpu, 4096, 256)
    for part in ("--slots 20000", "39.1 GiB", "22 GiB", "--slots auto", f"at most {found}"):
        assert part in str(caught.value)
    with wording.raises(UserError):
        choose_slots(None, -5, 4096, gpu, 4096, 256)


@pytest.mark.parametrize(
    ("asked", "free", "positions", "slots"),
    [
        (None, 999 * GIB, 32_768, 32_768 + 256),  # a whole text, and a step beside it
        (None, 999 * GIB, 2048, CPU_SLOTS),  # several short texts
        (None, GIB, 10**6, GIB // 2 // 1024),  # half of the memory
        (None, None, 32_768, CPU_SLOTS),  # unknown memory
        (10**9, None, 32_768, 10**9),
        (7, GIB, 32_768, 7),
    ],
)
def test_auto_on_a_cpu_is_the_models_context_in_half_of_the_memory(
    asked: int | None, free: int | None, positions: int, slots: int
) -> None:
    assert choose_slots(asked, free, 1024, torch.device("cpu"), positions, 256) == slots


def test_slots_of_a_whole_context_admit_a_text_of_it() -> None:
    """A session's nodes need slots beside its text; without them an agent would see a smaller context."""
    slots = slots_that_fit(1024, 32_768, 999 * GIB, SchedulerConfig().max_rows)
    assert longest_session(32_768, slots, SchedulerConfig()) == 32_768


def test_the_largest_step_is_one_that_an_engine_takes() -> None:
    plan = largest_step(max_rows=19, prefill_chunk=30, max_positions=128)
    assert (plan.num_rows, plan.num_outputs) == (49, 19)
    assert sum(map(len, TorchEngine(target("llama"), 49).evaluate(plan).choices)) == 19


def test_a_load_refuses_slots_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = 10 * 2 * 128 * 4  # layers, KV heads, depths of the demo model
    monkeypatch.setattr(loading, "free_memory", lambda device: 1000 * slot)
    with wording.raises(UserError):
        loading.load_engine(TARGET, 1000, dtype="float32")
    engine, _ = loading.load_engine(TARGET, None, dtype="float32")
    assert engine.info.num_slots == 500
    told: list[int] = []

    def agree(number: int) -> int:
        told.append(number)
        return 500 * slot

    group, _ = loading.load_engine(TARGET, None, dtype="float32", agree=agree)
    assert (group.info.num_slots, told) == (250, [1000 * slot])


@pytest.mark.parametrize(
    ("attention", "device", "expected"),
    [
        ("auto", "cpu", TorchRefBackend),
        ("torch_ref", "cuda", TorchRefBackend),
        ("auto", "cuda", TritonBackend),
        ("triton", "cuda:1", TritonBackend),
    ],
)
def test_auto_is_triton_on_a_gpu_and_the_reference_elsewhere(
    attention: str, device: str, expected: type
) -> None:
    assert isinstance(backend_of(attention, torch.device(device)), expected)


@pytest.mark.parametrize("lacks", ["the package", "the capability"])
def test_a_gpu_without_triton_computes_by_the_reference_unless_triton_is_asked_for(
    lacks: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lacks == "the package":
        monkeypatch.setattr(loading, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert isinstance(backend_of("auto", torch.device("cuda:1")), TorchRefBackend)
    assert "without CUDA graphs" in caplog.text
    with wording.raises(UserError):
        backend_of("triton", torch.device("cuda:1"))


def test_a_leading_rank_chooses_on_its_device_and_replays_nothing() -> None:
    backend, told = LeadingBackend(TritonBackend()), list[int]()
    engine = TorchEngine(target("llama"), 8, backend=backend)
    accelerate(engine)
    assert isinstance(engine.runner, DeviceRunner)
    assert not replays(engine)
    backend.tell = lambda items: told.append(len(items))
    plan = StepPlan((Session(0, Slots(8)).chunk([5, 9], [1]),))
    reference = TorchEngine(target("llama"), 8).evaluate(plan)
    assert torch.equal(torch.tensor(engine.evaluate(plan).choices[0]), torch.tensor(reference.choices[0]))
    assert told == [1]


def test_unknown_attention_is_refused_and_triton_on_a_cpu_unless_it_interprets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_attention, "INTERPRETED", False)
    with wording.raises(UserError):
        backend_of("triton", torch.device("cpu"))
    with wording.raises(UserError):
        backend_of("flash", torch.device("cpu"))


def test_only_triton_is_accelerated() -> None:
    plain = TorchEngine(target("llama"), 8)
    accelerate(plain)
    assert isinstance(plain.runner, RowByRow)
    assert plain.info.rows_per_read == 1
    fast = TorchEngine(target("llama"), 8, backend=TritonBackend())
    accelerate(fast, warm_rows=8)
    assert isinstance(fast.runner, DeviceRunner)
    assert fast.runner.graphs is None  # no CUDA, no graphs
    assert fast.info.rows_per_read == 8


@pytest.mark.gpu
def test_a_gpu_replays_its_steps() -> None:
    engine = TorchEngine(TargetModel("llama", plain_model("llama").cuda()), 64, backend=TritonBackend())
    accelerate(engine, warm_rows=8)
    assert isinstance(engine.runner, DeviceRunner)
    assert engine.runner.counts.captures > 0
