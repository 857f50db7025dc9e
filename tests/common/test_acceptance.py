"""Laws of the rules' names: what is lossy says so, settings are read as they are written, bounds are told."""

import pytest

from common.acceptance import (
    DRAWN,
    GREEDY_TOO,
    LOSSLESS,
    PARAMETERS,
    Acceptance,
    AcceptanceRule,
    Draft,
    make_acceptance,
)
from common.errors import UserError
from common.pb import verifier_pb2 as pb
from tests import wording


def test_lossy_rules_are_named_so_on_the_wire_and_no_others() -> None:
    for rule in AcceptanceRule:
        name = pb.AcceptanceRule.Name(rule.value)
        assert name == f"ACCEPTANCE_RULE_{'' if rule.lossless else 'LOSSY_'}{rule.name}"
    assert len(pb.AcceptanceRule.keys()) == len(AcceptanceRule) + 1, "and the unspecified one"


@pytest.mark.parametrize("rule", AcceptanceRule, ids=lambda rule: rule.title)
def test_a_rule_is_read_back_from_its_title(rule: AcceptanceRule) -> None:
    acceptance = Acceptance(
        rule,
        lenience=0.25,
        epsilon=0.5,
        delta=0.125,
        top=7,
        gap=2.0,
        rollback=1.5,
        alpha=0.5,
        beta=3.0,
        fusion=0.75,
    )
    again = make_acceptance(acceptance.title)
    assert again.rule is rule
    for name in PARAMETERS.get(rule, ()):
        assert getattr(again, name) == getattr(acceptance, name)


def test_a_single_setting_needs_no_name() -> None:
    assert make_acceptance("lenience:0.3") == Acceptance(AcceptanceRule.LENIENCE, lenience=0.3)
    assert make_acceptance("bild: 2") == Acceptance(AcceptanceRule.BILD, rollback=2.0)


REFUSED = (
    "greedy rejection:2 typical:0.3 typical:rollback=3 topk-gap:top=2.5 lenience:much "
    "lenience:0 lenience:1.5 typical:epsilon=0 typical:delta=-1 typical:delta=nan "
    "topk-gap:top=0 topk-gap:gap=inf bild:-1 contrastive:alpha=0 contrastive:beta=-1 "
    "contrastive:beta=200 reflective:1.5"
)


@pytest.mark.parametrize("text", REFUSED.split())
def test_an_unknown_rule_or_setting_is_refused(text: str) -> None:
    with wording.raises(UserError):
        make_acceptance(text)


def test_greedy_decoding_is_another_one_only_under_the_rules_that_are_made_for_it() -> None:
    changed = [rule for rule in AcceptanceRule if Acceptance(rule).decides(greedy=True)]
    assert changed == list(GREEDY_TOO)
    assert not any(rule.lossless for rule in changed)
    assert not Acceptance().decides(greedy=False), "the coupled rule's own choice"


def test_drafts_are_drawn_where_there_is_chance_and_a_rule_that_asks_for_it() -> None:
    assert [rule for rule in AcceptanceRule if Acceptance(rule).draws(greedy=False)] == list(DRAWN)
    assert [rule for rule in AcceptanceRule if Acceptance(rule).draws(greedy=True)] == [
        AcceptanceRule.CONTRASTIVE
    ]
    assert set(LOSSLESS) - set(DRAWN) == {AcceptanceRule.COUPLED}


@pytest.mark.parametrize(
    "draft",
    [
        Draft((1, 2), (256,)),
        Draft((), ()),
        Draft(tuple(range(65)), (1,) * 65),
        Draft((2, 1), (100, 156)),
        Draft((1, 1), (100, 156)),
        Draft((1, 2), (0, 256)),
        Draft((1, 2), (100, 100)),
    ],
)
def test_a_bad_draft_is_explained(draft: Draft) -> None:
    wording.keep(draft.problem() or "")
