"""What a draft model's steps take is measured once, kept, and known to the first text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.llama.runtime import LlamaRuntime
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import NOTHING_READ
from edge_client.draft.measure_pace import KeptPaces, PaceTables, measure_pace
from tests.edge_client.draft.tree_world import count_decodes, exact_settings

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


def test_tables_are_kept_for_the_same_model_and_settings(
    runtime: LlamaRuntime, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state" / "pace.json"
    num_decodes = count_decodes(runtime, monkeypatch)
    first = KeptPaces(path).ensure(runtime)
    measured = num_decodes()
    assert measured > 0
    assert KeptPaces(path).ensure(runtime) == first
    assert num_decodes() == measured
    with LlamaRuntime(replace(exact_settings(model), threads=2)) as another:
        others_decodes = count_decodes(another, monkeypatch)
        KeptPaces(path).ensure(another)
        assert others_decodes() > 0


ONLY_ONE = {"rows": {"1": 0.01}, "batches": {"1": 0.01}}
TOO_LARGE = {"rows": {"1": 10**400}, "batches": {"2": 0.01}}


@pytest.mark.parametrize("record", ["", "[]", '{"x": 1}', {"rows": {"1": -1}}, ONLY_ONE, TOO_LARGE])
def test_a_damaged_record_is_measured_anew(runtime: LlamaRuntime, tmp_path: Path, record: Any) -> None:
    path = tmp_path / "pace.json"
    KeptPaces(path).ensure(runtime)
    if isinstance(record, dict):
        record = json.dumps(dict.fromkeys(json.loads(path.read_text()), record))
    path.write_text(record)
    assert KeptPaces(path).ensure(runtime).rows[1] > 0


def test_a_forgotten_pace_is_measured_again(runtime: LlamaRuntime, tmp_path: Path) -> None:
    path = tmp_path / "pace.json"
    paces = KeptPaces(path)
    paces.forget(runtime)
    assert not path.exists()
    paces.ensure(runtime)
    (name,) = json.loads(path.read_text())
    path.write_text(json.dumps({name: TEN_MS, "another": TEN_MS}))
    assert paces.ensure(runtime).rows[1] == 0.01
    paces.forget(runtime)
    assert list(json.loads(path.read_text())) == ["another"]
    assert paces.ensure(runtime).rows[1] != 0.01


TEN_MS = {"rows": {"1": 0.01, "2": 0.01}, "batches": {"2": 0.01, "3": 0.01}}


@pytest.mark.parametrize(
    ("steps", "took", "drifts"),
    [(100, 0.019, False), (100, 0.03, True), (100, 0.0055, False), (100, 0.004, True), (3, 0.03, False)],
)
def test_a_pace_drifts_when_texts_steps_differ_twofold(steps: int, took: float, drifts: bool) -> None:
    pace = DraftTimes()
    PaceTables({1: 0.010, 2: 0.012}, {2: 0.02, 3: 0.03}).teach(pace)
    for _ in range(steps):
        pace.sample(1, took, NOTHING_READ, 0.0)
    assert pace.has_drifted == drifts
