"""The device without a server: its own text, which is not the target's."""

from __future__ import annotations

from edge_client.core.stats import SessionStats
from simulator.draws import Draws
from simulator.knowledge import BEST
from simulator.results import SessionResult
from simulator.system import target_text
from simulator.world import World


def draft_alone(world: World) -> list[SessionResult]:
    """Every session's text, by the draft alone: its best token at each place, one draft step a token."""
    return [_write(world.own(session), key) for key, session in enumerate(world.sessions())]


def _write(world: World, key: int) -> SessionResult:
    knowledge = world.draft.session(Draws(world.seed, key), world.session_place(key), world.prompt_tokens)
    step, prompt = world.device.draft_step_time(1), world.device.prompt_time
    stats = SessionStats(
        committed=world.tokens,
        accepted=world.tokens,
        draft_steps=world.tokens,
        drafted=world.tokens,
        draft_time=prompt + step * world.tokens,
    )
    arrivals = tuple(prompt + step * count for count in range(1, world.tokens + 1))
    return SessionResult((BEST,) * world.tokens, target_text(knowledge, world), arrivals, stats, 0, 0)
