"""Serves prompts by the real scheduler or over the wire, so that texts can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloud_verifier.core.effects import Reply
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.torch_engine import TorchEngine
from common.messages import Commit, Open, Propose
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.core.effects import NOTHING_READ, DraftRow, Expansion, Reroot, SessionConfig
from edge_client.core.policies import GrowthPolicy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from tests.support.drafter_thread import DrafterThread

VOCAB = 97
TABLE: tuple[bytes | None, ...] = tuple(b"token %d" % token for token in range(VOCAB))
PRINT = Vocabulary(TABLE).fingerprint
GREEDY = SamplingParams(max_tokens=14, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.8, seed=5)
PROMPTS = [tuple(row) for row in np.random.default_rng(9).integers(VOCAB, size=(16, 23)).tolist()]

Texts = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Scenario:
    """Who is served, by which limits; with `drafts` every session gets right and wrong ones."""

    keys: Sequence[int]  # which prompts
    sampling: SamplingParams = GREEDY
    drafts: bool = False
    limits: SchedulerConfig = SchedulerConfig(prefix_cache=False)  # noqa: RUF009 - frozen


def serve(engine: TorchEngine, scenario: Scenario, known: Texts) -> Texts:
    """Run a scenario to its end by the real scheduler; the texts by prompt."""
    return serve_by(VerifyScheduler(engine.info, scenario.limits), engine, scenario, known)


def serve_by(scheduler: VerifyScheduler, engine: TorchEngine, scenario: Scenario, known: Texts) -> Texts:
    first = 1 + 100 * scheduler.counters.num_opened  # keys are used once
    for key in scenario.keys:
        scheduler.on_open(first + key, Open(PROMPTS[key], scenario.sampling, PRINT), float(key))
    texts: Texts = dict.fromkeys(scenario.keys, ())
    now = 100.0
    while not scheduler.idle:
        if scenario.drafts:
            for key in scheduler.sessions:
                drafts = drafts_for(texts[key - first], known[key - first])
                scheduler.on_propose(key, drafts, now)
        if scheduler.drafter is not None and (guesses := scheduler.next_guess(now)) is not None:
            now += 0.001
            scheduler.drafter.on_guessed(engine.guess(guesses), now)
        plan = scheduler.next_step(now)
        assert plan is not None, "nobody is served"
        now += 0.01
        scheduler.on_step_done(engine.evaluate(plan), now)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                texts[effect.session - first] += effect.message.tokens
    scheduler.check_integrity()
    return texts


def drafts_for(text: tuple[int, ...], known: tuple[int, ...]) -> Propose:
    """Below the tip: the right token and a wrong one, below the right one a wrong and a right one, ..."""
    anchor = len(PROMPTS[0]) + len(text) - 1
    ahead = known[len(text) : len(known) - 1]
    tokens, deltas = list[int](), list[int]()
    for depth, token in enumerate(ahead[:3]):
        tokens += [(token + 1) % VOCAB, token]
        deltas += [0, 0] if depth == 0 else [1, 2]
    return Propose(tuple(tokens), bytes(len(tokens)), tuple(deltas), anchor if tokens else None)


class Knows:
    """A drafter that knows the text and is wrong at every third position, or claims to be."""

    reading = NOTHING_READ

    def __init__(self, prompt: tuple[int, ...], text: tuple[int, ...]) -> None:
        self._all = prompt + text

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None: ...

    def reroot(self, change: Reroot) -> None: ...

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        return [self._expand(row) for row in rows]

    def _expand(self, row: DraftRow) -> Expansion:
        if row.position + 1 >= len(self._all):
            return Expansion(row.id, (), ())
        right = self._all[row.position + 1]
        pair = (right, (right + 1) % VOCAB)
        return Expansion(row.id, pair[::-1] if row.position % 3 == 0 else pair, (1.0, 0.5))


async def over_the_wire(
    address: str, key: int, policy: GrowthPolicy, known: tuple[int, ...]
) -> tuple[int, ...]:
    session = SessionConfig(PROMPTS[key], SAMPLED, PRINT, first_backoff=0.01, patience=None)
    with DrafterThread(Knows(PROMPTS[key], known)) as drafts:
        async with VerifierChannel(address) as channel:
            run = Generation(EdgeSession(session, policy), channel, drafts)
            async for _ in run:
                pass
    return run.session.text
