"""Law: an effect is a value. A stream ends well unless an error is named."""

from __future__ import annotations

import dataclasses

import pytest

from cloud_verifier.core.effects import End, Reply
from common.messages import Drain


def test_an_end_is_good_unless_an_error_is_named() -> None:
    assert End(1).error is None


@pytest.mark.parametrize("effect", [Reply(1, Drain()), End(1)])
def test_an_effect_never_changes(effect: Reply | End) -> None:
    assert effect == dataclasses.replace(effect)
    with pytest.raises(dataclasses.FrozenInstanceError):
        effect.session = 2  # type: ignore[misc]  # that it is frozen is what is tested
