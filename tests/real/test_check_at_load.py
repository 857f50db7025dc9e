"""The check at load passes published files, and refuses each fault of the packed path, small as it may be."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cloud_verifier.llama import llama_probe as check
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, open_runtime
from cloud_verifier.llama.shapes import DecodeShapes
from common.errors import LocalError, UserError
from tests.conftest import REAL_MODELS
from tests.real.faults import FAULTS
from tests.real.models import MAX_ROWS, MAX_STEP, SLOTS, each_file

pytestmark = [pytest.mark.real, pytest.mark.llama, pytest.mark.slow]

TOGETHER = DecodeShapes(((1, 1.0), (2, 1.1), (16, 1.5)))
SINGLY = DecodeShapes(((1, 1.0), (2, 2.5)))
KINDS = {"repeating": None, "together": TOGETHER, "singly": SINGLY}
"""By name: how steps are cut into decodes where texts do not repeat themselves, and the check allows what
rounding explains."""


@dataclass
class Loaded:
    """An engine, and what was measured of its decodes."""

    engine: LlamaEngine
    shapes: tuple[DecodeShapes, bool]


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    """A file, and a kind of decodes."""
    name, kind = request.param
    options = LlamaOptions(threads=1, deterministic=None if kind == "repeating" else False)
    with open_runtime(str(REAL_MODELS / name), SLOTS, MAX_ROWS, MAX_STEP, options) as runtime:
        shapes = KINDS[kind]
        tokens = runtime.tokenize(check.TEXT, False)[: check.LEAST_SLOTS]
        measured = check.measure_shapes(runtime, tokens) if shapes is None else (shapes, False)
        yield Loaded(LlamaEngine(runtime, SLOTS, name=name), measured)


@pytest.fixture
def engine(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> LlamaEngine:
    """A sound engine, whose decodes are not measured again."""
    engine = loaded.engine
    engine.runtime.clear()
    engine.forward = LlamaForward(engine.runtime, SLOTS, engine.info.max_positions)
    monkeypatch.setattr(check, "measure_shapes", lambda runtime, tokens: loaded.shapes)
    return engine


@pytest.mark.parametrize("loaded", each_file(KINDS), indirect=True)
def test_a_sound_file_is_served(engine: LlamaEngine) -> None:
    result = check.probe(engine)
    assert result.shapes.repeats == engine.runtime.settings.batch_invariant
    assert not result.shapes.repeats or result.num_equal == result.num_rows


@pytest.mark.parametrize("loaded", each_file(("repeating", "together")), indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused(engine: LlamaEngine, fault: str) -> None:
    FAULTS[fault](engine)
    with pytest.raises((UserError, LocalError), match=r"cannot be served|cannot evaluate"):
        check.probe(engine)  # refused by us, or by llama.cpp
