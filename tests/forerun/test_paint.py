"""Laws of what reaches a terminal: a model's text is shown there, and never obeyed."""

from __future__ import annotations

from forerun.paint import harmless

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\x9b6n\x7f\x08\x00"


def test_what_a_terminal_obeys_is_shown_in_its_place() -> None:
    shown = harmless(HOSTILE)
    assert shown == "a␛]0;title␇␛[2Jb\ufffd6n␡␈␀"
    assert shown.isprintable()
    assert len(shown) == len(HOSTILE), "each stands for one, so places stay"


def test_text_that_means_no_harm_stays() -> None:
    text = "line\n\ttab\r\n€ 你 🧪 \u00a0 e\u0301"
    assert harmless(text) == text
