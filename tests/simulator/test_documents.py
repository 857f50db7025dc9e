"""A document that makes no world is refused by its field, before anything runs."""

import math
from pathlib import Path

import pytest

from common.errors import UserError
from simulator.files import experiment_from

PROFILES = "lan, fibre, cable, wifi, lte, 5g, starlink, geo-satellite, lossy-wifi"
FILES = {
    "t.csv": "time_s,rtt_ms,session\n" + "".join(f"{second},45,a\n" for second in range(20)),
    "w.csv": "time_s,rtt_ms,bw_mbps\n0,5,1\n1,5,1\n",
    "m.trace": "1\n",
    "a.csv": "time_s\n1\n2\n60\n",
}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "a table of keys"),
        ({"sed": 1}, "a world has no 'sed'"),
        ({"seed": "1"}, "seed is '1'; a whole number was expected"),
        ({"seed": -1}, "world seed is -1"),
        ({"tokens": 0}, "world tokens is 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"link": 60}, r"a table \[link\] was expected"),
        ({"link": {"rtt": 60}}, r"\[link\] has no 'rtt'; it may have rtt_ms"),
        ({"link": {"rtt_ms": "fast"}}, "link.rtt_ms is 'fast'; a number was expected"),
        ({"link": {"outages": [{"start_ms": 1}]}}, "needs start_ms and duration_ms"),
        ({"link": {"outages": 3}}, "not a list of tables"),
        ({"device": {"draft_ms": -1}}, "device draft_time is -0.001"),
        ({"device": {"draft_ms_by_rows": [23, 85]}}, "device.draft_ms_by_rows"),
        ({"device": {"draft_ms_by_rows": {"1": 0}}}, "device draft_times"),
        ({"verifier": {"step_ms_by_rows": {"1": 40, "2": 0}}}, "verifier step_times"),
        ({"verifier": {"step_ms_by_rows": {"2": 40}}}, "verifier step_times"),
        ({"verifier": {"step_ms_by_rows": {"1": 40}, "step_ms": 30}}, "verifier.step_ms_by_rows"),
        ({"verifier": {"max_rows": 0}}, "verifier max_rows is 0"),
        ({"schemes": []}, "schemes is empty"),
        ({"schemes": ["teleport"]}, "growth policy 'teleport' is unknown"),
        ({"verifier": {"step_changes": {"at_s": 1, "step_ms": 5}}}, "a list of tables like { at_s = 10"),
        ({"verifier": {"step_changes": [{"at_s": 1}]}}, "each of verifier.step_changes needs at_s"),
        ({"verifier": {"step_changes": [{"at_s": 1, "step_ms": 0}]}}, "step_time is 0"),
        ({"verifier": {"step_changes": [{"at_s": -1, "step_ms": 5}]}}, "at is -1"),
        (
            {"verifier": {"step_changes": [{"at_s": at, "step_ms": 5} for at in (2, 1)]}},
            "not in order of time",
        ),
        ({"verifier": {"step_ms": 0}}, "a target that takes no time"),
        ({"schemes": ["chain", "chain"]}, "chain 2 times"),
        ({"verifier": {"replicas": 0}}, "replicas is 0"),
        ({"device": {"max_draft_steps_per_s": -1}}, "max_draft_steps_per_second is -1"),
        ({"schemes": ["colocated:sync:0"]}, "not understood|at least 1"),
        ({"link": {"handovers": 3}}, "neither false nor a table"),
        ({"link": {"handovers": {"duration_ms": 5}}}, "every_ms must be there"),
        ({"link": {"handovers": {"every_ms": 0}}}, "last 0.0 s and come every 0.0 s; they must be shorter"),
        ({"link": {"handovers": {"every_ms": -1}}}, "handovers every is -0.001"),
        ({"link": {"handovers": {"every_ms": 9, "rtt_step_ms": math.inf}}}, "handovers rtt_step is inf"),
        ({"link": {"handovers": {"every_ms": 9, "step": 1}}}, "link.handovers has no 'step'"),
        ({"link": {"profile": "carrier-pigeon"}}, f"no network profile .*; there are {PROFILES}"),
        ({"link": {"profile": 5}}, "link.profile is 5; a text was expected"),
        ({"link": {"mahimahi_up": "none.trace"}}, r"none\.trace cannot be read: No such file"),
        ({"link": {"mahimahi_up": "m.trace", "up_kbps": 5}}, "bandwidth and a mahimahi trace on its way up"),
        ({"link": {"mahimahi_down": "m.trace", "trace": "w.csv"}}, "mahimahi trace on its way down"),
        ({"link": {"profile": "lte", "trace": "w.csv"}}, "link.trace and link.profile both"),
        ({"link": {"trace": "t.csv", "trace_start_s": 30}}, "trace_start_s is 30; the trace lasts 20"),
        ({"link": {"trace": "t.csv", "trace_floor_ms": -5}}, "trace_floor_ms is -5"),
        ({"link": {"trace": "t.csv", "trace_session": 1}}, "a text was expected"),
        ({"link": {"trace_start_s": 1}}, r"need a link\.trace"),
        ({"link": {"trace_session": "a"}}, r"need a link\.trace"),
        ({"arrivals": {}}, "needs rate_per_s and sessions, or a trace"),
        ({"arrivals": {"rate_per_s": 0, "sessions": 3}}, "arrivals rate is 0 per second"),
        ({"arrivals": {"rate_per_s": 2, "sessions": 0}}, "arrivals sessions is 0"),
        ({"arrivals": {"rate_per_s": 2, "sessions": 3, "start_s": 1}}, "start_s needs an arrivals.trace"),
        ({"arrivals": {"trace": "a.csv", "rate_per_s": 2}}, "does not go with an arrivals.trace"),
        ({"arrivals": {"trace": "a.csv", "start_s": 100}}, "no request from 100 s on; the last is at 60 s"),
        ({"arrivals": {"trace": "a.csv", "start_s": 9, "duration_s": 4}}, "no request from 9 s to 13 s"),
        ({"arrivals": {"trace": "a.csv", "start_s": -1}}, "arrivals start_s is -1"),
        ({"arrivals": {"trace": "a.csv", "duration_s": 0}}, "arrivals duration_s is 0"),
        ({"arrivals": {"trace": "a.csv", "time_scale": 0}}, "arrivals time_scale is 0"),
        ({"arrivals": {"trace": "a.csv", "max_sessions": 0}}, "arrivals max_sessions is 0"),
        ({"draft": {"recording": 3}}, "draft.recording is 3; a text was expected"),
        (
            {"draft": {"recording": "a", "mean": 0.5}},
            r"\[draft\] has recording, mean; a recording stands alone",
        ),
        ({"draft": {"record": "a"}}, r"\[draft\] has no 'record'; it may have mean, k, sight, recording"),
        ({"clients": 1, "arrivals": {"rate_per_s": 1, "sessions": 1}}, "clients and \\[arrivals\\] both"),
        ({"device": {"recall": 1}}, "device.recall is 1; true or false was expected"),
        ({"link": {"jitter_law": 3}}, r"link\.jitter_law is 3; a text was expected"),
        ({"link": {"jitter_law": "wild"}}, "jitter_law is 'wild'; it can be normal, uniform, exponential"),
    ],
)
def test_a_document_that_makes_no_world_is_refused(tmp_path: Path, document: object, message: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        experiment_from(document, tmp_path)
