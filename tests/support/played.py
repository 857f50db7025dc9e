"""Plays the steps of a scheduler on an engine, without a service."""

from collections import defaultdict

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.engine_protocol import TargetEngine
from cloud_verifier.core.scheduler import VerifyScheduler
from common.messages import Commit


def played(
    scheduler: VerifyScheduler, engine: TargetEngine, step_time: float = 0.01, guess_time: float = 0.0
) -> dict[int, list[int]]:
    """Run all guesses and steps that the open sessions need, from time 0. Return the committed tokens by
    session."""
    texts, now = defaultdict[int, list[int]](list), 0.0
    while True:
        if (guesses := scheduler.next_guess(now)) is not None:
            now += guess_time
            assert scheduler.drafter is not None
            scheduler.drafter.on_guessed(engine.guess(guesses), now)
        if (plan := scheduler.next_step(now)) is None:
            return texts
        now += step_time
        scheduler.on_step_done(engine.evaluate(plan), now)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                texts[effect.session] += effect.message.tokens
