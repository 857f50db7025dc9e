"""Laws of the published schemes: the target's text in any world, the bound, and what makes each itself."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from common.errors import UserError
from common.messages import Commit, Opened
from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.sampling import SamplingParams
from common.suffix_index import GrowingIndex
from common.tree import Node, SpeculationTree
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import (
    GrowthPolicy,
    GrowthView,
    TokenCandidate,
    make_policy,
    offered,
    policy_named,
)
from edge_client.core.proposal_source import ProposalSource
from edge_client.core.session import EdgeSession
from schemes.policies.bild import BildPolicy
from schemes.policies.cacheback import CachebackPolicy, FollowerTable, NgramTrees, Tokens
from schemes.policies.delay_optimal import DelayOptimalPolicy
from schemes.policies.pacer import PacerPolicy
from schemes.policies.parked import ParkedPolicy
from schemes.policies.picospec import PicoSpecPolicy
from schemes.policies.rounds import MAX_BLOCK
from schemes.policies.saguaro import SaguaroPolicy, fan_outs
from simulator.drafts import BetaDraft, recorded_draft
from simulator.figures import SessionResult
from simulator.link_spec import LinkSpec, Outage
from simulator.recordings import RecordedText, Recording, RecordingHeader
from simulator.schemes import policy_maker
from simulator.system import simulate
from simulator.world import DeviceSpec, VerifierSpec, World
from tests.worlds.seeds import check_laws, spec_of
from tests.worlds.seeds import run as run_world

SHORT = World(tokens=60, link=LinkSpec(rtt=0.06))
PERFECT = replace(SHORT, draft=BetaDraft(mean=1.0), link=LinkSpec(rtt=0.1))


def run(world: World, make: Callable[[], GrowthPolicy]) -> SessionResult:
    return simulate(world, lambda _: make())[0]


def pace(result: SessionResult, first: int = 0) -> float:
    """Seconds per token after the first ones."""
    return (result.arrivals[-1] - result.arrivals[first]) / (len(result.arrivals) - 1 - first)


def view_at(rtt: float, acceptance: float) -> GrowthView:
    """Of a session that has measured both, with the default step times."""
    view = GrowthView(SpeculationTree([0]), last_position=100, credit=128)
    view.rtt.sample(rtt)
    view.acceptance.add(acceptance * 1e4, 1e4)
    return view


def delay_optimal_block(view: GrowthView) -> int:
    """The block that the policy prefers before any round."""
    policy = DelayOptimalPolicy(beta=0.0)
    return min(range(1, MAX_BLOCK + 1), key=lambda block: policy.index(view, block))


class WatchedPolicy(GrowthPolicy):
    """A policy that shows every answer before it is given."""

    def __init__(
        self, policy: GrowthPolicy, see: Callable[[str, GrowthView, Sequence[Node]], object]
    ) -> None:
        self.name, self.fill = policy.name, policy.fill
        self._policy, self._see = policy, see

    def sources(self, text: Sequence[int], shared: SharedTexts, recall: bool) -> Sequence[ProposalSource]:
        return self._policy.sources(text, shared, recall)

    def branch(
        self, view: GrowthView, node: Node, candidates: Sequence[TokenCandidate]
    ) -> Sequence[TokenCandidate]:
        return self._policy.branch(view, node, candidates)

    def expand(self, view: GrowthView) -> Sequence[Node]:
        nodes = self._policy.expand(view)
        self._see("expand", view, nodes)
        return nodes

    def send(self, view: GrowthView) -> Sequence[Node]:
        nodes = self._policy.send(view)
        self._see("send", view, nodes)
        return nodes


@pytest.mark.parametrize("scheme", [*offered(), "saguaro:backup=8"])
@pytest.mark.parametrize(
    "world",
    [
        replace(SHORT, link=LinkSpec(rtt=0.0)),
        replace(SHORT, link=LinkSpec(rtt=0.3, jitter=0.05, jitter_memory=0.5)),
        replace(SHORT, link=LinkSpec(rtt=0.05, loss=0.1, bandwidth_up=2000.0, bandwidth_down=4000.0)),
        replace(SHORT, link=LinkSpec(rtt=0.06, outages=(Outage(0.3, 0.4), Outage(1.0, 0.2)))),
        replace(SHORT, draft=BetaDraft(mean=0.0)),
        replace(SHORT, draft=BetaDraft(mean=1.0)),
        replace(SHORT, device=DeviceSpec(0.0, 0.0), verifier=VerifierSpec(1e-9, 0.0)),
        replace(SHORT, verifier=VerifierSpec(max_nodes_per_session=3), tokens=1),
        replace(SHORT, verifier=VerifierSpec(max_nodes_per_session=3, max_rows=5)),
    ],
    ids=["near", "jitter", "loss", "outages", "wrong", "right", "instant", "one_token", "few_rows"],
)
def test_the_text_is_the_targets_in_any_world(scheme: str, world: World) -> None:
    """`simulate` itself compares."""
    device = replace(world.device, recall="backup" in scheme)
    results = simulate(replace(world, clients=2, device=device), policy_maker(scheme))
    assert [len(result.tokens) for result in results] == [world.tokens] * 2


@pytest.mark.parametrize("scheme", [*offered(), "saguaro:backup=8"])
def test_a_policy_keeps_its_contract(scheme: str) -> None:
    """Parents first, within the credit, nothing twice."""

    def see(what: str, view: GrowthView, nodes: Sequence[Node]) -> None:
        ids = [node.id for node in nodes]
        assert len(set(ids)) == len(ids)
        if what == "expand":
            assert not any(node.evaluated or node.busy or node.parent in ids for node in nodes)
            return
        assert len(nodes) <= max(0, view.credit_left)
        for place, node in enumerate(nodes):
            parent = view.tree.live[node.parent or 0]
            assert parent is view.tree.tip or parent.wire_id or parent.id in ids[:place]

    run(replace(SHORT, tokens=120), lambda: WatchedPolicy(make_policy(scheme), see))


REFUSED = (
    "amusd:block=7 pearl:7 saguaro:budget=-1 saguaro:budget=2.5 saguaro:exponent=0 "
    "saguaro:exponent=1e308 saguaro:block=1000000000 saguaro:fan_out=3,budget=24 "
    "saguaro:backup=-1 cacheback:leader=0 pearl:chunk=-1 specedge:depth=0 "
    "specedge:depth=9,beam=1000 specedge:proactive=2 parked:fan_out=-1 parked:cut=1 "
    "sync_delay_optimal:beta=nan bild:fallback=1.1 bild:block=0 pacer:step=0 pacer:stop=1 "
    "pacer:bias=nan pacer:entropy=1"
)


@pytest.mark.parametrize("text", REFUSED.split())
def test_a_setting_that_a_scheme_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        make_policy(text)


def test_the_delay_optimal_block_grows_with_the_delay_and_ever_slower() -> None:
    blocks = [delay_optimal_block(view_at(rtt, 0.8)) for rtt in (0.0, 0.1, 0.2, 0.4, 0.8)]
    assert blocks == sorted(blocks)
    assert blocks[0] < blocks[1] < blocks[-1] < 3 * blocks[1] < MAX_BLOCK + 10


def test_bild_ends_a_block_before_the_first_token_below_the_fallback() -> None:
    seen: list[tuple[float, bool]] = []  # of each block: its least chance, and whether it may be longer

    def see(what: str, view: GrowthView, nodes: Sequence[Node]) -> None:
        if what == "send" and nodes:
            seen.append((min(node.logprob for node in nodes), len(nodes) < 16))

    result = run(replace(SHORT, tokens=300), lambda: WatchedPolicy(BildPolicy(0.6), see))
    assert all(least >= math.log(0.6) for least, _ in seen)
    assert any(is_short for _, is_short in seen)
    assert len(seen) < result.stats.target_steps, "where the first token is unsure the target writes alone"


def test_pacer_sends_at_the_end_of_a_block_when_its_tokens_are_doubtful() -> None:
    sizes: list[int] = []

    def see(what: str, view: GrowthView, nodes: Sequence[Node]) -> None:
        if what == "send" and nodes and view.last_position - view.tree.tip_position > 24:
            sizes.append(len(nodes))
            whole = sum(node.logprob for node in nodes)
            before = sum(node.logprob for node in nodes[:-3])
            assert whole < math.log(0.4) or len(nodes) == 24
            assert before >= math.log(0.4)

    run(replace(SHORT, tokens=300), lambda: WatchedPolicy(PacerPolicy(step=3, stop=0.4), see))
    assert {size % 3 for size in sizes} == {0}
    assert len(set(sizes)) > 2, "the length follows the draft"


def test_pacer_follows_its_scorer() -> None:
    never, always = (
        run(SHORT, lambda bias=bias: PacerPolicy(step=2, block=8, bias=bias, chance=0.0))  # type: ignore[misc]
        for bias in (-9.0, 9.0)
    )
    assert never.stats.target_steps > 1.3 * always.stats.target_steps
    assert never.stats.proposed / never.stats.proposes <= 2.0
    assert always.stats.proposed / always.stats.proposes > 6.0


def test_picospec_drafts_as_far_ahead_as_a_verdict_takes() -> None:
    policy, ahead = PicoSpecPolicy(), list[int]()

    def see(what: str, view: GrowthView, nodes: Sequence[Node]) -> None:
        if view.rtt.num_samples:
            ahead.append(view.tree.num_speculative)

    run(PERFECT, lambda: WatchedPolicy(policy, see))
    assert max(ahead) == pytest.approx((0.1 + 0.03) / 0.005, abs=1)
    assert policy.window(view_at(0.1, 0.8)) == 25  # 130 ms by 5.3 ms, the estimates at first


def test_the_fan_out_is_geometric_with_a_raised_end() -> None:
    fans = fan_outs(6, acceptance=0.64, budget=20.0, exponent=1.0)
    ratios = [after / before for before, after in pairwise(fans)]
    assert ratios[:5] == pytest.approx([0.8] * 5)
    assert ratios[5] == pytest.approx(0.8 / 0.6)
    assert sum(fans) == pytest.approx(20.0)


def test_saguaro_foresees_as_many_ends_as_a_verdict_leaves_time_for() -> None:
    view = view_at(0.03, 0.85)
    view.pace.rows.measured({1: 0.005, 11: 0.010, 64: 0.063})
    away = 0.03 + view.step_time.predict(6)
    assert 6 * view.pace.rows.predict(SaguaroPolicy().ends(view, 5)) == pytest.approx(away, rel=0.1)
    assert SaguaroPolicy(budget=12).ends(view, 5) == 12
    assert SaguaroPolicy(fan_out=3).ends(view, 7) == 24


def test_parked_branches_save_round_trips() -> None:
    world = World(tokens=300, draft=BetaDraft(mean=0.7), link=LinkSpec(rtt=0.2))
    with_branches, without = run(world, ParkedPolicy), run(world, lambda: ParkedPolicy(fan_out=0))
    assert with_branches.arrivals[-1] < 0.9 * without.arrivals[-1]


def circling(right: float) -> World:
    """A text that goes in circles of seven tokens, and a draft of 40 ms a token that is mostly `right`."""
    tokens = tuple(50 + place % 7 for place in range(200))
    best = [place % 100 < 100 * right for place in range(200)]
    candidates = tuple((token, 9) if is_best else (9, 8) for token, is_best in zip(tokens, best, strict=True))
    ranks = tuple(1 if is_best else None for is_best in best)
    text = RecordedText(10, tokens, candidates, ((2.0, 0.0),) * 200, ranks)
    draft = recorded_draft("circles", Recording(RecordingHeader("target", "draft", 0.0, 1), (text,)))
    return World(LinkSpec(rtt=0.06), DeviceSpec(0.04, recall=True), draft=draft, tokens=200, prompt_tokens=10)


def written(scheme: str, shared: SharedTexts, prompt: tuple[int, ...], *, recall: bool) -> EdgeSession:
    """A session without a draft model that has written 6 4 9 3 after its prompt."""
    config = SessionConfig(prompt, SamplingParams(max_tokens=9), b"print", recall=recall, has_drafter=False)
    session = EdgeSession(config, make_policy(scheme), shared)
    session.start(0.0)
    session.on_message(Opened(len(prompt) - 1, 64), 0.1)
    session.on_message(Commit(len(prompt), (6, 4, 9, 3)), 0.2)
    return session


@pytest.mark.parametrize("scheme", ["saguaro:backup=8", "cacheback"])
@pytest.mark.parametrize("recall", [False, True])
def test_only_a_session_that_recalls_remembers_its_text(scheme: str, recall: bool) -> None:
    shared = SharedTexts(GrowingIndex())
    session = written(scheme, shared, (5,), recall=recall)
    session.close(0.3)
    assert shared.written is not None
    assert (len(shared.written) == 4) is recall
    session.close(0.4)
    assert len(shared.written) == 4 * recall, "once"


@pytest.mark.parametrize("recall", [False, True])
def test_a_device_with_nothing_but_tables_proposes_from_earlier_texts_if_it_recalls(recall: bool) -> None:
    shared = SharedTexts(GrowingIndex())
    written("cacheback", shared, (5,), recall=True).close(0.3)
    config = SessionConfig((2, 5), SamplingParams(max_tokens=9), b"print", recall=recall, has_drafter=False)
    session = EdgeSession(config, make_policy("cacheback"), shared)
    session.start(0.0)
    tokens = [node.token for node in session.tree.speculative()]
    assert tokens == ([6, 4, 9, 3] if recall else [])


@pytest.mark.parametrize(
    ("scheme", "copies"), [("cacheback", True), ("saguaro:backup=8", True), ("saguaro", False)]
)
def test_a_session_tells_that_it_copies(scheme: str, copies: bool) -> None:
    assert written(scheme, SharedTexts(), (5,), recall=True).growth.has_texts is copies


def test_a_backup_copies_at_once_what_follows_a_verdict_that_was_not_foreseen() -> None:
    copied = list[tuple[int, ...]]()

    def see(what: str, view: GrowthView, nodes: Sequence[Node]) -> None:
        if what == "send" and nodes and not view.tree.tip.evaluated:
            assert view.now == view.news_at, "no draft step came between the verdict and the block"
            assert [node.position for node in nodes] == [
                nodes[0].position + place for place in range(len(nodes))
            ]
            copied.append(tuple(node.token for node in nodes))

    def helped(world: World, backup: int) -> SessionResult:
        return run(world, lambda: WatchedPolicy(SaguaroPolicy(block=4, fan_out=1, backup=backup), see))

    alone = helped(circling(0.3), 0)
    assert not copied
    result = helped(circling(0.3), 4)
    assert max(map(len, copied)) == 4
    assert all(
        later == earlier + 1 or later == earlier - 6 for line in copied for earlier, later in pairwise(line)
    )
    assert pace(result) < 0.7 * pace(alone)


def test_a_backup_drafts_anew_where_that_promises_more() -> None:
    policy, view = SaguaroPolicy(block=5, backup=8), view_at(0.06, 0.8)
    policy.expand(view)
    view.pace.rows.measured({1: 0.040})
    assert policy.gains_by_copying(view, 1.0)
    view.pace.rows.measured({1: 0.001})
    assert not policy.gains_by_copying(view, 1.0)
    assert policy.gains_by_copying(view, 4.0)


# The tables of Cacheback hold what was used last, and its trees what the tables hold.


LEADER, FOLLOWER = 2, 3


def expected(text: Sequence[int], most_leaders: int, most_followers: int) -> dict[Tokens, list[Tokens]]:
    """The table's content, told from all uses at once: a leader is there from its last return on, which is
    the first use after `most_leaders` others were used in between."""
    ends = range(LEADER, len(text) - FOLLOWER + 1)
    uses = [(tuple(text[at - LEADER : at]), tuple(text[at : at + FOLLOWER])) for at in ends]
    content = dict[Tokens, list[Tokens]]()
    for leader in {leader for leader, _ in uses}:
        places = [place for place, use in enumerate(uses) if use[0] == leader]
        ends_at = [*places[1:], len(uses)]
        others = [
            {use[0] for use in uses[place + 1 : end]} for place, end in zip(places, ends_at, strict=True)
        ]
        kept = list[Tokens]()
        for place, between in zip(places, others, strict=True):
            kept.append(uses[place][1])
            if len(between) >= most_leaders:
                kept.clear()
        content[leader] = list(dict.fromkeys(reversed(kept)))[:most_followers]
    return {leader: rows for leader, rows in content.items() if rows}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most_leaders", [3, 8, 1000])
@pytest.mark.parametrize("most_followers", [1, 2, 4])
def test_a_table_has_the_leaders_and_followers_that_were_used_last(
    seed: int, most_leaders: int, most_followers: int
) -> None:
    draw = random.Random(seed)
    text = [draw.randrange(4) for _ in range(150)]
    table = FollowerTable(LEADER, FOLLOWER, most_leaders, most_followers)
    for end in range(len(text)):  # as a text that grows
        table.read(text[max(0, end + 1 - LEADER - FOLLOWER) : end + 1])
    whole = FollowerTable(LEADER, FOLLOWER, most_leaders, most_followers)
    whole.read(text)
    content = expected(text, most_leaders, most_followers)
    for leader in ((one, two) for one in range(4) for two in range(4)):
        assert table.after(leader) == whole.after(leader) == content.get(leader, [])


def trees(text: Sequence[int], shared: SharedTexts = NO_TEXTS, **settings: int) -> NgramTrees:
    (source,) = CachebackPolicy(follower=2, **settings).sources(text, shared, recall=True)
    assert isinstance(source, NgramTrees)
    return source


def paths(tree: SpeculationTree) -> list[tuple[int, ...]]:
    """The tokens from below the tip to each node, in the order in which the nodes grew."""
    by_id = dict[int, tuple[int, ...]]({tree.tip.id: ()})
    for node in tree.speculative():
        by_id[node.id] = (*by_id[node.parent or 0], node.token)
    return list(by_id.values())[1:]


def test_a_tree_has_the_followers_of_the_text_and_then_those_of_their_ends() -> None:
    text = (1, 2, 3, 4, 5, 1, 6, 3, 1)
    tree = SpeculationTree(text)
    trees(text).grow(tree, 100, 100)
    assert paths(tree)[:4] == [(6,), (6, 3), (2,), (2, 3)]
    assert paths(tree)[4:6] == [(6, 3, 4), (6, 3, 4, 5)], "what followed the newer row's end"


def test_a_tree_is_bounded_by_its_nodes_and_by_the_texts_end() -> None:
    text = (1, 2, 3) * 5
    tree, short = SpeculationTree(text), SpeculationTree(text)
    trees(text, nodes=5).grow(tree, 100, 100)
    assert paths(tree) == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 1), (1, 2, 3, 1, 2)]
    trees(text).grow(short, len(text) + 2, 100)
    assert paths(short) == [(1,), (1, 2)], "the token before the last one tells it"


def test_earlier_texts_fill_the_frozen_table_which_the_text_leaves_as_it_is() -> None:
    earlier = GrowingIndex((1, 8, 9))
    earlier.separate()
    earlier.extend((7, 1, 5))
    source = trees((4, 4, 1), SharedTexts(earlier))
    assert source.followers((1,)) == [(8, 9)], "no row goes over the gap between two texts"
    for token in (2, 3, 1):
        source.learn(0, token)
    assert source.followers((1,)) == [(2, 3), (8, 9)], "the dynamic table comes first"


# The five laws hold in random worlds for the published growth policies.


@pytest.mark.parametrize("policy", offered())
def test_laws_hold_for_published_policies(policy: str) -> None:
    for seed in range(8):
        spec = spec_of(seed)
        edges = tuple(replace(edge, policy=policy_named(policy)) for edge in spec.edges)
        check_laws(run_world(replace(spec, edges=edges)))
