"""What the tests of published models share: an engine, llama.cpp alone, and the file's weights for torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import load_engine, open_runtime
from common.wire.describe import TokenTable
from tests.conftest import REAL_MODELS, SMOLLM2
from tests.real.models import MAX_ROWS, MAX_STEP, ONE_THREAD, SLOTS, Alone


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    """SmolLM2 in llama.cpp alone."""
    path = str(REAL_MODELS / SMOLLM2)
    with open_runtime(path, SLOTS, MAX_ROWS, MAX_STEP, ONE_THREAD) as runtime:
        yield Alone(runtime)


@pytest.fixture(scope="session")
def target() -> Iterator[tuple[LlamaEngine, TokenTable]]:
    """SmolLM2 as a GGUF target."""
    engine, table, _ = load_engine(str(REAL_MODELS / SMOLLM2), SLOTS, MAX_ROWS, MAX_STEP, ONE_THREAD)
    yield engine, table
    engine.runtime.close()


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's weights in float32, as transformers reads them from the GGUF file."""
    from tests.real.dequantize import dequantize

    return dequantize(REAL_MODELS / SMOLLM2, tmp_path_factory.mktemp("smollm2"))
