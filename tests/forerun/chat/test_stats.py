"""Figures in words: what is not known is not said."""

from __future__ import annotations

from forerun.chat.stats import ms_per_token, stats_line, total_line

FIGURES = {
    "mode": "ahead",
    "tokens": 21,
    "accepted": 14,
    "proposed": 28,
    "target_steps": 10,
    "acceptance_length": 2.1,
    "elapsed_ms": 240.0,
    "first_token_ms": 40.0,
    "rtt_p50_ms": 43.2,
    "estimated_speedup": 1.94,
    "resumes": 1,
}


def test_an_answer_in_words() -> None:
    assert stats_line(FIGURES) == (
        "[21 tokens in 240 ms; 10.0 ms per token, the first after 40 ms; 2.10 tokens per target step; "
        "67 % of the text drafted here (14 of 28 guesses); RTT 43.2 ms; "
        "about 1.9 times the pace of streaming; the link was taken up again 1 time]"
    )


def test_what_is_not_known_is_not_said() -> None:
    told = {"tokens": 1, "elapsed_ms": 5.0, "first_token_ms": 5.0, "mode": "server-only", "waited_ms": 1500}
    expected = "[1 token in 5 ms; the first after 5 ms; 1.5 s in the daemon's queue before; server-only]"
    assert stats_line(told) == expected
    assert stats_line({}) == "[0 tokens in 0 ms; the first after 0 ms]"
    assert ms_per_token({"tokens": 1}) is None


def test_a_conversation_is_added_up() -> None:
    assert total_line([]) == "nothing was written yet"
    assert total_line([FIGURES, FIGURES]) == (
        "[42 tokens in 2 answers and 0.5 s; 11.4 ms each; 2.10 tokens per target step; "
        "67 % of the text drafted here (28 of 56 guesses)]"
    )
