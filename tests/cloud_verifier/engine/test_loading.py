"""A load takes the attention and the memory that there are; what cannot be is refused in a sentence."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from cloud_verifier.core.admission import longest_session
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import CPU_SLOTS, SchedulerConfig, slots_that_fit
from cloud_verifier.engine import loading
from cloud_verifier.engine.attention import triton_backend as triton_attention
from cloud_verifier.engine.attention.reference import TorchRefBackend
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.engine import RowByRow, TorchEngine
from cloud_verifier.engine.graphs import DeviceRunner, most_partial_bytes
from cloud_verifier.engine.loading import (
    GRAPHS,
    SHARE,
    accelerate,
    backend_of,
    choose_slots,
    free_memory,
    largest_step,
    load_engine,
    peak_of,
    replays,
)
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.parallel import LeadingBackend
from cloud_verifier.engine.probe import probe
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
        (None, 999 * GIB, 10**6, 10**6 + 256),
        (None, GIB, 10**6, GIB // 2 // 1024),  # half of the memory
        (None, 10240, 32_768, 5),
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


def test_free_memory_and_a_peak_are_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device, held, most = torch.device("cuda:0"), [1000], [1000]

    def run() -> None:
        """Keep 500 bytes from the first time on, and take 300 for a while."""
        held[0] = 1500
        most[0] = max(most[0], held[0] + 300)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: most[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: most.__setitem__(0, held[0]))
    assert free_memory(device) == 7
    assert peak_of(run, device) == 300


def test_the_largest_step_is_one_that_an_engine_takes() -> None:
    plan = largest_step(max_rows=19, prefill_chunk=30, max_positions=128)
    assert (plan.num_rows, plan.num_outputs) == (49, 19)
    assert sum(map(len, TorchEngine(target("llama"), 49).evaluate(plan).choices)) == 19


def test_all_kv_is_there_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated by the first session, it would fail after readiness. The probe's own is given back before."""
    left: list[int] = []

    def census() -> None:
        found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        shapes = [tensor.shape for tensor in found if tensor.dtype == torch.float32]
        left.append(sum(len(shape) == 3 and shape[1:] == (2, 128) for shape in shapes))

    monkeypatch.setattr(torch.cuda, "empty_cache", census)
    engine, _ = load_engine(TARGET, 300, dtype="float32")
    assert left == [0]
    assert len(engine.kv.layers) == engine.model.num_layers
    assert (
        sum(kv.rows.nbytes for kv in engine.kv.layers.values()) == 301 * engine.model.num_layers * 2 * 128 * 4
    )


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


def test_the_reserve_holds_two_peaks_where_graphs_have_memory_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def peak_of(run: Callable[[], object], device: torch.device) -> int:
        run()
        return 1000

    monkeypatch.setattr(loading, "peak_of", peak_of)
    model, step = target("llama"), largest_step(5, 9, 128)
    report = probe(model)
    engine = TorchEngine(model, step.num_rows, backend=TritonBackend())
    assert loading._reserve(engine, step, report, cuda_graphs=True) == 1000  # a CPU records nothing
    monkeypatch.setattr(loading, "replays", lambda engine: True)
    reserve = loading._reserve(engine, step, report, cuda_graphs=True)
    assert reserve == 2000 + GRAPHS + most_partial_bytes(num_heads=4, value_depth=8)
    assert loading._reserve(engine, step, report, cuda_graphs=False) == 1000


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


def test_without_triton_a_gpu_computes_by_the_reference_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert isinstance(loading.backend_of("auto", torch.device("cuda")), TorchRefBackend)
    assert "triton is not installed" in caplog.text
    with wording.raises(UserError):
        loading.backend_of("triton", torch.device("cuda"))


def test_an_old_gpu_computes_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert isinstance(backend_of("auto", torch.device("cuda:1")), TorchRefBackend)
    assert "cuda:1 has compute capability 7.5" in caplog.text
    with wording.raises(UserError):
        backend_of("triton", torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert isinstance(backend_of("triton", torch.device("cuda:1")), TritonBackend)


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
