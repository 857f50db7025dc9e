"""Laws of relief: a step that did not fit is tried smaller, and what fits grows again."""

from __future__ import annotations

from cloud_verifier.core.relief import Relief


def test_steps_are_halved_until_they_fit_and_grow_again() -> None:
    relief = Relief(300)
    assert (relief.left(500, 0), relief.left(200, 150), relief.active) == (300, 150, False)
    assert relief.on_failure(120)
    assert (relief.left(64, 0), relief.left(64, 50), relief.left(64, 70)) == (60, 10, 0)
    assert relief.on_failure(50)
    assert relief.left(64, 0) == 25
    for _ in range(126):
        relief.on_success()
    assert (relief.left(500, 0), relief.active) == (300, False)


def test_a_single_row_that_does_not_fit_never_will() -> None:
    relief = Relief(300)
    assert not relief.on_failure(1)
    assert relief.left(64, 0) == 1
