"""The formula's engine writes the text that the formula foretells, whatever is proposed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.core.scheduler import VerifyScheduler
from common.messages import Open, Propose
from common.sampling import SamplingParams
from lab.bench.formula import FINGERPRINT, VOCAB_SIZE, FormulaEngine, formula_text
from tests.support.played import played

TOKENS = st.integers(0, VOCAB_SIZE - 1)


def written(
    prompts: Sequence[Sequence[int]], proposals: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """What a scheduler commits on the formula, each session with a chain proposed at its beginning."""
    engine = FormulaEngine(4096)
    scheduler = VerifyScheduler(engine.info)
    for key, (prompt, chain) in enumerate(zip(prompts, proposals, strict=True)):
        sampling = SamplingParams(max_tokens=count, ignore_eos=True)
        scheduler.on_open(key + 1, Open(tuple(prompt), sampling, FINGERPRINT), 0.0)
        if chain:
            message = Propose(tuple(chain), bytes(len(chain)), anchor=len(prompt) - 1)
            scheduler.on_propose(key + 1, message, 0.0)
    texts = played(scheduler, engine, step_time=0.0)
    return [texts[key + 1] for key in range(len(prompts))]


@settings(max_examples=25)  # each runs a scheduler
@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
    st.booleans(),
)
def test_every_session_writes_the_formulas_text(
    prompts: list[list[int]], drafted: list[int], right: bool
) -> None:
    texts = [list(formula_text(prompt, 8)) for prompt in prompts]
    chains = [
        [token if right else (token + 1) % VOCAB_SIZE for token in text[:many]]
        for text, many in zip(texts, drafted, strict=False)
    ]
    assert written(prompts, chains, 8) == texts
