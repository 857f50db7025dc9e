"""The law of the text under every lossless rule, added up exactly, whatever the drafts and their timing.

The scheduler, the session, the rules and the drawing are the real ones; the vocabulary has three tokens. Each
scenario is run down every branch of chance, and what it leaves is compared with the target alone.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_verifier.core.limits import SchedulerConfig
from common.acceptance import TOTAL, AcceptanceRule
from common.chances import SeededChances
from tests.schemes.rules.honest import (
    PLAIN,
    HonestEdge,
    Scenario,
    Spec,
    next_draft,
    next_law,
    target_law,
    text_law,
    tiny_drafter,
)
from tests.worlds.enumeration import Branch, distance, law_of

EXACT = 1e-12
BIASED = 1e-3

REJECTION, BLOCK, SPECINFER = AcceptanceRule.REJECTION, AcceptanceRule.BLOCK, AcceptanceRule.SPECINFER
SPECTR, SPECTR_OT = AcceptanceRule.SPECTR, AcceptanceRule.SPECTR_OT
LOSSLESS = (REJECTION, BLOCK, SPECINFER, SPECTR, SPECTR_OT)

NARROW = SchedulerConfig(max_nodes_per_session=2)
RECALL = SchedulerConfig(recall=True)


def error_of(scenario: Scenario, spec: Spec) -> float:
    """The largest error of a text's chance; of 1 if the scenario loses or invents chance."""
    law = text_law(scenario, spec)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(law, target_law(spec))


def of(rule: AcceptanceRule, spec: Spec, **fields: object) -> Spec:
    return dataclasses.replace(spec, rule=rule, **fields)  # type: ignore[arg-type]  # fields vary by case


# The scenarios ----------------------------------------------------------------------------------------------


def a_chain(bench: HonestEdge) -> None:
    bench.send(bench.chain(2))
    bench.step()


def two_chains(bench: HonestEdge) -> None:
    """The second step finds what the first one left, or a new chain."""
    a_chain(bench)
    bench.hear()
    bench.send(bench.chain(2))
    bench.step()


def a_tree(bench: HonestEdge) -> None:
    """Two children below the tip, if there are two, and one below each of them."""
    children = bench.grow(bench.tree.tip, 2)
    bench.send([*children, *(below for child in children for below in bench.grow(child))])
    bench.step()


def a_broom(bench: HonestEdge) -> None:
    """One child below the tip, and two below that."""
    (child,) = bench.grow(bench.tree.tip)
    bench.send([child, *bench.grow(child, 2)])
    bench.step()


def siblings_come_during_the_step(bench: HonestEdge) -> None:
    """What comes while a step runs is met by equality, and so is what hangs below it."""
    bench.send(bench.grow(bench.tree.tip))
    (late,) = bench.grow(bench.tree.tip)
    bench.step(meanwhile=lambda: bench.send([late, *bench.grow(late)]))
    bench.step()


def a_chain_goes_on_during_the_step(bench: HonestEdge) -> None:
    nodes = bench.chain(1)
    bench.send(nodes)
    bench.step(meanwhile=lambda: bench.send(bench.chain(2)))
    bench.step()


def a_chain_comes_after_its_text(bench: HonestEdge) -> None:
    """The verifier goes on alone; what comes then is folded as far as it agrees."""
    nodes = bench.chain(2)
    bench.step()
    bench.send(nodes)
    bench.step()


def the_edge_hears_late(bench: HonestEdge) -> None:
    """It grows below nodes that are committed or dead by now."""
    nodes = bench.chain(1)
    bench.send(nodes)
    bench.step()
    bench.send(bench.chain(2))
    bench.step()


def a_step_fails(bench: HonestEdge) -> None:
    """And is tried again with more children than before."""
    bench.send(bench.grow(bench.tree.tip))
    bench.step(fails=True)
    bench.send(bench.grow(bench.tree.tip))
    bench.step()


def a_commit_is_lost(bench: HonestEdge) -> None:
    """The stream breaks after the verifier decided; the next one decides anew, of fewer drafts."""
    children = bench.grow(bench.tree.tip, 2)
    bench.send(children)
    bench.lost = 1
    bench.step()
    bench.connect()
    bench.send(children[:1])
    bench.step()


def the_stream_changes(bench: HonestEdge) -> None:
    """What is live is sent again."""
    nodes = bench.chain(2)
    bench.send(nodes[:1])
    bench.step()
    bench.hear()
    bench.connect()
    bench.send(bench.unsent())
    bench.step()


def without_fill(bench: HonestEdge) -> None:
    """Two round trips of the classic scheme, an empty one between them."""
    a_chain(bench)
    bench.hear()
    bench.nudge()
    bench.step()
    bench.hear()
    a_chain(bench)


def beside_guesses(bench: HonestEdge) -> None:
    """The verifier guesses what the prompt repeats, and finds some of it among the drafts."""
    children = bench.grow(bench.tree.tip, 2)
    bench.send([*children, *bench.grow(children[0])])
    bench.step()
    bench.hear()
    bench.send(bench.chain(1))
    bench.step()


def beside_own_drafts(bench: HonestEdge) -> None:
    """The verifier's own drafter guesses after the first step; then the edge sends drafts of its own."""
    bench.send(bench.grow(bench.tree.tip))
    bench.step()
    bench.hear()
    bench.send(bench.chain(1))
    bench.step()


SCENARIOS: dict[str, tuple[Scenario, Spec]] = {
    "a chain": (a_chain, Spec()),
    "two chains": (two_chains, Spec()),
    "a tree": (a_tree, Spec()),
    "a broom": (a_broom, Spec()),
    "a tree whose likely nodes alone are evaluated": (a_tree, of(REJECTION, Spec(), config=NARROW)),
    "siblings come during the step": (siblings_come_during_the_step, Spec()),
    "a chain goes on during the step": (a_chain_goes_on_during_the_step, Spec()),
    "a chain comes after its text": (a_chain_comes_after_its_text, Spec()),
    "the edge hears late": (the_edge_hears_late, Spec()),
    "a step fails": (a_step_fails, Spec()),
    "a commit is lost": (a_commit_is_lost, Spec()),
    "the stream changes": (the_stream_changes, Spec()),
    "without fill": (without_fill, of(REJECTION, Spec(), fill=False)),
    "beside guesses": (beside_guesses, of(REJECTION, Spec(), config=RECALL)),
    "beside own drafts": (beside_own_drafts, of(REJECTION, Spec(), own_drafter=tiny_drafter(5))),
    "beside own drafts that are the target's": (
        beside_own_drafts,
        of(REJECTION, Spec(), own_drafter=tiny_drafter(1)),
    ),
}


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.title)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_law_of_the_text_is_the_targets(name: str, rule: AcceptanceRule) -> None:
    scenario, spec = SCENARIOS[name]
    assert error_of(scenario, of(rule, spec)) < EXACT


def more_than_fits(bench: HonestEdge) -> None:
    """Three drafts of one node, where the verifier has room for two nodes."""
    (session,) = bench.scheduler.sessions.values()
    session.arrivals._max_live = 2
    bench.send(bench.grow(bench.tree.tip, 3))
    bench.step()


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.title)
def test_repeats_make_no_room_for_other_drafts(rule: AcceptanceRule) -> None:
    assert error_of(more_than_fits, of(rule, Spec())) < EXACT


def test_guesses_stand_beside_the_drafts() -> None:
    bench = HonestEdge(of(REJECTION, Spec(), config=RECALL), SeededChances(3))
    beside_guesses(bench)
    assert bench.num_rows > 5, "two tips, four drafts at most, and guesses"


def test_own_drafts_stand_beside_the_drafts() -> None:
    bench = HonestEdge(of(REJECTION, Spec(), own_drafter=tiny_drafter(5)), SeededChances(1))
    beside_own_drafts(bench)
    assert bench.num_guessed == 1
    assert bench.num_rows > 4, "two tips, two drafts at most, and guesses"


KINDS: dict[str, dict[str, object]] = {
    "the target has few tokens": {"sampling": dataclasses.replace(PLAIN, top_k=2)},
    "the draft has one token": {"kept": 1},
    "the draft has two tokens": {"kept": 2},
    "draft and target are one": {"draft_salt": 1},
    "the text may end": {"sampling": dataclasses.replace(PLAIN, stop_token_ids=(0,))},
    "penalties": {"sampling": dataclasses.replace(PLAIN, repetition_penalty=1.4, presence_penalty=0.5)},
    "other models": {"salt": 2, "draft_salt": 97},
    "cold": {"sampling": dataclasses.replace(PLAIN, temperature=0.3), "salt": 2},
    "hot": {"sampling": dataclasses.replace(PLAIN, temperature=3.0, min_p=0.1), "salt": 3, "draft_salt": 4},
}


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.title)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_is_the_targets_for_models_of_every_kind(kind: str, rule: AcceptanceRule) -> None:
    scenario = two_chains if rule in (REJECTION, BLOCK) else a_tree
    assert error_of(scenario, of(rule, Spec(), **KINDS[kind])) < EXACT


# The theory of rejections (Yin et al. 2024, arXiv 2411.00841) -----------------------------------------------


def mean_rejections(spec: Spec, batch: int = 1) -> float:
    """Rejections in a whole text of which every token is drafted, on average over all chances. A round
    drafts `batch` chains to the text's end, which differ in their first tokens."""

    def program(branch: Branch) -> int:
        bench, length = HonestEdge(spec, branch), spec.sampling.max_tokens
        while len(bench.text) < length:
            nodes = bench.grow(bench.tree.tip, batch)
            for node in nodes:  # longer by what is grown below the last
                nodes += bench.grow(node)
            bench.send(nodes)
            bench.step()
            bench.hear()
        return bench.num_server_made

    return sum(chance * count for count, chance in law_of(program).items())


Shares = NDArray[np.float64]  # [VOCAB]


def without_repeats(draft: Shares, drawn: int) -> Shares:
    """The law of the next sibling: one that was not drawn before."""
    rest = draft.copy()
    rest[drawn] = 0.0
    return rest / max(float(rest.sum()), EXACT)


def independent(draft: Shares, drawn: int) -> Shares:
    """The law of the next sibling: the same."""
    return draft


def all_refused(
    target: Shares, draft: Shares, batch: int, after: Callable[[Shares, int], Shares] = without_repeats
) -> Shares:
    """The chances [VOCAB] that all of `batch` siblings are refused and the target then writes each token."""
    left = np.maximum(target - draft, 0.0)  # what the first leaves, where it is refused
    refused = float(left.sum())
    if batch == 1 or refused < EXACT:
        return left
    total = np.zeros_like(left)
    for drawn, share in enumerate(np.maximum(draft - target, 0.0).tolist()):  # refused, with this chance
        if share > 0.0:
            total += share * all_refused(left / refused, after(draft, drawn), batch - 1, after)
    return total


def laws_at(spec: Spec, text: tuple[int, ...]) -> tuple[Shares, Shares]:
    """The target's and the draft's law [VOCAB] after a text."""
    target, draft = next_law(spec.salt, spec.sampling, text), next_draft(spec.draft_salt, spec.kept, text)
    shares = np.zeros_like(target)
    shares[list(draft.tokens)] = np.array(draft.counts) / TOTAL
    return target, shares


def expected_rejections(
    spec: Spec, batch: int, after: Callable[[Shares, int], Shares] = without_repeats
) -> tuple[float, float]:
    """The two sums of the theorem: of the laws' distances, and of what a batch improves."""
    begun: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 1.0)}  # p(x) and f(x) of the theorem
    distances = improvement = 0.0
    for _ in range(spec.sampling.max_tokens):
        longer = dict[tuple[int, ...], tuple[float, float]]()
        for text, (chance, fresh) in begun.items():
            target, draft = laws_at(spec, text)
            alone = np.maximum(target - draft, 0.0)
            together = all_refused(target, draft, batch, after)
            distances += chance * float(alone.sum())
            improvement += fresh * float(alone.sum() - together.sum())
            refused = fresh * together + (chance - fresh) * alone
            longer |= {
                (*text, token): (chance * float(target[token]), float(refused[token]))
                for token in np.flatnonzero(target).tolist()
            }
        begun = longer
    return distances, improvement


@pytest.mark.parametrize("kind", ["plain", "the draft has two tokens", "the target has few tokens"])
def test_a_text_has_as_many_rejections_as_the_laws_differ(kind: str) -> None:
    """Theorem 1: E[rejections] is the sum over n of E[TV(p_n, q_n)], over the texts of p."""
    spec = of(REJECTION, Spec(), **KINDS.get(kind, {}))
    expected, _ = expected_rejections(spec, 1)
    assert mean_rejections(spec) == pytest.approx(expected, abs=EXACT)
    assert mean_rejections(of(BLOCK, spec)) <= expected + EXACT, "a block is more than its tokens"


SHORT = dataclasses.replace(PLAIN, max_tokens=2)
BATCHES: dict[str, tuple[int, dict[str, object]]] = {
    "two of two tokens": (2, {"kept": 2}),
    "two of three tokens": (2, {"sampling": SHORT}),
    "three of three tokens": (3, {"sampling": SHORT}),
    "two of another draft": (2, {"sampling": SHORT, "salt": 2, "draft_salt": 97}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_saves_rejections_where_a_draft_begins_and_nowhere_else(name: str) -> None:
    """The theorem of batches. M chains are drafted at once. The first tokens are judged one after the other,
    p^1 = p, p^(m+1) = norm([p^m - q]+), and an accepted one's chain goes on alone. With f(x), the chance that
    the text begins with x and that x ends with a rejection (or is empty),

        E[rejections] = sum_n E_p[TV(p, q)] - sum_n sum_x f(x) (TV(p, q) - prod_m TV(p^m, q))

    The paper's first tokens are independent. Ours differ, so the product becomes its mean over the draws of
    q without those before. No number of chains improves more than f lets it: sum_n sum_x f(x) TV(p, q).
    """
    batch, kind = BATCHES[name]
    spec = of(SPECINFER, Spec(), **kind)
    distances, improvement = expected_rejections(spec, batch)
    _, of_independent = expected_rejections(spec, batch, independent)
    mean = mean_rejections(spec, batch)
    assert mean == pytest.approx(distances - improvement, abs=EXACT)
    assert distances - improvement < distances - of_independent < distances
    assert mean > BIASED, "the chains' later tokens are still rejected"


# Why the conditions of lab/docs/rules.md are conditions ---------------------------------------------------


def left_out_by_value(bench: HonestEdge) -> None:
    """An edge that keeps back what it does not like."""
    bench.send([node for node in bench.chain(1) if node.token != 0])
    bench.step()


def test_an_edge_that_picks_winners_changes_the_law() -> None:
    for rule in LOSSLESS:
        assert error_of(left_out_by_value, of(rule, Spec())) > BIASED


def left_out_and_not_told(bench: HonestEdge) -> None:
    """The same, of nodes that come without a distribution."""
    bench.send([node for node in bench.chain(2) if node.token != 0 or node.children], told=False)
    bench.step()


def test_what_comes_without_a_distribution_may_be_picked_in_any_way() -> None:
    for rule in LOSSLESS:
        assert error_of(left_out_and_not_told, of(rule, Spec())) < EXACT
