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
    return TritonBackend()


def accelerate(engine: TorchEngine, *, cuda_graphs: bool = True, warm_rows: int = 0) -> None:
    """Let an engine with Triton's attention choose on its device and, on CUDA, replay its steps.

    Graphs of steps of up to `warm_rows` rows are made now, which takes seconds; others when they first come.
    An engine with another attention stays as it is.
    """
    if isinstance(engine.backend, TorchRefBackend):
        return
    from cloud_verifier.engine.device_runner import DeviceRunner
    from cloud_verifier.engine.graphs import CudaCapture
    from cloud_verifier.engine.triton_attention import TritonBackend

    if not isinstance(engine.backend, TritonBackend):
        return
    replays = cuda_graphs and engine.model.device.type == "cuda"
    runner = DeviceRunner(engine, CudaCapture() if replays else None)
    engine.runner = runner
    if runner.graphs is not None and warm_rows:
        runner.graphs.warm(warm_rows)
        logger.info("%d CUDA graphs made ahead", runner.counts.captures)
