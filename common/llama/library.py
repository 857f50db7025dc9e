"""llama.cpp's shared library: loaded when needed, with its log in ours, and without one defect."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any

from common.child import available_memory
from common.errors import UserError

logger = logging.getLogger(__name__)

GGML_ERROR = 4  # ggml_log_level
NUM_ERRORS_KEPT = 4
ALL_LAYERS = -1  # llama.cpp's `n_gpu_layers`
GPU_DEVICES = (1, 2)  # ggml_backend_dev_type: with memory of its own, and integrated


class NativeLog:
    """Forwards llama.cpp's log lines to `logging` and keeps its latest errors for messages."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=NUM_ERRORS_KEPT)
        self.callback: Any = None  # kept for the life of the process: llama.cpp calls it at any time

    def write(self, level: int, text: bytes, _user_data: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if level == GGML_ERROR:
            self.errors.append(line)
        if line:
            logger.debug("%s", line)

    def reason(self) -> str:
        """Return llama.cpp's errors since the last call as the end of a sentence."""
        lines = "; ".join(self.errors)
        self.errors.clear()
        return f" (llama.cpp: {lines})" if lines else ""


@cache
def native_log() -> NativeLog:
    """Return the only log: llama.cpp has a single global callback."""
    return NativeLog()


@cache
def library() -> Any:
    """Return llama_cpp's ctypes bindings with our log. Raises `UserError` if they cannot be loaded."""
    try:
        bindings = importlib.import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"llama-cpp-python cannot be loaded ({error}); install it with: pip install 'forerun[edge]', or "
            "on a verifier: pip install 'forerun[verifier-llama]'"
        ) from error
    native_log().callback = bindings.llama_log_callback(native_log().write)
    bindings.llama_log_set(native_log().callback, ctypes.c_void_p(0))
    bindings.llama_backend_init()
    return bindings


def offloaded_layers(asked: int | None) -> int:
    """Return the layers to put on accelerators: `asked`, or for None (`auto`) all. Without an accelerator in
    this build of llama.cpp the result is 0."""
    if not library().llama_supports_gpu_offload():
        return 0
    return ALL_LAYERS if asked is None else asked


def free_memory(gpu_layers: int) -> int:
    """Return the free bytes for the KV of a model with so many layers on accelerators; 0 if they are unknown.

    KV lies where its layer lies, so the smaller memory decides if layers are on both sides.
    """
    if not gpu_layers:
        return available_memory()
    on_devices = sum(_device_memory())
    return on_devices if gpu_layers == ALL_LAYERS else min(on_devices, available_memory())


def _device_memory() -> Iterator[int]:
    """Yield the free bytes of each GPU that llama.cpp knows. The binding has no names for these functions."""
    native = library()._lib
    native.ggml_backend_dev_count.restype = ctypes.c_size_t
    get = native.ggml_backend_dev_get
    get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
    kind, memory = native.ggml_backend_dev_type, native.ggml_backend_dev_memory
    kind.argtypes, memory.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * 3
    memory.restype = None
    for place in range(native.ggml_backend_dev_count()):
        device = get(place)
        if kind(device) in GPU_DEVICES:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            memory(device, ctypes.byref(free), ctypes.byref(total))
            yield free.value


def extra_bufts_are_safe(system_info: str) -> bool:
    """Tell whether llama.cpp's repacked weight buffers are safe with this build.

    Builds with AMX by GCC 12 die (SIGSEGV in ldtilecfg) on any quantised decode of more than one token: the
    compiler drops most of the tile configuration (llama.cpp #20824, PR #26954). The
    compiler cannot be queried, so AMX counts as unsafe. The buffers only gain speed.
    """
    return "AMX_INT8 = 1" not in system_info
