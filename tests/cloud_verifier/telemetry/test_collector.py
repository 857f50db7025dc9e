"""The page is what Prometheus can read, and its values are those of the snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.stats import Stats
from cloud_verifier.telemetry.collector import METRICS, engine_metric, family, registry
from cloud_verifier.telemetry.metric import Metric
from cloud_verifier.telemetry.snapshot import Snapshot
from cloud_verifier.worker import Worker
from common.messages import Close
from tests.cloud_verifier.telemetry.desk import INFO, ask, begin, make, running, whole
from tests.worlds.models import TinyTarget

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page_of(snapshot: Snapshot) -> Page:
    """Every sample that Prometheus reads, by name and labels; vLLM's constant ones left out."""
    text = generate_latest(registry(lambda: snapshot)).decode()
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
    snapshot = await busy(make(max_tenants=2))
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


async def test_tenants_have_series_of_their_own_where_that_was_asked_for() -> None:
    page = page_of(await busy(make(max_tenants=2)))
    assert value(page, "forerun_tenant_sessions_opened_total", tenant="a") == 2
    assert value(page, "forerun_tenant_sessions", tenant="a") == 1
    assert value(page, "forerun_tenant_sessions_opened_total", tenant="(others)") == 1
    assert value(page, "forerun_tenant_generation_tokens_total", tenant="a") >= 5
    plain = page_of(await busy(make()))
    assert not [name for name, labels in plain if dict(labels).get("tenant")]


async def test_both_of_prometheus_formats_can_be_read() -> None:
    snapshot = await busy(make(max_tenants=1))
    text = generate_openmetrics(registry(lambda: snapshot)).decode()  # type: ignore[no-untyped-call]
    names = {each.name for each in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {each.name for each in METRICS} <= names


def test_a_page_of_a_verifier_that_has_done_nothing_has_every_series() -> None:
    """A counter that appears with its first count has no rise that an alert could see."""
    page = page_of(make().snapshot())
    names = {name for name, _ in page}
    for metric in METRICS:
        if metric.label != "tenant":
            series = f"{metric.exposed}_bucket" if metric.kind == "histogram" else metric.exposed
            assert series in names, metric
    assert value(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="14") == 0


def test_every_vllm_metric_has_vllms_labels() -> None:
    text = generate_latest(registry(make().snapshot)).decode()
    for each in parse(text):
        for sample in each.samples:
            named = (sample.labels.get("model_name"), sample.labels.get("engine"))
            assert named == (("tiny", "0") if each.name.startswith("vllm:") else (None, None))


def test_engines_tell_what_they_like_under_good_names_only() -> None:
    reasons = {"a prefill chunk": 3.0, 'an "odd" one': 1.0}
    figures: Stats = {"graph_steps_total": 7.0, "graphs": 2.0, "why_total": reasons, "Bad name": 1.0, "": 1.0}
    page = page_of(replace(make().snapshot(), engine=figures))
    assert value(page, "forerun_engine_graph_steps_total") == 7
    assert value(page, "forerun_engine_graphs") == 2
    assert value(page, "forerun_engine_why_total", reason="a prefill chunk") == 3
    assert value(page, "forerun_engine_why_total", reason='an "odd" one') == 1
    assert not [name for name, _ in page if "ad" in name and name.startswith("forerun_engine")]
    assert engine_metric("graphs").kind == "gauge"


def test_a_verifier_without_a_prefix_cache_queries_none() -> None:
    worker = make(prefix_cache=False)
    begin(worker, ask())
    page = page_of(worker.snapshot())
    assert value(page, "vllm:prompt_tokens_total") == 3
    assert value(page, "vllm:prefix_cache_queries_total") == 0


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
    assert value(page, "forerun_choice_margin_bucket", le="1.0") == num_near
    assert value(page, "forerun_choice_margin_bucket", le="+Inf") == 60
    assert 0 <= value(page, "forerun_smallest_margin") < 1
    assert ("forerun_choice_margin_sum", ()) not in page


def test_two_verifiers_in_one_process_share_nothing() -> None:
    one, other = make(), make()
    begin(one, ask())
    assert value(page_of(one.snapshot()), "forerun_sessions_opened_total") == 1
    assert value(page_of(other.snapshot()), "forerun_sessions_opened_total") == 0


def test_a_distribution_without_one_is_a_defect() -> None:
    with pytest.raises(TypeError, match="is a histogram"):
        family(Metric("forerun_x", "histogram", "X.", lambda s: 1.0), 1.0, {})
