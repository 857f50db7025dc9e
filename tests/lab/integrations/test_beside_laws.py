"""Laws of sessions that are requests of another engine: no draft, verdict or lost message changes a text."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.engine_protocol import TargetInfo
from common.acceptance import AcceptanceRule
from common.errors import UserError
from common.messages import Commit, Finish, FinishReason, Open, Opened, Propose
from common.sampling import SamplingParams
from common.tree import SpeculationTree
from forerun_beside.drafts import DraftTree, key_in, name_of
from forerun_beside.mailbox import Mailbox, Sender, path_of
from forerun_beside.scheduler import RequestScheduler
from forerun_beside.serve import limits_of
from tests import wording
from tests.lab.integrations.engine import Engine, wait_for
from tests.worlds.models import VOCAB, target_alone

PROMPT = (1, 2, 3)
EOS = (0,)
INFO = TargetInfo("tiny", VOCAB, 64, 512, EOS, b"tiny")
KEY = "0123456789abcdef"
TOKENS = st.integers(0, VOCAB - 1)
TREES = st.lists(
    st.tuples(st.integers(0, 30), TOKENS, st.sampled_from([0.0, -0.25, -1.0, -3.0])), max_size=14
)


def serves_all(request: Open) -> None:
    """Of an engine that serves every session."""


def made(request: Open) -> RequestScheduler:
    scheduler = RequestScheduler(INFO, limits_of(8, (AcceptanceRule.COUPLED,)), serves_all)
    scheduler.on_connect(1, 0.0)
    scheduler.on_open(1, request, 0.0)
    return scheduler


def tree_of(grown: list[tuple[int, int, float]]) -> SpeculationTree:
    tree = SpeculationTree(PROMPT)
    for place, token, logprob in grown:
        nodes = list(tree.live.values())
        tree.grow(nodes[place % len(nodes)], token, logprob)
    return tree


def paths(drafts: DraftTree) -> dict[tuple[int, ...], float]:
    """Each node's path of tokens, with its own chance."""
    found = list[tuple[int, ...]]()
    for token, parent in zip(drafts.tokens, drafts.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert len(set(found)) == len(found)
    return dict(zip(found, drafts.chances, strict=True))


@given(st.data())
def test_the_text_is_the_engines_whatever_is_proposed_and_however_it_comes(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 20))
    text = data.draw(st.lists(TOKENS, min_size=most, max_size=most))
    begun = data.draw(st.integers(0, most - 1))
    ends_at = next((at for at, token in enumerate(text) if token in EOS), most - 1)
    begun = min(begun, ends_at)
    sampling = SamplingParams(max_tokens=most, temperature=data.draw(st.sampled_from([0.0, 1.0])))
    scheduler = made(Open(PROMPT, sampling, b"tiny", committed=tuple(text[:begun])))
    written, finish, at = list(text[:begun]), None, begun
    now, live = 0.0, 0
    while finish is None:
        session = scheduler.sessions[1]
        if data.draw(st.booleans()):
            room = session.max_length - 1 - session.tree.tip_position
            guess = data.draw(st.lists(TOKENS, max_size=min(4, room)))
            if data.draw(st.booleans()):
                guess = [*text[at : at + len(guess)]]
            anchor = session.tree.tip_position
            scheduler.on_propose(1, Propose(tuple(guess), bytes(len(guess)), anchor=anchor), now)
        count = data.draw(st.integers(1, 5))
        now += 0.01
        scheduler.on_tokens(1, text[at : at + count], now)
        at += count
        for effect in scheduler.effects():
            match effect:
                case Reply(message=Commit() as commit):
                    assert commit.start == len(PROMPT) + len(written)
                    written += commit.tokens
                case Reply(message=Finish() as message):
                    finish = message
                case Reply(message=Opened()):
                    live += 1
                case End(error=error):
                    assert error is None
        scheduler.check_integrity()
    assert written == text[: ends_at + 1]
    assert finish.position == len(PROMPT) + ends_at
    assert finish.reason is (FinishReason.STOP if text[ends_at] in EOS else FinishReason.LENGTH)
    assert live == 1
    assert scheduler.idle
    assert scheduler.memory.num_reserved == 0


def test_a_commit_says_whose_token_each_was_and_how_long_it_took() -> None:
    scheduler = made(Open(PROMPT, SamplingParams(max_tokens=9), b"tiny"))
    scheduler.on_propose(1, Propose((4, 5), bytes(2), anchor=2), 0.1)
    scheduler.effects()
    scheduler.on_tokens(1, (4, 6, 5), 0.5)
    scheduler.on_tokens(1, (4,), 0.75)
    first, second = [each.message for each in scheduler.effects() if isinstance(each, Reply)]
    assert isinstance(first, Commit)
    assert isinstance(second, Commit)
    assert (first.tokens, first.server_made, first.guessed) == ((4, 6, 5), 0b110, 0b010)
    assert (first.echo, first.hold_us, first.compute_us, first.evaluated) == (1, 400_000, 500_000, 3)
    assert (second.compute_us, second.queue_us, second.echo) == (250_000, 0, 0)


@given(TREES, st.lists(TOKENS, max_size=4))
def test_what_is_left_after_a_text_is_what_the_tree_itself_would_keep(
    grown: list[tuple[int, int, float]], text: list[int]
) -> None:
    tree = tree_of(grown)
    drafts = DraftTree.of(tree).after(text)
    for token in text:
        tree.advance(token)
    assert drafts.position == tree.tip_position
    assert paths(drafts) == paths(DraftTree.of(tree))


@given(TREES)
def test_a_message_brings_the_same_drafts(grown: list[tuple[int, int, float]]) -> None:
    drafts = DraftTree.of(tree_of(grown))
    assert not drafts.tokens or DraftTree.decode(drafts.encode()) == drafts


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"3",
        b"[]",
        b"[2, [1], [-1]]",
        b"[2, [1], [0], [0]]",
        b"[2, [1], [-2], [0]]",
        b"[2, [1, 2], [-1, 0], [0]]",
        b"[2, [-1], [-1], [0]]",
        b"[2, [1.5], [-1], [0]]",
        b"[2, [1], [-1], [NaN]]",
        b'[2, [1], [-1], ["a"]]',
        b'["p", [1], [-1], [0]]',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        DraftTree.decode(data)


@pytest.mark.torch
def test_an_engines_process_loads_neither_the_service_nor_a_client() -> None:
    """Its environment has other releases of many packages."""
    code = (
        "import sys, forerun_beside.mailbox, forerun_sglang.rows\n"
        "print({'grpc', 'google', 'httpx', 'transformers', 'prometheus_client'} & set(sys.modules))"
    )
    path = os.pathsep.join(["integrations", *filter(None, sys.path)])
    run = [sys.executable, "-c", code]
    found = subprocess.run(
        run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"


@given(TREES, st.integers(1, 8))
def test_the_rows_are_the_best_nodes_and_each_sees_its_ancestors(
    grown: list[tuple[int, int, float]], count: int
) -> None:
    drafts = DraftTree.of(tree_of(grown))
    tokens, mask = drafts.rows(9, count)
    whole = paths(drafts)
    assert mask[:, 0].all()
    assert mask.diagonal().all()
    assert not np.triu(mask, 1).any()
    rows = [tuple(tokens[np.flatnonzero(above)].tolist()) for above in mask]
    assert rows[0] == (9,)
    kept = [row[1:] for row in rows[1 : 1 + min(count - 1, len(whole))]]
    assert set(kept) <= set(whole)
    assert rows[1 + len(kept) :] == [(9, 9)] * (count - 1 - len(kept))

    def reach(path: tuple[int, ...]) -> float:
        return sum(whole[path[: length + 1]] for length in range(len(path)))

    left = [reach(path) for path in whole if path not in kept]
    assert not left or not kept or min(map(reach, kept)) >= max(left)


@given(st.data(), st.booleans())
def test_an_engine_writes_the_same_text_with_any_drafts_however_late(
    data: st.DataObject, chains: bool
) -> None:
    alone = [*PROMPT, *target_alone(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True), EOS)]
    mailbox = Mailbox(None)
    engine, text = Engine(mailbox, chains=chains), list(PROMPT)
    while len(text) < len(alone):
        if data.draw(st.booleans()):
            tree = SpeculationTree(text[: data.draw(st.integers(1, len(text)))])
            here = tree.tip
            for token in alone[tree.tip_position + 1 :][: data.draw(st.integers(0, 6))]:
                here = tree.grow(here, token, -0.1)
            for place, token, logprob in data.draw(TREES):
                nodes = list(tree.live.values())
                tree.grow(nodes[place % len(nodes)], token, logprob)
            mailbox.keep([KEY.encode() + DraftTree.of(tree).encode()])
        text += engine.step(name_of(KEY), text, {})
    assert text[: len(alone)] == alone


def test_the_newest_drafts_of_each_session_count(tmp_path: Path) -> None:
    path = str(tmp_path / "drafts.sock")
    mailbox, sender = Mailbox(path), Sender(path)
    sender.send(KEY, DraftTree(2, (5,), (-1,), (0.0,)))
    sender.send(KEY, DraftTree(2, (4, 5), (-1, 0), (0.0, 0.0)))
    wait_for(mailbox, 2)
    mailbox.keep(mailbox.take())
    assert mailbox.drafts(KEY, 0, [1, 2, 3, 4]) == DraftTree(3, (5,), (-1,), (0.0,))
    assert mailbox.drafts(KEY, 0, [1, 2, 3, 5]) is None
    assert mailbox.drafts(KEY, 0, [1, 2]) is None
    assert mailbox.drafts(KEY, 4, [7, 7]) is None
    assert mailbox.drafts("f" * 16, 0, [1, 2, 3]) is None
    mailbox.keep([KEY.encode() + b"no drafts", b"no message"])
    assert mailbox.drafts(KEY, 0, [1, 2, 3]) is None
    sender.send(KEY, DraftTree(2, (5,), (-1,), (0.0,)))
    sender.send(KEY, DraftTree(0))
    wait_for(mailbox, 2)
    mailbox.keep(mailbox.take())
    assert mailbox.drafts(KEY, 0, [1, 2, 3]) is None
    sender.close()
    mailbox.close()


def test_no_message_is_dropped_while_an_engine_takes_none(tmp_path: Path) -> None:
    """The kernel itself queues ten or a few hundred."""
    path = str(tmp_path / "drafts.sock")
    mailbox, sender = Mailbox(path), Sender(path)
    for at in range(1000):
        sender.send(f"{at:016x}", DraftTree(2, (5,), (-1,), (0.0,)))
        wait_for(mailbox, at + 1)
    assert sender.num_dropped == 0
    sender.close()
    mailbox.close()


def test_a_mailbox_takes_the_place_of_one_whose_process_has_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "drafts.sock")
    Mailbox(path).close()
    Mailbox(path).close()
    assert (tmp_path / "drafts.sock").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").write_text("kept")
    for wrong in (tmp_path / "none" / "drafts.sock", tmp_path / "file"):
        with wording.raises(UserError):
            Mailbox(str(wrong))
    assert (tmp_path / "file").read_text() == "kept"
    with wording.raises(UserError):
        path_of({})


@pytest.mark.parametrize("around", ["{}", "generate-tokens-{}-1a2b3c4d"])
def test_a_session_is_known_by_its_requests_id(around: str) -> None:
    assert key_in(around.format(name_of(KEY))) == KEY
    assert key_in(around.format("somebody-else")) is None
