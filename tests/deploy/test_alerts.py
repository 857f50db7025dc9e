"""Every alert fires on what it is there for, and on nothing less. promtool computes, as Prometheus would."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.tools.generate import ROOT
from tests.conftest import program

ALERTS = ROOT / "deploy" / "compose" / "prometheus" / "alerts.yaml"

POD = 'namespace="forerun",pod="v-1"'
JOB = 'job="forerun-verifier-metrics"'


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series, as promtool writes them (a value, then `+step x times` each minute), and when to look."""

    fires: dict[str, str]
    quiet: dict[str, str]
    minute: int  # by which it fires on the one, and never on the other


def buckets(metric: str, low: int, high: int, at: tuple[str, str]) -> dict[str, str]:
    """A histogram of which `low` samples a minute are in the first bucket and `high` in the second."""
    first, second = at
    return {
        f'{metric}_bucket{{{POD},le="{first}"}}': f"0+{low}x120",
        f'{metric}_bucket{{{POD},le="{second}"}}': f"0+{low + high}x120",
        f'{metric}_bucket{{{POD},le="+Inf"}}': f"0+{low + high}x120",
    }


def share(top: str, bottom: str, of_hundred: int) -> dict[str, str]:
    """Two counters, one so many hundredths of the other."""
    return {top: f"0+{of_hundred}x120", bottom: "0+100x120"}


def gauge(series: str, value: str) -> dict[str, str]:
    return {series: f"{value}x120"}


REFUSED = f'forerun_refusals_total{{{POD},code="%s"}}'
SPENT = f'forerun_quota_refusals_total{{{POD},limit="%s"}}'
ENDED = f'forerun_sessions_ended_total{{{POD},reason="%s"}}'
WASTED, DRAFTS = f"forerun_wasted_rows_total{{{POD}}}", f'forerun_rows_total{{{POD},kind="draft"}}'
ROOM = (f"forerun_kv_slots_available{{{POD}}}", f'forerun_kv_slots{{{POD},state="owned"}}')
SESSIONS = (f'forerun_sessions{{{POD},mode="decode"}}', f"forerun_max_sessions{{{POD}}}")
EDGE = 'instance="e-1"'
QUEUE, RATIO = "forerun_queue_time_seconds", "forerun_step_time_ratio"
PAUSE, FIRST = "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds"
INFO = 'forerun_verifier_info{namespace="forerun",pod="v-%s",version="%s",protocol="1",model="m"}'
OTHER_MODEL = 'forerun_verifier_info{namespace="another",pod="v-3",version="0.2",protocol="1",model="n"}'

CASES = {
    "ForerunNoVerifier": AlertCase(gauge(f"up{{{JOB},{POD}}}", "0"), gauge(f"up{{{JOB},{POD}}}", "1"), 3),
    "ForerunVerifierDown": AlertCase(
        {f"up{{{JOB},{POD}}}": "1 1 0x120"},
        gauge(f"up{{{JOB},{POD}}}", "0") | gauge(f'up{{{JOB},pod="v-2"}}', "1"),  # the first one loads
        8,
    ),
    "ForerunVerifierLate": AlertCase(
        gauge(f"up{{{JOB},{POD}}}", "0"), {f"up{{{JOB},{POD}}}": "0x89 1x30"}, 100
    ),
    "ForerunRestarts": AlertCase(
        {f"forerun_start_time_seconds{{{POD}}}": "100x4 200x4 300x4 400x100"},
        {f"forerun_start_time_seconds{{{POD}}}": "100x4 200x100"},
        16,
    ),
    "ForerunDrainStuck": AlertCase(
        gauge(f"forerun_draining{{{POD}}}", "1"), {f"forerun_draining{{{POD}}}": "0 1 0x100"}, 5
    ),
    "ForerunMixedVersions": AlertCase(
        {INFO % (1, "0.1"): "1x120", INFO % (2, "0.2"): "1x120"},
        {INFO % (1, "0.1"): "1x120", INFO % (2, "0.1"): "1x120", OTHER_MODEL: "1x120"},
        70,
    ),
    "ForerunUsersTurnedAway": AlertCase(
        {REFUSED % "RESOURCE_EXHAUSTED": "0+60x120", SPENT % "max_sessions": "0x120"},
        {
            REFUSED % "RESOURCE_EXHAUSTED": "0+61x120",
            SPENT % "max_sessions": "0+60x120",
            REFUSED % "UNAVAILABLE": "0+60x120",
        },
        15,
    ),
    "ForerunSessionsNearLimit": AlertCase(
        gauge(SESSIONS[0], "61") | gauge(SESSIONS[1], "64"),
        gauge(SESSIONS[0], "50") | gauge(SESSIONS[1], "64"),
        7,
    ),
    "ForerunMemoryFull": AlertCase(
        gauge(ROOM[0], "10") | gauge(ROOM[1], "1000"), gauge(ROOM[0], "100") | gauge(ROOM[1], "1000"), 7
    ),
    "ForerunPreemptions": AlertCase(
        {f"vllm:num_preemptions_total{{{POD}}}": "0+6x120"},
        {f"vllm:num_preemptions_total{{{POD}}}": "0+1x120"},
        25,
    ),
    "ForerunMemoryShort": AlertCase(
        gauge(f"forerun_memory_short{{{POD}}}", "1"), {f"forerun_memory_short{{{POD}}}": "0 1 1 0x100"}, 8
    ),
    "ForerunQueueDelay": AlertCase(
        buckets(QUEUE, 50, 50, ("0.1", "1")), buckets(QUEUE, 100, 0, ("0.1", "1")), 15
    ),
    "ForerunTextsSlow": AlertCase(buckets(PAUSE, 90, 10, ("1", "4")), buckets(PAUSE, 100, 0, ("1", "4")), 20),
    "ForerunFirstTokenLate": AlertCase(
        buckets(FIRST, 80, 20, ("5", "10")), buckets(FIRST, 98, 2, ("5", "10")), 20
    ),
    "ForerunStepTimesOff": AlertCase(
        buckets(RATIO, 50, 50, ("2", "4")), buckets(RATIO, 95, 5, ("2", "4")), 30
    ),
    "ForerunDraftsInVain": AlertCase(share(WASTED, DRAFTS, 99), share(WASTED, DRAFTS, 70), 70),
    "ForerunStepsFail": AlertCase(
        {f"forerun_failed_steps_total{{{POD}}}": "0 1x120"},
        gauge(f"forerun_failed_steps_total{{{POD}}}", "7"),
        3,
    ),
    "ForerunInternalErrors": AlertCase(
        {ENDED % "INTERNAL": "0 1x120"}, {ENDED % "INTERNAL": "3x120", ENDED % "LOST": "0+9x120"}, 3
    ),
    "ForerunStreamsBreak": AlertCase(
        {ENDED % "LOST": "0+40x120", ENDED % "STOP": "0+60x120"},
        {ENDED % "LOST": "0+20x120", ENDED % "STOP": "0+80x120"},
        25,
    ),
    "ForerunCertificateEnds": AlertCase(
        gauge(f"forerun_certificate_expiry_seconds{{{POD}}}", "500000"),
        gauge(f"forerun_certificate_expiry_seconds{{{POD}}}", "9000000"),
        12,
    ),
    "ForerunFilesNotTaken": AlertCase(
        {f'forerun_failed_file_reloads_total{{{POD},file="certificate"}}': "0x5 1x100"},
        {f'forerun_failed_file_reloads_total{{{POD},file="certificate"}}': "1x120"},
        8,
    ),
    "ForerunQuotasSpent": AlertCase(
        {SPENT % "max_sessions": "0+60x120"}, {SPENT % "max_sessions": "0+1x120"}, 30
    ),
    "ForerunHostileClients": AlertCase(
        {REFUSED % "INVALID_ARGUMENT": "0+90x120"},
        {REFUSED % "INVALID_ARGUMENT": "0+9x120", REFUSED % "RESOURCE_EXHAUSTED": "0+900x120"},
        20,
    ),
    "ForerunEdgeCutOff": AlertCase(
        gauge(f'forerun_edge_verifier_reachable{{{EDGE},address="a"}}', "0"),
        gauge(f'forerun_edge_verifier_reachable{{{EDGE},address="a"}}', "0")
        | gauge(f'forerun_edge_verifier_reachable{{{EDGE},address="b"}}', "1"),
        7,
    ),
    "ForerunEdgesWriteAlone": AlertCase(
        share(f"forerun_edge_device_tokens_total{{{EDGE}}}", f"forerun_edge_tokens_total{{{EDGE}}}", 40),
        share(f"forerun_edge_device_tokens_total{{{EDGE}}}", f"forerun_edge_tokens_total{{{EDGE}}}", 5),
        25,
    ),
    "ForerunEdgeQueueFull": AlertCase(
        {f"forerun_edge_texts_refused_total{{{EDGE}}}": "0+10x120"},
        gauge(f"forerun_edge_texts_refused_total{{{EDGE}}}", "30"),
        15,
    ),
}


def rules() -> dict[str, Any]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {each["alert"]: each for group in groups for each in group["rules"]}


def check(name: str, series: dict[str, str], minute: int, fires: bool, folder: Path) -> None:
    """One unit test of promtool's: how many alerts of this name fire then."""
    (folder / "rules.yaml").write_bytes(ALERTS.read_bytes())
    samples = [{"labels": "{}", "value": 1}] if fires else []
    wanted = {
        "expr": f'count by () (ALERTS{{alertname="{name}",alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": samples,
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [wanted],
    }
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    promtool("test", "rules", str(folder / "test.yaml"))


def promtool(*arguments: str) -> None:
    done = subprocess.run([str(program("promtool")), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == rules().keys()


@pytest.mark.promtool
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_its_cause_and_not_on_less(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    check(name, case.fires, case.minute, True, tmp_path)
    check(name, case.quiet, case.minute, False, tmp_path)


@pytest.mark.promtool
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", str(ALERTS))
