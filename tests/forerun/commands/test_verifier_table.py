"""The table of live sessions: figures are of the time between two answers."""

from typing import Any

from forerun.commands.verifier_table import figures, paces, table

NUMBERS = (
    *("prompt_tokens", "resumed_tokens", "max_tokens", "cached_tokens", "committed", "accepted", "steps"),
    *("drafts", "credit", "lag", "slots"),
)


def session(**known: Any) -> dict[str, Any]:
    return {**dict.fromkeys(NUMBERS, 0), "session_id": "", "tenant": "", **known}


FIRST: dict[str, Any] = {
    "model": "tiny", "version": "0.1.0", "uptime_us": 10_000_000, "draining": False, "max_sessions": 64,
    "totals": {
        "steps": 100, "step_time_us": 3_000_000, "queue_time_us": 400_000, "queued": 200, "rows": 900,
        "tips": 200, "drafts": 600, "won": 150, "committed": 350, "accepted": 140, "prompt_tokens": 1000,
        "cached_tokens": 250, "opened": 4, "refused": 1, "preempted": 0, "bytes_received": 40_000,
        "bytes_sent": 9_000,
    },
    "slots": {"free": 600, "cached": 100, "shared": 100, "owned": 200, "available": 500},
    "sessions": [
        session(
            stream=3, mode="decode", session_id="alpha", tenant="acme", age_us=9_000_000,
            prompt_tokens=100, cached_tokens=50, max_tokens=400, committed=180, accepted=90, steps=90,
            drafts=300, credit=32, lag=2, slots=280,
        ),
        session(stream=4, mode="prefill", age_us=1_000_000, prompt_tokens=9000, max_tokens=64),
    ],
}  # fmt: skip

LATER = {
    **FIRST,
    "uptime_us": 12_000_000,
    "totals": {
        **FIRST["totals"], "steps": 150, "step_time_us": 4_500_000, "queue_time_us": 500_000, "queued": 300,
        "rows": 1200, "tips": 300, "drafts": 700, "won": 175, "committed": 450, "accepted": 215,
        "bytes_received": 44_000,
    },
    "sessions": [
        {**FIRST["sessions"][0], "age_us": 11_000_000, "committed": 260, "accepted": 130, "steps": 120},
        {**FIRST["sessions"][1], "age_us": 3_000_000, "mode": "decode", "committed": 30, "steps": 20},
        session(stream=9, mode="waiting", session_id="日本語", age_us=500_000, committed=5, steps=5),
    ],
}  # fmt: skip

SHOWN = """\
tiny   forerun 0.1.0   up 12s   sessions 3/64 (2 decode, 1 waiting)
50.0 tok/s   step 30.0 ms   queue 1.0 ms   rows/step 6.0   tips/step 2.0   edge 75%   drafts right 25%
KV 30% used, 10% cached   cache hits 25%   in 2 kB/s   out 0 B/s   opened 4   refused 1   preempted 0

STREAM  SESSION  TENANT  MODE     AGE  PROMPT  CACHED     TEXT  TOK/S  T/STEP  EDGE%  CREDIT  LAG  SLOTS
     3  alpha    acme    decode   11s     100      50  260/400   40.0    2.17    50%      32    2    280
     4  -        -       decode    3s    9000       0    30/64   15.0    1.50     0%       0    0      0
     9  日本語   -       waiting   0s       0       0      5/0   10.0    1.00     0%       0    0      0
"""


def test_a_table_shows_what_happened_between_two_looks() -> None:
    assert "\n".join(table(LATER, FIRST)) + "\n" == SHOWN


def test_figures_of_a_first_look_are_since_the_beginning() -> None:
    found = figures(FIRST)
    assert (found["seconds"], found["tokens_per_s"], found["step_ms"]) == (10.0, 35.0, 30.0)
    assert paces(FIRST) == {3: 20.0, 4: 0.0}


def test_a_verifier_that_was_started_anew_is_a_new_one() -> None:
    assert figures(FIRST, LATER) == figures(FIRST)


def test_a_stream_number_that_came_again_is_another_session() -> None:
    young = {**FIRST, "sessions": [{**FIRST["sessions"][0], "age_us": 1_000_000, "committed": 7}]}
    assert paces(young, LATER) == {3: 7.0}
