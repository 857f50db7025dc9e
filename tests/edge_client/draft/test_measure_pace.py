"""What a draft model's steps take is measured, and known to the first text."""

import pytest

from common.llama.runtime import LlamaRuntime
from edge_client.core.draft_times import DraftTimes
from edge_client.draft.measure_pace import PaceTables, measure_pace

pytestmark = pytest.mark.llama

ROW_COSTS = {1: 0.023, 2: 0.085, 3: 0.106, 4: 0.124, 6: 0.130, 8: 0.135}


class SlowRows:
    """A clock by which a batch takes what its rows with logits cost, and 10 ms for each other token."""

    def __init__(self, runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        fill, decode = runtime.batch.fill, runtime.decode

        def filled(tokens: list[int], positions: list[int], sequences: list[int], outputs: list[int]) -> None:
            self.cost = ROW_COSTS[sum(outputs)] + 0.010 * (len(outputs) - sum(outputs))
            fill(tokens, positions, sequences, outputs)

        def slow() -> int:
            self.now += self.cost
            return decode()

        monkeypatch.setattr(runtime.batch, "fill", filled)
        monkeypatch.setattr(runtime, "decode", slow)

    def __call__(self) -> float:
        return self.now


def test_the_tables_are_the_devices_own(runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SlowRows(runtime, monkeypatch)
    tables = measure_pace(runtime, budget=60.0, clock=clock)
    assert tables.rows == pytest.approx(ROW_COSTS)
    pace = DraftTimes()
    tables.teach(pace)
    assert pace.rows.predict(2) == pytest.approx(0.085)
    assert pace.reads.predict(8) == pytest.approx(0.080)
    assert runtime.seq_span(0) == (-1, -1), "the context is left empty"


def test_a_short_batch_within_the_noise_does_not_make_long_prompts_look_slow() -> None:
    pace = DraftTimes()
    PaceTables({1: 0.010, 2: 0.010}, {2: 0.0099, 33: 0.042}).teach(pace)
    pace.reads.sample(1, 0.002)
    assert 10.0 < pace.reads.predict(20_000) < 40.0


def test_a_slow_device_measures_the_smallest_widths_only(
    runtime: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SlowRows(runtime, monkeypatch)
    tables = measure_pace(runtime, budget=0.0, clock=clock)
    assert list(tables.rows) == [1, 2]
    assert clock.now < 1.0
