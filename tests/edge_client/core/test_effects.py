"""Law: an effect is a value. It compares by content and never changes on its way to the driver."""

from __future__ import annotations

import dataclasses

import pytest

from common.messages import Close, FinishReason
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reroot
from edge_client.core.effects import (
    ChangeMode,
    Connect,
    Emit,
    Expand,
    Finished,
    MoveTip,
    Preview,
    PreviewEnds,
    Probe,
    Send,
    StartDrafter,
    Withdraw,
)
from edge_client.core.policies import Mode, Standing

EFFECTS = (
    StartDrafter((1, 2), 1, SamplingParams()),
    Expand((DraftRow(1, None, 2, 1),)),
    MoveTip(Reroot(((2, 5),), ())),
    Connect(),
    Send(Close()),
    Emit(2, (5,), 0),
    Preview(3, (6,)),
    Withdraw(3, (6,)),
    PreviewEnds(3, FinishReason.STOP),
    Probe(1.0),
    ChangeMode(Standing(Mode.DEVICE_ONLY, "no server")),
    Finished(None),
)


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: type(effect).__name__)
def test_an_effect_never_changes(effect: Connect | Emit) -> None:
    assert effect == dataclasses.replace(effect)
    for field in dataclasses.fields(effect):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(effect, field.name, None)
