"""The daemon's metrics page: its totals in Prometheus' form, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edge_client.daemon.device import Device

SUMS = {
    "tokens": ("forerun_edge_tokens", "Tokens of texts that have ended."),
    "accepted": ("forerun_edge_spec_decode_num_accepted_tokens", "Proposed in time here."),
    "device_tokens": (
        "forerun_edge_device_tokens",
        "Of them, by the draft model alone.",
    ),
    "proposed": ("forerun_edge_spec_decode_num_draft_tokens", "Draft tokens sent to a verifier."),
    "wasted": ("forerun_edge_wasted_tokens", "Of those, not accepted."),
    "target_steps": ("forerun_edge_spec_decode_num_drafts", "Target steps of texts."),
    "bytes_up": ("forerun_edge_bytes_up", "Sent to verifiers, bytes of messages."),
    "bytes_down": ("forerun_edge_bytes_down", "From verifiers, bytes of messages."),
    "resumes": ("forerun_edge_resumes", "Streams after a text's first."),
}
"""Of a text's figures: the metric that sums each. Names after `spec_decode` are vLLM's and llama.cpp's."""

SECONDS = {
    "elapsed_ms": ("forerun_edge_text_seconds", "Time that texts took, their wait in the queue excluded."),
    "waited_ms": ("forerun_edge_wait_seconds", "Time that texts waited in the daemon's own queue."),
    "draft_ms": ("forerun_edge_draft_seconds", "Time in draft steps, which run beside the rest."),
    "queue_ms": ("forerun_edge_verifier_queue_seconds", "Time in verifiers' queues, as they told."),
    "step_ms": ("forerun_edge_verifier_step_seconds", "Time in target steps, as verifiers told."),
    "network_ms": ("forerun_edge_network_seconds", "What is left of the texts' time: network and waiting."),
}
"""The same for times, told in seconds."""


class DeviceCollector(Collector):
    """Every metric of a device. `reachable` tells for each verifier's address whether it is."""

    def __init__(self, device: Device, reachable: Callable[[], dict[str, bool]]) -> None:
        self._device = device
        self._reachable = reachable

    def collect(self) -> Iterator[Metric]:
        sums = self._device.totals.sums
        for name, (metric, meaning) in SUMS.items():
            yield CounterMetricFamily(metric, meaning, value=sums[name])
        for name, (metric, meaning) in SECONDS.items():
            yield CounterMetricFamily(metric, meaning, value=sums[name] / 1e3)
        ended = CounterMetricFamily("forerun_edge_texts", "Texts that have ended, by why.", labels=["ended"])
        for reason, count in self._device.totals.ended.items():
            ended.add_metric([reason], count)
        yield ended
        yield from self._now()

    def _now(self) -> Iterator[Metric]:
        admission = self._device.admission
        yield GaugeMetricFamily(
            "forerun_edge_texts_running", "Being written now.", value=admission.num_active
        )
        yield GaugeMetricFamily(
            "forerun_edge_texts_waiting", "In the queue now.", value=admission.num_waiting
        )
        yield CounterMetricFamily(
            "forerun_edge_texts_refused", "Refused because the queue was full.", value=admission.num_refused
        )
        modes = GaugeMetricFamily(
            "forerun_edge_texts_by_mode", "Being written now, by mode.", labels=["mode"]
        )
        running = [live.answer.account.mode for live in self._device.live.values()]
        for mode in sorted(set(running)):
            modes.add_metric([mode], running.count(mode))
        yield modes
        there = GaugeMetricFamily(
            "forerun_edge_verifier_reachable", "1 for a verifier that answers.", labels=["address"]
        )
        for address, answers in self._reachable().items():
            there.add_metric([address], float(answers))
        yield there


def metrics_page(device: Device, reachable: Callable[[], dict[str, bool]]) -> Callable[[], tuple[bytes, str]]:
    """What the API asks for: the page and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector(device, reachable))
    ProcessCollector(registry=registry)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)
