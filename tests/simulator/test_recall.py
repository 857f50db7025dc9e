"""Drafts without a model in simulated worlds: worth much where texts repeat themselves, next to nothing lost
where they do not."""

from dataclasses import replace

import pytest

from common.prompt_lookup import SharedTexts
from common.suffix_index import GrowingIndex
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from simulator.drafts import BetaDraft, Draft, recorded_draft
from simulator.figures import SessionResult
from simulator.knowledge import VOCAB_SIZE
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader
from simulator.schemes import run_scheme
from simulator.system import SimulatedDevice, knowledge_of, simulate
from simulator.world import DeviceSpec, VerifierSpec, World


def circling(length: int = 120) -> Draft:
    """A recorded text that goes in circles of seven tokens, with a draft that is right every other time."""
    tokens = tuple(50 + place % 7 for place in range(length))
    candidates = tuple((token, 9) if place % 2 else (9, 8) for place, token in enumerate(tokens))
    scores = tuple((2.0, 0.0) for _ in tokens)
    ranks = tuple(1 if place % 2 else None for place in range(length))
    text = RecordedText(10, tokens, candidates, scores, ranks)
    return recorded_draft("circles", Recording(RecordingHeader("target", "draft", 0.0, 1), (text,)))


def run(draft: Draft, scheme: str, verifier: bool = False, device: bool = False) -> SessionResult:
    world = World(
        link=LinkSpec(rtt=0.06),
        device=DeviceSpec(recall=device),
        verifier=VerifierSpec(recall=verifier),
        draft=draft,
        tokens=120,
        prompt_tokens=10,
    )
    (result,) = run_scheme(scheme, world)
    return result


def test_a_device_writes_a_text_that_repeats_itself_in_fewer_steps() -> None:
    plain, helped = (run(circling(), "forerun", device=device) for device in (False, True))
    assert helped.stats.target_steps < 0.7 * plain.stats.target_steps
    assert helped.arrivals[-1] < 0.7 * plain.arrivals[-1]


@pytest.mark.parametrize("scheme", ["server_streaming", "forerun", "tree"])
@pytest.mark.slow
def test_off_the_mark_guesses_cost_less_than_a_fiftieth(scheme: str) -> None:
    """Tokens of some hundred kinds in no order: matches come, and foretell nothing."""
    taken = dict[bool, float]()
    for recall in (False, True):
        world = World(
            link=LinkSpec(rtt=0.06),
            device=DeviceSpec(recall=recall),
            verifier=VerifierSpec(recall=recall),
            draft=BetaDraft(0.8),
            tokens=1000,
        )
        results = [run_scheme(scheme, replace(world, seed=seed))[0] for seed in (1, 2)]
        taken[recall] = sum(result.arrivals[-1] for result in results)
    assert taken[True] < 1.02 * taken[False]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_device_that_copies_is_never_slower_where_nothing_repeats(seed: int) -> None:
    """The tokens are drawn, so two that stood side by side foretell nothing."""
    slow = DeviceSpec(draft_time=0.060, recall=True)
    verifier = VerifierSpec().with_product_limits()
    world = World(LinkSpec(rtt=0.060), slow, verifier, BetaDraft(0.65), tokens=400, seed=seed)
    (helped,), (alone,) = run_scheme("adaptive", world), run_scheme("off", world)
    assert helped.arrivals[-1] <= alone.arrivals[-1] + 0.001


@pytest.mark.parametrize("given", ["reference", "index"])
def test_a_file_that_is_rewritten_takes_few_target_steps(given: str) -> None:
    """Every fiftieth token differs, and the device knows the old text."""
    world = World(LinkSpec(rtt=0.06), DeviceSpec(recall=True), draft=BetaDraft(0.7), tokens=1000)
    knowledge = knowledge_of(world, 0)
    old = [knowledge.truth(position) for position in range(64, 1064)]
    old[::50] = [VOCAB_SIZE - 99] * len(old[::50])

    class Editor(SimulatedDevice):
        def _config(self) -> SessionConfig:
            return replace(super()._config(), references=(tuple(old),) if given == "reference" else ())

        def _shared(self) -> SharedTexts:
            return SharedTexts(files=(GrowingIndex(old),) if given == "index" else ())

    (result,) = simulate(world, lambda _: make_policy("adaptive"), Editor)
    assert result.stats.target_steps < 0.15 * world.tokens
