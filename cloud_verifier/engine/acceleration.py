"""Which attention an engine computes with, and whether its steps are replayed: `auto`, or as asked for."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from cloud_verifier.engine.attention import AttentionBackend
from cloud_verifier.engine.attention_names import ATTENTIONS
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.torch_ref import TorchRefBackend
from common.errors import UserError

logger = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)
"""Of a GPU that computes Triton's attention. On 7.5 a prefill tile needs more shared memory than there is,
smaller ones spill registers, and bfloat16 is emulated."""


def backend_of(attention: str, device: torch.device) -> AttentionBackend:
    """The backend called `attention` on `device`; `auto` is triton on CUDA and torch_ref elsewhere.

    Raises `UserError` for a name that is none, and for triton where it cannot run.
    """
    if attention not in ATTENTIONS:
        raise UserError(f"--attention is {attention!r}; it must be {', '.join(ATTENTIONS)}")
    if attention == "torch_ref" or (attention == "auto" and device.type != "cuda"):
        return TorchRefBackend()
    if find_spec("triton") is None:
        if attention == "auto":
            logger.warning("triton is not installed: attention is computed by torch_ref, without CUDA graphs")
            return TorchRefBackend()
        raise UserError(
            "--attention triton needs triton, which torch's CUDA wheels bring; pip install triton"
        )
    from cloud_verifier.engine.triton_attention import INTERPRETED, TritonBackend

    if device.type != "cuda" and not INTERPRETED:
        raise UserError(f"--attention triton needs a CUDA device, and this is {device}; use torch_ref")
    capability = _capability(device)
    if capability < LEAST_CAPABILITY:
        words = f"{device} has compute capability {capability[0]}.{capability[1]}"
        if attention == "auto":
            logger.warning("! %s: attention is computed by torch_ref, without CUDA graphs", words)
            return TorchRefBackend()
        raise UserError(f"--attention triton needs compute capability 8.0, and {words}; use torch_ref")
    return TritonBackend()


def _capability(device: torch.device) -> tuple[int, int]:
    """The GPU's compute capability. Without a GPU there is nothing to refuse."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return LEAST_CAPABILITY
    return torch.cuda.get_device_capability(device)


def accelerate(engine: TorchEngine, *, cuda_graphs: bool = True, warm_rows: int = 0) -> None:
    """Let an engine with Triton's attention choose on its device and, on CUDA, replay its steps.

    Graphs of steps of up to `warm_rows` rows are made now, which takes seconds; others when they first come.
    An engine with another attention stays as it is. One that leads a group replays nothing.
    """
    if not _has_kernels(engine):
        return
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.graphs import CudaCapture

    replayed = cuda_graphs and replays(engine)
    runner = DeviceRunner(engine, CudaCapture() if replayed else None)
    engine.runner = runner
    runner.warm(warm_rows)
    if runner.counts.captures:
        logger.info("%d CUDA graphs made ahead", runner.counts.captures)


def replays(engine: TorchEngine) -> bool:
    """Whether the engine's steps can be CUDA graphs: the other ranks of a group hear of each step as it
    begins, which no graph records."""
    leads = hasattr(engine.backend, "inner")
    return _has_kernels(engine) and engine.model.device.type == "cuda" and not leads


def _has_kernels(engine: TorchEngine) -> bool:
    backend = getattr(engine.backend, "inner", engine.backend)
    if isinstance(backend, TorchRefBackend) or find_spec("triton") is None:
        return False
    from cloud_verifier.engine.triton_attention import TritonBackend

    return isinstance(backend, TritonBackend)
