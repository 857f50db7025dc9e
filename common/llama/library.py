"""llama.cpp's shared library: found when needed, its log turned into ours, and one defect avoided."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections import deque
from functools import cache
from typing import Any

from common.errors import UserError

logger = logging.getLogger(__name__)

GGML_ERROR = 4  # ggml_log_level
NUM_ERRORS_KEPT = 4


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


def extra_bufts_are_safe(system_info: str) -> bool:
    """Tell whether llama.cpp's repacked weight buffers are safe with this build.

    Builds with AMX by GCC 12 die (SIGSEGV in ldtilecfg) on any quantised decode of more than one token: the
    compiler drops most of the tile configuration (llama.cpp #20824, PR #26954). The
    compiler cannot be queried, so AMX counts as unsafe. The buffers only gain speed.
    """
    return "AMX_INT8 = 1" not in system_info


def reads_prompts_faster_plain(system_info: str) -> bool:
    """Tell whether this build reads prompts faster from plain weights than from repacked ones.

    With AVX512-VNNI llama.cpp has tiled kernels for plain K-quants, and repacked buffers keep them out: a
    1.5B Q4_K_M target read 158 tokens a second from plain weights and 88 from repacked ones (one core, Zen
    5).
    """
    return "AVX512_VNNI = 1" in system_info
