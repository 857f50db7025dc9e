"""KV takes what memory there is beside the model and its steps, at load; more is refused in a sentence."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import demo_models
from common.errors import UserError

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch

GIB = 1 << 30
TARGET = str(demo_models.TARGET_DIR)


def test_auto_takes_what_a_gpu_has_with_a_margin() -> None:
    import torch

    from cloud_verifier.engine.memory import SHARE, Room, choose_slots

    room = Room(free=22 * GIB, slot=2 * 1024 * 1024)
    found = choose_slots(None, room, torch.device("cuda"))
    assert SHARE * 22 * GIB - 2 * room.slot < (found + 1) * room.slot <= SHARE * 22 * GIB
    assert choose_slots(found, room, torch.device("cuda")) == found


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    import torch

    from cloud_verifier.engine.memory import Room, choose_slots

    room = Room(free=22 * GIB, slot=2 * 1024 * 1024)
    with pytest.raises(UserError) as caught:
        choose_slots(20000, room, torch.device("cuda"))
    most = choose_slots(None, room, torch.device("cuda"))
    for part in ("--slots 20000", "39.1 GiB", "22 GiB", "--slots auto", f"at most {most}"):
        assert part in str(caught.value)
    with pytest.raises(UserError, match="--slots auto finds"):
        choose_slots(None, Room(free=-5, slot=4096), torch.device("cuda"))


def test_auto_on_a_cpu_is_bounded_and_an_unknown_memory_refuses_nothing() -> None:
    import torch

    from cloud_verifier.engine.memory import CPU_SLOTS, Room, choose_slots

    cpu = torch.device("cpu")
    assert choose_slots(None, Room(free=999 * GIB, slot=1024), cpu) == CPU_SLOTS
    assert choose_slots(None, Room(free=10240, slot=1024), cpu) == 8
    assert choose_slots(None, Room(free=None, slot=1024), cpu) == CPU_SLOTS
    assert choose_slots(10**9, Room(free=None, slot=1024), cpu) == 10**9


def test_free_memory_and_a_peak_are_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cloud_verifier.engine.memory import free_memory, peak_of

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
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.memory import largest_step
    from tests.cloud_verifier.engine.tiny import target

    plan = largest_step(max_rows=19, prefill_chunk=30, max_positions=128)
    assert (plan.num_rows, plan.num_outputs) == (49, 19)
    assert sum(map(len, TorchEngine(target("llama"), 49).evaluate(plan).choices)) == 19


def test_all_kv_is_there_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated by the first session, it would fail after readiness. The probe's own is given back before."""
    import torch

    from cloud_verifier.engine.loading import load_engine

    left: list[int] = []

    def census() -> None:
        found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        shapes = [tensor.shape for tensor in found if tensor.dtype == torch.float32]
        left.append(sum(len(shape) == 3 and shape[1:] == (2, 64) for shape in shapes))  # KV of the demo model

    monkeypatch.setattr(torch.cuda, "empty_cache", census)
    engine, _ = load_engine(TARGET, 300, dtype="float32")
    assert left == [0]
    assert engine.kv.num_layers == engine.model.num_layers
    assert engine.kv.num_bytes == 301 * engine.model.num_layers * 2 * 64 * 4


def test_a_load_refuses_slots_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud_verifier.engine import loading

    slot = 10 * 2 * 64 * 4  # layers, KV heads, depths of the demo model
    monkeypatch.setattr(loading, "free_memory", lambda device: 1000 * slot)
    with pytest.raises(UserError, match="at most 899"):
        loading.load_engine(TARGET, 1000, dtype="float32")
    engine, _ = loading.load_engine(TARGET, None, dtype="float32")
    assert engine.info.num_slots == 899
    told: list[int] = []

    def agree(number: int) -> int:
        told.append(number)
        return 500 * slot

    group, _ = loading.load_engine(TARGET, None, dtype="float32", agree=agree)
    assert (group.info.num_slots, told) == (449, [1000 * slot])


@pytest.mark.triton
def test_the_reserve_holds_two_peaks_where_graphs_have_memory_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cloud_verifier.engine import loading
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.graphs import most_partial_bytes
    from cloud_verifier.engine.memory import GRAPHS, largest_step
    from cloud_verifier.engine.probe import probe
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import target

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
