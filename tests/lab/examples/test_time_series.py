"""The example of a time series over the real stack."""

import pytest

from lab.examples.time_series import FORECAST, PROMPT, BinModel, alone, binned_series, forecast

pytestmark = pytest.mark.grpc


async def test_a_draft_saves_steps_and_changes_no_bin() -> None:
    tokens = binned_series()
    prompt = tokens[-PROMPT:].tolist()
    target, draft = BinModel.trained(tokens, 48), BinModel.trained(tokens, 3)
    session = await forecast(target, draft, prompt)
    assert session.text == alone(target, prompt) != alone(draft, prompt)
    assert session.stats.target_steps < FORECAST / 2
    assert session.stats.accepted > FORECAST / 2


async def test_a_perfect_draft_saves_a_block_a_step() -> None:
    tokens = binned_series(2)
    target = BinModel.trained(tokens, 48)
    session = await forecast(target, target, tokens[-PROMPT:].tolist())
    assert session.text == alone(target, tokens[-PROMPT:].tolist())
    assert session.stats.target_steps <= -(-FORECAST // 7) + 1
