"""Convert a snapshot to metrics in Prometheus' form. Each scrape reads the verifier once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from cloud_verifier.telemetry.instruments import Histogram
from cloud_verifier.telemetry.metrics import METRICS, PREFIX, Kind, Metric, Value
from cloud_verifier.telemetry.snapshot import Snapshot

ENGINE_NAME = re.compile(r"[a-z][a-z0-9_]*")


class _Collector(Collector):
    def __init__(self, collected: Iterable[Family]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Family]:
        return self._collected


def registry(snapshot: Snapshot) -> CollectorRegistry:
    """Return a registry of a snapshot's metrics, and on Linux of the process' memory, time and files."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Collector([*families(snapshot)]))
    ProcessCollector(registry=made)
    return made


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Yield every metric of a verifier with its samples: its own ones and the engine's."""
    vllms = {"model_name": snapshot.scheduler.info.name, "engine": "0"}
    for metric in METRICS:
        yield _family(metric, metric.value(snapshot), vllms if metric.name.startswith(PREFIX) else {})
    for name, value in snapshot.engine.items():
        if ENGINE_NAME.fullmatch(name):  # an invalid name would make the whole page unreadable
            yield _family(_engine_metric(name, isinstance(value, Mapping)), value, {})


def _engine_metric(name: str, by_reason: bool) -> Metric:
    stem = f"forerun_engine_{name.removesuffix('_total')}"
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    label = "reason" if by_reason else ""
    return Metric(stem, kind, lambda snapshot: snapshot.engine[name], "Reported by the engine.", label)


def _family(metric: Metric, value: Value, constant: dict[str, str]) -> Family:
    """Return one metric with its samples, each also labelled with `constant`."""
    names, values = list(constant), list(constant.values())
    if isinstance(value, Histogram):
        distribution = HistogramMetricFamily(metric.name, metric.meaning, labels=names)
        distribution.add_metric(values, value.buckets(), value.total)
        return distribution
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name, metric.meaning, labels=names)
        info.add_metric(values, dict(cast(Mapping[str, str], value)))
        return info
    names += [metric.label] if metric.label else []
    by_label = cast(Mapping[str, float], value) if isinstance(value, Mapping) else {"": value}
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=names)
    for label, number in by_label.items():
        family.add_metric([*values, label] if metric.label else values, float(number))
    return family
