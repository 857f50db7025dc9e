"""Lookahead and Jacobi decoding: the window and its pool are the paper's, and no text changes."""

from collections.abc import Callable, Sequence

import pytest

from cloud_verifier.settings import TargetSection, VerifierConfig
from common.errors import UserError
from common.tree import SpeculationTree
from schemes.drafters.lookahead import Lookahead, Window, read_window
from tests.cloud_verifier.core.bench import Bench, ask

Target = Callable[[Sequence[int]], int]
"""The next token of a text."""

PROMPT = (3, 1, 4, 1, 5, 2, 6, 5)
ROOM = 200


def bigrams(text: Sequence[int]) -> int:
    """A target that often repeats itself: a token depends on the two before it."""
    return (5 * text[-1] + 3 * text[-2] + text[-1] * text[-2]) % 7


def by_place(text: Sequence[int]) -> int:
    """A target that does not read what it wrote."""
    return len(text) * len(text) % 11


def contextual(text: Sequence[int]) -> int:
    """A target of which each token depends on all before it."""
    return (sum(token * place for place, token in enumerate(text, 1)) + 7 * text[-1]) % 13


TARGETS = (bigrams, by_place, contextual)


def decode(source: Lookahead, target: Target, num_tokens: int) -> tuple[list[int], list[int]]:
    """Run steps of all rows, as a session does. Return the text and the tokens of each step."""
    tree, counts = SpeculationTree(PROMPT), list[int]()
    while sum(counts) < num_tokens:
        source.grow(tree, 10**6, ROOM)
        nodes = list(tree.live.values())
        paths = dict[int | None, list[int]]()
        for node in nodes:
            before = tree.committed if node is tree.tip else [*paths[node.parent], node.token]
            paths[node.id] = before
            node.choice = target(before)
        counts.append(0)
        while (token := tree.tip.choice) is not None:
            source.learn(tree.tip.id, token)
            tree.advance(token)
            counts[-1] += 1
        source.forget(tree, nodes)
        tree.check_integrity()
    return tree.committed, counts


def published(
    window: Window, target: Target, num_tokens: int
) -> tuple[list[int], list[int], set[tuple[int, ...]]]:
    """The same on plain lists: text, tokens of each step, and all n-grams that were ever made."""
    text, counts, made = list(PROMPT), list[int](), set[tuple[int, ...]]()
    width, length = window.num_columns, window.ngram
    levels = [(list(PROMPT[-width:]) * width)[:width]]
    pool = dict[int, list[tuple[int, ...]]]()
    while sum(counts) < num_tokens:
        levels[0][0] = text[-1]
        first = levels[0]
        columns = [[level[column] for level in levels[1:]] for column in range(width)]
        chosen = [target([*text, *first[1 : column + 1], *columns[column]]) for column in range(width)]
        paths = {(*first[1 : column + 1], *columns[column]) for column in range(width)}
        paths |= set(pool.get(text[-1], []))
        begins = {path[:end] for path in paths for end in range(1, len(path) + 1)}
        won = [target(text)]
        while tuple(won) in begins:
            won.append(target([*text, *won]))
        grams = [(first[column], *columns[column], chosen[column]) for column in range(width)]
        if is_full := len(levels) == length - 1:
            made.update(grams)
            for gram in grams if window.most else ():
                known = [each for each in pool.get(gram[0], []) if each != gram[1:]]
                pool[gram[0]] = [gram[1:], *known][: window.most]
        shift = len(won) - is_full
        levels = [
            [level[(place + shift) % width] for place in range(width)]
            for level in [*levels[is_full:], chosen]
        ]
        text += won
        counts.append(len(won))
    return text, counts, made


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@pytest.mark.parametrize(
    "window", [Window(5, 3, 5), Window(4, 4, 2), Window(3, 2, 1), Window(6, 2, 0)], ids=str
)
def test_window_and_pool_are_those_of_the_plain_algorithm(window: Window, target: Target) -> None:
    source = window.source(PROMPT)
    text, counts = decode(source, target, 80)
    expected, steps, made = published(window, target, 80)
    assert (text, counts) == (expected, steps)
    kept = {(first, *gram) for first, grams in source.pool.items() for gram in grams}
    assert kept <= made
    assert bool(kept) == bool(window.most)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_the_text_is_the_targets_own(target: Target) -> None:
    text = list(PROMPT)
    for _ in range(60):
        text.append(target(text))
    for window in (Window(9, 2, 0), Window(5, 3, 5)):
        written, _ = decode(window.source(PROMPT), target, 60)
        assert written[: len(text)] == text


def test_a_block_whose_tokens_do_not_depend_on_each_other_takes_two_steps() -> None:
    _, counts = decode(Window(9, 2, 0).source(PROMPT), by_place, 90)
    assert counts == [1, 9] * (len(counts) // 2), "eight guesses, and the choice after them"


def test_ngrams_win_steps_where_a_text_repeats_pairs() -> None:
    _, alone = decode(Window(5, 2, 0).source(PROMPT), bigrams, 120)
    _, pooled = decode(Window(5, 3, 5).source(PROMPT), bigrams, 120)
    assert len(pooled) < len(alone)


def test_no_more_nodes_are_grown_than_there_is_room_and_text_for() -> None:
    tree = SpeculationTree(PROMPT)
    Window(5, 3, 5).source(PROMPT).grow(tree, 10**6, 3)
    assert tree.num_speculative == 3
    tree = SpeculationTree(PROMPT)
    Window(5, 3, 5).source(PROMPT).grow(tree, tree.tip_position + 3, ROOM)
    assert {node.position for node in tree.speculative()} == {len(PROMPT), len(PROMPT) + 1}


def test_a_prompt_is_read_in_chunks() -> None:
    prompt = (*range(1, 10), *range(1, 10), 1, 2)
    bench = Bench(sources=(Window(5, 3, 5).source,), prefill_chunk=4)  # type: ignore[arg-type]  # no number
    bench.open(1, ask(prompt))
    session = bench.scheduler.sessions[1]
    while bench.scheduler.sessions:
        bench.step()
    assert session.tree.committed[:24] == [*prompt, 3, 4, 5, 6]


def test_the_window_keeps_its_place_over_steps_without_its_rows() -> None:
    """Four of its guesses were left out, as where rows are dear."""
    tree, source = SpeculationTree(PROMPT), Window(6, 2, 0).source(PROMPT)
    source.grow(tree, 10**6, ROOM)
    guesses = source.levels[0][1:]
    for token in (90, 91):  # of which the tree holds none
        source.learn(tree.tip.id, token)
        tree.advance(token)
    source.grow(tree, 10**6, ROOM)
    assert source.levels[0][:4] == [91, *guesses[2:]]


def counted(window: Window | None, row: float = 0.0) -> tuple[list[int], int, int]:
    """The text of an engine that counts, its steps, and their rows beside the tips. A step takes 30 ms, and
    `row` seconds more for each further row."""
    sources = (window.source,) if window else ()
    bench = Bench(sources=sources, max_nodes_per_session=64)  # type: ignore[arg-type]  # no number
    bench.open(1, ask((1, 2, 3)))
    bench.scheduler.cost.per_row = row
    session, num_rows, now = bench.scheduler.sessions[1], 0, 0.0
    while bench.scheduler.sessions:
        plan = bench.begin(now)
        further = len(session.rows.nodes[1:]) if session.rows else 0
        num_rows, now = num_rows + further, now + 0.03 + row * further
        bench.end(plan, now)
    return session.tree.committed, bench.scheduler.counters.num_steps, num_rows


def test_rows_are_used_while_they_are_idle_and_rest_where_they_cost_more_than_they_win() -> None:
    text, steps, rows = counted(None)
    idle, dear = counted(Window(5, 3, 5)), counted(Window(5, 3, 5), row=0.03)
    assert (idle[0], dear[0], rows) == (text, text, 0)
    assert idle[1] < steps
    assert dear[2] < idle[2] / 5


@pytest.mark.parametrize(
    ("source", "window"),
    [
        ("jacobi", Window(9, 2, 0)),
        ("jacobi:3", Window(4, 2, 0)),
        ("lookahead", Window(5, 3, 5)),
        ("lookahead:7,5,4", Window(7, 5, 4)),
    ],
)
def test_the_drafters_words_are_read(source: str, window: Window) -> None:
    assert read_window(source) == window
    for model in ("folder", "target.gguf"):
        config = VerifierConfig(target=TargetSection(model=model, drafter=source))
        assert config.target.engine_drafter is None
        assert config.scheduler.max_nodes_per_session > window.num_rows
        (make,) = config.scheduler.sources
        assert isinstance(make(PROMPT), Lookahead)


@pytest.mark.parametrize(
    "source", ["jacobi:0", "jacobi:a", "jacobi:1,2", "lookahead:5", "lookahead:1,3,5", "lookahead:90,9,9"]
)
def test_other_words_are_refused(source: str) -> None:
    with pytest.raises(UserError):
        read_window(source)


def test_a_drafter_beside_the_model_is_still_refused_for_a_gguf_target() -> None:
    with pytest.raises(UserError):
        TargetSection(model="target.gguf", drafter="exit:2")
