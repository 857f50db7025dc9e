"""What the instruments show is what steps and sessions reported."""

from __future__ import annotations

from cloud_verifier.core.report import StepReport, Tally, Waits
from cloud_verifier.telemetry.instruments import Instruments, Wire

REPORT = StepReport(
    began_at=10.0,
    duration=0.03,
    queue_times=(0.0, 0.002),
    num_tips=2,
    num_drafts=5,
    num_prefilled=3,
    num_reads=100,
    num_committed=4,
    predicted=0.06,
    waits=Waits(first=[0.2], resumed=[0.3], later=[0.04, 0.05]),
)


def shown(instruments: Instruments) -> dict[str, tuple[int, float]]:
    """How many values each has, and their sum."""
    return {
        name: (sum(kept.counts), round(kept.total, 9))
        for name, kept in vars(instruments).items()
        if sum(kept.counts)
    }


def test_a_step_is_shown_as_it_was() -> None:
    instruments = Instruments()
    instruments.note_step(REPORT)
    assert shown(instruments) == {
        "step_time": (1, 0.03),
        "step_ratio": (1, 0.5),
        "step_rows": (1, 10),
        "step_tips": (1, 2),
        "step_tokens": (1, 7),
        "queue_time": (2, 0.002),
        "first_token": (1, 0.2),
        "resumed": (1, 0.3),
        "later_tokens": (2, 0.09),
    }


def test_the_times_of_a_session_add_up() -> None:
    tally = Tally(1.0, resumed=False, began_at=1.5, first_commit_at=3.0)
    instruments = Instruments()
    instruments.note_finished(tally, 30, 40, 10.0)
    parts = (instruments.first_queue_time, instruments.prefill_time, instruments.decode_time)
    assert [part.total for part in parts] == [0.5, 1.5, 7.0]
    assert instruments.whole_time.total == sum(part.total for part in parts)
    assert (instruments.prompt_tokens.total, instruments.text_tokens.total) == (30, 40)


def test_a_copy_of_all_does_not_change() -> None:
    instruments = Instruments()
    instruments.note_step(REPORT)
    copy = instruments.copy()
    instruments.note_step(REPORT)
    assert shown(copy)["step_time"] == (1, 0.03)
    assert set(vars(copy)) == set(vars(instruments))


def test_messages_and_bytes_are_counted_by_kind() -> None:
    wire = Wire()
    wire.add("Propose", 12)
    wire.add("Propose", 16)
    copy = wire.copy()
    wire.add("Close", 2)
    assert (copy.num_messages, copy.num_bytes) == ({"Propose": 2}, {"Propose": 28})
