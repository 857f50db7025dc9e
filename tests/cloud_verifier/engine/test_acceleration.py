"""`auto` computes by torch_ref on a CPU and by triton on CUDA; what cannot be is said in a sentence."""

from __future__ import annotations

import pytest

from common.errors import UserError

pytestmark = pytest.mark.triton


def test_a_cpu_computes_by_the_reference() -> None:
    import torch

    from cloud_verifier.engine.acceleration import backend_of
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    assert isinstance(backend_of("auto", torch.device("cpu")), TorchRefBackend)
    assert isinstance(backend_of("torch_ref", torch.device("cuda")), TorchRefBackend)


def test_a_gpu_computes_by_triton() -> None:
    import torch

    from cloud_verifier.engine.acceleration import backend_of
    from cloud_verifier.engine.triton_attention import TritonBackend

    assert isinstance(backend_of("auto", torch.device("cuda")), TritonBackend)
    assert isinstance(backend_of("triton", torch.device("cuda:1")), TritonBackend)


def test_without_triton_a_gpu_computes_by_the_reference_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from cloud_verifier.engine import acceleration
    from cloud_verifier.engine.torch_ref import TorchRefBackend

    monkeypatch.setattr(acceleration, "find_spec", lambda name: None)
    assert isinstance(acceleration.backend_of("auto", torch.device("cuda")), TorchRefBackend)
    assert "triton is not installed" in caplog.text
    with pytest.raises(UserError, match="pip install triton"):
        acceleration.backend_of("triton", torch.device("cuda"))


def test_an_old_gpu_computes_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from cloud_verifier.engine.acceleration import backend_of
    from cloud_verifier.engine.torch_ref import TorchRefBackend
    from cloud_verifier.engine.triton_attention import TritonBackend

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert isinstance(backend_of("auto", torch.device("cuda:1")), TorchRefBackend)
    assert "cuda:1 has compute capability 7.5" in caplog.text
    with pytest.raises(UserError, match=r"needs compute capability 8\.0, and cuda:1 has compute .* 7\.5"):
        backend_of("triton", torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert isinstance(backend_of("triton", torch.device("cuda:1")), TritonBackend)


def test_a_leading_rank_chooses_on_its_device_and_replays_nothing() -> None:
    import torch

    from cloud_verifier.core.target import StepPlan
    from cloud_verifier.engine.acceleration import accelerate, replays
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.parallel import LeadingBackend
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import Session, Slots, target

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


def test_triton_on_a_cpu_is_refused_unless_it_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from cloud_verifier.engine import triton_attention
    from cloud_verifier.engine.acceleration import backend_of

    monkeypatch.setattr(triton_attention, "INTERPRETED", False)
    with pytest.raises(UserError, match="needs a CUDA device, and this is cpu"):
        backend_of("triton", torch.device("cpu"))


def test_an_unknown_attention_is_refused() -> None:
    import torch

    from cloud_verifier.engine.acceleration import backend_of

    with pytest.raises(UserError, match="'flash'; it must be auto, torch_ref, triton"):
        backend_of("flash", torch.device("cpu"))


def test_only_triton_is_accelerated() -> None:
    from cloud_verifier.engine.acceleration import accelerate
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import RowByRow, TorchEngine
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import target

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
    from cloud_verifier.engine.acceleration import accelerate
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.engine import TorchEngine
    from cloud_verifier.engine.transformers_adapter import TargetModel
    from cloud_verifier.engine.triton_attention import TritonBackend
    from tests.cloud_verifier.engine.tiny import plain_model

    engine = TorchEngine(TargetModel("llama", plain_model("llama").cuda()), 64, backend=TritonBackend())
    accelerate(engine, warm_rows=8)
    assert isinstance(engine.runner, DeviceRunner)
    assert engine.runner.counts.captures > 0
