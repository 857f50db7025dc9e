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

# ggml_log_level. 5 continues the line before, whatever its level was: progress dots and the like.
LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR, 5: logging.DEBUG}
GGML_ERROR = 4
NUM_ERRORS_KEPT = 4


class NativeLog:
    """Takes llama.cpp's log lines: to `logging`, and its latest errors kept for our own messages."""

    def __init__(self) -> None:
        self.verbose = False
        self.errors: deque[str] = deque(maxlen=NUM_ERRORS_KEPT)

    def write(self, level: int, text: bytes, _user_data: object) -> None:
        """The C callback."""
        line = text.decode("utf-8", "replace").strip()
        if level == GGML_ERROR:
            self.errors.append(line)
        if line:
            logger.log(LEVELS.get(level, logging.DEBUG) if self.verbose else logging.DEBUG, "%s", line)

    def reason(self) -> str:
        """What llama.cpp complained of since the last call, as the end of a sentence."""
        lines = "; ".join(self.errors)
        self.errors.clear()
        return f" (llama.cpp: {lines})" if lines else ""


@cache
def native_log() -> NativeLog:
    """The one log: llama.cpp has a single global callback."""
    return NativeLog()


@cache
def library() -> Any:
    """The `llama_cpp.llama_cpp` module, its log routed to ours. Typed `Any`: its bindings are ctypes.

    Raises `UserError` where the package is missing or its shared library cannot be loaded.
    """
    try:
        bindings = importlib.import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"llama-cpp-python cannot be loaded ({error}); install it with: pip install 'forerun[edge]'"
        ) from error
    bindings.llama_log_set(_log_callback(bindings), ctypes.c_void_p(0))
    bindings.llama_backend_init()
    return bindings


@cache
def _log_callback(bindings: Any) -> Any:
    """Kept by the cache for the life of the process: llama.cpp calls it at any time."""
    return bindings.llama_log_callback(native_log().write)


def extra_bufts_are_safe(system_info: str) -> bool:
    """Whether llama.cpp's repacked weight buffers may be used with a build that describes itself so.

    Builds with AMX by GCC 12 die (SIGSEGV in ldtilecfg) on any quantised decode of more than one token: the
    compiler drops most of the tile configuration (llama.cpp #20824, PR #26954). Which compiler was used
    cannot be asked, so AMX counts as unsafe; the buffers only gain speed.
    """
    return "AMX_INT8 = 1" not in system_info
