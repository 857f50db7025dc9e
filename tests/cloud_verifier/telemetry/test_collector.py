"""The page is what Prometheus can read, and its values are those of the verifier's sessions and slots."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from cloud_verifier.core.engine_protocol import Stats
from cloud_verifier.core.ledger import StepReport, Waits
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.worker import Worker
from cloud_verifier.telemetry.collector import families, registry
from cloud_verifier.telemetry.instruments import Histogram, Instruments
from cloud_verifier.telemetry.metrics import METRICS, VLLM
from cloud_verifier.telemetry.snapshot import Snapshot
from common.messages import Close
from tests.cloud_verifier.telemetry.desk import INFO, ask, begin, make, running, step, whole
from tests.worlds.models import TinyTarget

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page_of(snapshot: Snapshot) -> Page:
    """Every sample that Prometheus reads, by name and labels; vLLM's constant ones left out."""
    text = generate_latest(registry(snapshot)).decode()
    found: Page = {}
    for each in parse(text):
        for sample in each.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def value(page: Page, name: str, **labels: str) -> float:
    return page[name, tuple(sorted(labels.items()))]


async def busy(worker: Worker) -> Snapshot:
    """After two texts, a goodbye, a lost one and a refusal; another one is open."""
    async with running(worker):
        await whole(worker, ask(max_tokens=5), "a")
        await whole(worker, ask(max_tokens=8), "b")
        closed, _ = begin(worker, ask(max_tokens=400), "b")
        worker.receive(closed, Close())
        worker.disconnect(closed)
        lost, _ = begin(worker, ask(max_tokens=400), "c")
        worker.disconnect(lost)
        begin(worker, ask((1, 99)))
        begin(worker, ask(max_tokens=400), "a")
        return worker.snapshot()


async def test_a_page_says_what_the_sessions_did() -> None:
    snapshot = await busy(make())
    page, counters = page_of(snapshot), snapshot.counters
    assert value(page, "forerun_sessions_opened_total") == 5
    assert value(page, "forerun_sessions_ended_total", reason="LENGTH") == 2
    assert value(page, "forerun_sessions_ended_total", reason="CANCELLED") == 1
    assert value(page, "forerun_sessions_ended_total", reason="LOST") == 1
    assert value(page, "forerun_refusals_total", code="OUT_OF_RANGE") == 1
    assert value(page, "forerun_refusals_total", code="RESOURCE_EXHAUSTED") == 0
    assert value(page, "vllm:request_success_total", finished_reason="length") == 2
    assert value(page, "vllm:request_success_total", finished_reason="abort") == 2
    assert value(page, "vllm:generation_tokens_total") == counters.num_committed >= 13
    assert value(page, "vllm:prompt_tokens_total") == 15
    assert value(page, "vllm:prefix_cache_hits_total") == counters.num_cached_tokens > 0
    assert value(page, "vllm:num_requests_running") == 1
    assert value(page, "vllm:num_requests_waiting") == 0
    assert value(page, "vllm:request_generation_tokens_sum") == 13
    assert value(page, "vllm:time_to_first_token_seconds_count") >= 2
    assert value(page, "forerun_steps_total") == value(page, "forerun_step_time_seconds_count")
    rows = sum(value(page, "forerun_rows_total", kind=kind) for kind in ("prefill", "tip", "draft"))
    assert rows == counters.num_prefilled + counters.num_evaluated
    states = ("free", "cached", "shared", "owned")
    assert sum(value(page, "forerun_kv_slots", state=state) for state in states) == INFO.num_slots


async def test_both_of_prometheus_formats_can_be_read() -> None:
    snapshot = await busy(make())
    text = generate_openmetrics(registry(snapshot)).decode()  # type: ignore[no-untyped-call]
    assert {each.name for each in METRICS} <= {
        each.name
        for each in parse_openmetrics(text)  # type: ignore[no-untyped-call]
    }
    for family in families(snapshot):
        for sample in family.samples:
            named = (sample.labels.get("model_name"), sample.labels.get("engine"))
            assert named == (("tiny", "0") if family.name.startswith("vllm:") else (None, None))


def test_a_page_of_a_verifier_that_has_done_nothing_has_every_series() -> None:
    """A counter that appears with its first count has no rise that an alert could see."""
    page = page_of(make().snapshot())
    names = {name for name, _ in page}
    for metric in METRICS:
        series = f"{metric.exposed}_bucket" if metric.kind == "histogram" else metric.exposed
        assert series in names, metric
    assert value(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="14") == 0


def test_engines_tell_what_they_like_under_good_names_only() -> None:
    reasons = {"a prefill chunk": 3.0, 'an "odd" one': 1.0}
    figures: Stats = {"graph_steps_total": 7.0, "graphs": 2.0, "why_total": reasons, "Bad name": 1.0, "": 1.0}
    page = page_of(replace(make().snapshot(), engine=figures))
    assert value(page, "forerun_engine_graph_steps_total") == 7
    assert value(page, "forerun_engine_graphs") == 2
    assert value(page, "forerun_engine_why_total", reason="a prefill chunk") == 3
    assert value(page, "forerun_engine_why_total", reason='an "odd" one') == 1
    assert not [name for name, _ in page if "ad" in name and name.startswith("forerun_engine")]


async def test_near_ties_and_the_smallest_margin_are_told() -> None:
    """Those of the tiny target lie between 0 and 6 logits."""
    info = replace(INFO, near_tie=1.0)
    worker = Worker(TinyTarget(info), VerifyScheduler(info))
    assert value(page_of(worker.snapshot()), "forerun_smallest_margin") == float("inf")
    async with running(worker):
        await whole(worker, ask(max_tokens=60))
    page = page_of(worker.snapshot())
    num_near = value(page, "forerun_near_ties_total")
    assert 0 < num_near < 60
    assert 0 <= value(page, "forerun_smallest_margin") < 1


RUNNING_AND_WAITING = VLLM[:2]


def test_who_gave_way_waits_for_slots() -> None:
    """Of three texts that could be 500 tokens long each, in 1024 slots."""
    worker, engine = make(promised_text=1), TinyTarget(INFO)
    for _ in range(3):
        begin(worker, ask((1, 2), max_tokens=500))
    while (found := worker.snapshot()).sessions[2]["mode"] != "preempted":
        step(worker, engine)
    assert [each["mode"] for each in found.sessions] == ["decode", "decode", "preempted"]
    assert worker.scheduler.preemption.num_preempted == found.sessions[2]["preempted"] == 1
    assert found.sessions[2]["slots"] == 0
    assert [metric.value(found) for metric in RUNNING_AND_WAITING] == [2, 1]


async def test_every_slot_is_somewhere() -> None:
    async with running(make()) as worker:
        await whole(worker, ask((1, 2, 3, 4)))
        begin(worker, ask((1, 2, 3, 4, 5), max_tokens=100))
        slots = worker.snapshot().slots
    memory = worker.scheduler.memory
    assert slots.free + slots.cached + slots.shared + slots.owned == memory.num_slots
    assert slots.available == memory.num_unpromised
    assert slots.shared == 4, "what the second text has in common with the first"


BOUNDS = (0.5, 1.0, 2.0)


def test_a_step_is_shown_as_it_was() -> None:
    instruments, waits = Instruments(), Waits(first=[0.2], resumed=[0.3], later=[0.04, 0.05])
    instruments.note_step(StepReport(10.0, 0.03, (0.0, 0.002), 2, 5, 3, 4, 0.06, waits))
    shown = {name: (sum(each.counts), each.total) for name, each in vars(instruments).items() if each.total}
    assert shown == {
        "step_time": (1, 0.03),
        "step_ratio": (1, 0.5),
        "step_tokens": (1, 7),
        "queue_time": (2, 0.002),
        "first_token": (1, 0.2),
        "resumed": (1, 0.3),
        "later_tokens": (2, pytest.approx(0.09)),
    }


@given(st.lists(st.floats(0, 4), max_size=20))
def test_each_bucket_has_the_values_up_to_its_bound(values: list[float]) -> None:
    histogram, one_by_one = Histogram(BOUNDS), Histogram(BOUNDS)
    histogram.add(*values)
    for value in values:
        one_by_one.add(value)
    expected = [(str(bound), sum(value <= bound for value in values)) for bound in BOUNDS]
    assert histogram.buckets() == one_by_one.buckets() == [*expected, ("+Inf", len(values))]
    assert (histogram.total, one_by_one.total) == pytest.approx((sum(values), sum(values)))
