"""Serves the daemon's totals in Prometheus' form, read at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edge_client.texts.text_service import TextService

SUMS = {
    "tokens": ("forerun_edge_tokens", "Tokens of texts that have ended."),
    "accepted": ("forerun_edge_spec_decode_num_accepted_tokens", "Accepted draft tokens."),
    "device_tokens": ("forerun_edge_device_tokens", "Tokens by the draft model alone."),
    "proposed": ("forerun_edge_spec_decode_num_draft_tokens", "Draft tokens sent to a verifier."),
    "wasted": ("forerun_edge_wasted_tokens", "Draft tokens not accepted."),
    "target_steps": ("forerun_edge_spec_decode_num_drafts", "Target steps of ended texts."),
    "bytes_up": ("forerun_edge_bytes_up", "Bytes of messages sent to verifiers."),
    "bytes_down": ("forerun_edge_bytes_down", "Bytes of messages from verifiers."),
    "resumes": ("forerun_edge_resumes", "Streams of texts after the first, by reconnects."),
}
"""The metric that sums each of a text's figures. Names with `spec_decode` are vLLM's and llama.cpp's."""

SECONDS = {
    "elapsed_ms": ("forerun_edge_text_seconds", "Time of texts from request to last token."),
    "waited_ms": ("forerun_edge_wait_seconds", "Of that, time before the texts began."),
    "draft_ms": ("forerun_edge_draft_seconds", "Time in draft steps, which run in parallel."),
    "queue_ms": ("forerun_edge_verifier_queue_seconds", "Time in verifiers' queues, as verifiers report."),
    "step_ms": ("forerun_edge_verifier_step_seconds", "Time in target steps, as verifiers report."),
    "other_ms": ("forerun_edge_other_seconds", "Rest of texts' time: network and waiting."),
}
"""The metric that sums each of a text's times, in seconds."""


class DeviceCollector(Collector):
    """Collects all metrics of a device. `reachable` maps verifiers' addresses to their state.

    The label `pair` tells the pairs apart, unless there is one without a name. All share one queue.
    """

    def __init__(self, pairs: Mapping[str, TextService], reachable: Callable[[], dict[str, bool]]) -> None:
        self._pairs = pairs
        self._reachable = reachable

    def collect(self) -> Iterator[Metric]:
        queue = next(iter(self._pairs.values())).admission
        for name, (metric, meaning) in SUMS.items():
            yield self._sums(CounterMetricFamily(metric, meaning, labels=self._labels), name, 1.0)
        for name, (metric, meaning) in SECONDS.items():
            yield self._sums(CounterMetricFamily(metric, meaning, labels=self._labels), name, 1e3)
        ended = CounterMetricFamily(
            "forerun_edge_texts", "Ended texts by reason.", labels=[*self._labels, "ended"]
        )
        yield self._each(ended, lambda texts: texts.totals.ended)
        yield GaugeMetricFamily("forerun_edge_texts_running", "Texts under way.", value=queue.num_active)
        yield GaugeMetricFamily("forerun_edge_texts_waiting", "Texts in the queue.", value=queue.num_waiting)
        yield CounterMetricFamily(
            "forerun_edge_texts_refused", "Texts refused because the queue was full.", value=queue.num_refused
        )
        modes = GaugeMetricFamily(
            "forerun_edge_texts_by_mode", "Texts under way, by mode.", labels=[*self._labels, "mode"]
        )
        yield self._each(
            modes, lambda texts: Counter(live.answer.account.mode for live in texts.live.values())
        )
        there = GaugeMetricFamily(
            "forerun_edge_verifier_reachable", "1 for a verifier that answers.", labels=["address"]
        )
        for address, is_reachable in sorted(self._reachable().items()):
            there.add_metric([address], is_reachable)
        yield there

    @property
    def _labels(self) -> list[str]:
        return ["pair"] if any(self._pairs) else []

    def _sums(self, metric: CounterMetricFamily, name: str, divisor: float) -> Metric:
        for pair, texts in self._pairs.items():
            metric.add_metric([pair] if pair else [], texts.totals.sums[name] / divisor)
        return metric

    def _each(
        self,
        metric: CounterMetricFamily | GaugeMetricFamily,
        values: Callable[[TextService], Mapping[str, float]],
    ) -> Metric:
        """Add the values of each pair, by their last label."""
        for pair, texts in self._pairs.items():
            for label, value in sorted(values(texts).items()):
                metric.add_metric([pair, label] if pair else [label], value)
        return metric


def metrics_page(
    pairs: Mapping[str, TextService], reachable: Callable[[], dict[str, bool]]
) -> Callable[[], tuple[bytes, str]]:
    """Return a function that makes the page and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector(pairs, reachable))
    ProcessCollector(registry=registry)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)
