"""An engine follows grammars: bad ones are refused at once, every row has its mask, drafts change no text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import StepItem, StepPlan
from cloud_verifier.engine.sampling.grammar import TargetGrammars
from common.errors import LocalError, PeerError, UserError
from common.messages import Open
from common.sampling import SamplingParams
from tests import wording
from tests.common.grammar import vocabulary as v

if TYPE_CHECKING:
    from cloud_verifier.engine.model.transformers_adapter import TargetModel
    from common.grammar import Tokens

pytestmark = pytest.mark.grammar

TARGET = Path(__file__).parents[4] / "lab" / "demo_models" / "target"


def tokens() -> Tokens:
    from common.grammar import Tokens

    return Tokens(v.PIECES, v.SPECIAL, v.EOS, v.WIDTH)


def asking(grammar: str, *committed: int) -> Open:
    return Open((1,), SamplingParams(grammar=grammar), b"", committed=committed)


def test_a_grammar_is_refused_in_the_librarys_words() -> None:
    with wording.raises(UserError):
        TargetGrammars(tokens).check(asking("start: /(/"))


def test_committed_tokens_must_fit_the_grammar() -> None:
    grammars = TargetGrammars(tokens)
    grammars.check(asking("start: /(ab)+/"))
    grammars.check(asking("start: /(ab)+/", v.AB, v.A))
    grammars.check(asking("start: /(ab)+/", v.AB, v.END))
    with wording.raises(PeerError):
        grammars.check(asking("start: /(ab)+/", v.AB, v.B))


def test_committed_tokens_that_take_too_long_to_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud_verifier.engine.sampling import grammar

    monkeypatch.setattr(grammar, "READ_TIME", -1.0)
    grammars = TargetGrammars(tokens)
    grammars.check(asking("start: /(ab)+/"))
    with wording.raises(UserError):
        grammars.check(asking("start: /(ab)+/", v.AB))


@pytest.mark.parametrize("prepared", [True, False])
def test_tokens_are_made_when_they_are_first_asked_for_and_once(prepared: bool) -> None:
    made = list[int]()

    def make() -> Tokens:
        made.append(1)
        return tokens()

    grammars = TargetGrammars(make)
    assert not made
    if prepared:
        grammars.prepare()
    for _ in range(2):
        grammars.check(asking("start: /a/"))
        mask = grammars.mask(7, "start: /a/", np.zeros(0, np.int32))
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [v.A]
    assert made == [1]


def test_tokens_that_cannot_be_read_refuse_grammars_and_nothing_else() -> None:
    def make() -> Tokens:
        raise UserError("its tokenizer is none of tokenizer.json")

    grammars = TargetGrammars(make)
    grammars.prepare()
    with wording.raises(UserError):
        grammars.check(asking("start: /a/"))


def test_a_trial_that_cannot_be_started_is_a_warning_before_a_session_asks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from common.grammar import Grammars

    def refuse(_: object) -> None:
        raise LocalError("no process can be started to compile grammars")

    monkeypatch.setattr(Grammars, "warm", refuse)
    TargetGrammars(tokens).prepare()
    assert "no process can be started" in caplog.text


@pytest.fixture(scope="module")
def demo() -> TargetModel:
    from cloud_verifier.engine.model.transformers_adapter import load_target

    return load_target(str(TARGET), dtype="float32")


@pytest.mark.torch
def test_every_row_of_a_tree_has_the_mask_of_its_own_path(demo: TargetModel) -> None:
    """Also a row that the grammar forbids, whose choice is nobody's."""
    from cloud_verifier.engine.sampling.host_choice import choice_rows
    from cloud_verifier.engine.torch_engine import TorchEngine
    from tests.cloud_verifier.engine.tiny import Session, Slots, ints

    engine = TorchEngine(demo, 64)
    a, b, ab, newline = (demo.tokenize(text)[0] for text in ("a", "b", "ab", "\n"))
    sampling = SamplingParams(temperature=0.9, grammar="start: /(ab)+/")
    item = Session(1, Slots(64), sampling).item([5, ab, a, b, newline], [-1, 0, 0, 2, 0], [0, 1, 2, 3, 4])
    item = replace(item, prompt=ints([5]), generated=ints([]))
    rows = engine.choice_rows(item)
    allowed = [None if row.allowed is None else set(np.flatnonzero(row.allowed).tolist()) for row in rows]
    assert allowed[0] is not None
    assert {a, ab} <= allowed[0]
    assert 0 not in allowed[0], "a text of nothing is incomplete"
    assert allowed[1] == allowed[3] == allowed[0] | {0}
    assert allowed[2] is not None
    assert b in allowed[2]
    assert a not in allowed[2]
    assert allowed[4] is None
    chosen = engine.evaluate(StepPlan((item,))).choices[0].tolist()
    for token, mask in zip(chosen[:4], allowed[:4], strict=True):
        assert mask is not None
        assert token in mask
    with wording.raises(LocalError):
        choice_rows(item)


@pytest.mark.torch
def test_a_step_tells_no_mask_times_of_one_that_failed_before_it(demo: TargetModel) -> None:
    from cloud_verifier.engine.torch_engine import TorchEngine
    from tests.cloud_verifier.engine.tiny import Session, Slots, ints

    engine, slots = TorchEngine(demo, 64), Slots(64)

    def item(session: int, grammar: str) -> StepItem:
        made = Session(session, slots, SamplingParams(grammar=grammar)).item([5], [-1], [0])
        return replace(made, prompt=ints([5]), generated=ints([]))

    with wording.raises(UserError):
        engine.evaluate(StepPlan((item(1, "start: /a/"), item(2, "start: /(/"))))
    result = engine.evaluate(StepPlan((item(3, "start: /a/"),)))
    assert [session for session, _ in result.mask_times] == [3]
