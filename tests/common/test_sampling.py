"""Laws of sampling parameters: what is out of range is refused, by name, with its value and its range."""

import math
from typing import Any

import pytest

from common.errors import Code, UserError
from common.sampling import MAX_LOGIT_BIAS_ENTRIES, MAX_SEED, MAX_STOP_TOKENS, SamplingParams
from tests import wording

NAN, INF = math.nan, math.inf
BIASES = tuple((token, 0.0) for token in range(MAX_LOGIT_BIAS_ENTRIES))
STOPS = tuple(range(MAX_STOP_TOKENS))


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("temperature", (0.0, 0.7, 100.0)),
        ("top_k", (0, 1, 2**31 - 1)),
        ("top_p", (1e-9, 0.5, 1.0)),
        ("min_p", (0.0, 0.5, 1.0)),
        ("repetition_penalty", (1e-9, 1.0, 100.0)),
        ("presence_penalty", (-100.0, 0.0, 100.0)),
        ("frequency_penalty", (-100.0, 0.0, 100.0)),
        ("max_tokens", (1, 256, 2**31 - 1)),
        ("seed", (0, 1, MAX_SEED)),
        ("logit_bias", ((), ((0, -1000.0), (2**31 - 1, 1000.0)), BIASES)),
        ("stop_token_ids", ((), (0, 2**31 - 1), STOPS)),
    ],
)
def test_the_ends_of_every_range_are_allowed(field: str, allowed: tuple[Any, ...]) -> None:
    for value in allowed:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "refused"),
    [
        ("temperature", (-0.1, 100.1, NAN, INF, -INF)),
        ("top_k", (-1, 2**31)),
        ("top_p", (0.0, -0.1, 1.1, NAN)),
        ("min_p", (-0.1, 1.1, NAN)),
        ("repetition_penalty", (0.0, -1.0, 100.1, NAN)),
        ("presence_penalty", (-100.1, 100.1, NAN)),
        ("frequency_penalty", (-100.1, 100.1, INF)),
        ("max_tokens", (0, -1, 2**31)),
        ("seed", (-1, MAX_SEED + 1)),
        ("logit_bias", (((-1, 0.0),), ((4, -1000.5),), ((4, 1000.5),), ((4, NAN),), (*BIASES, (0, 0.0)))),
        ("stop_token_ids", ((1, -1), (1, 2**31), (*STOPS, 0))),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(field: str, refused: tuple[Any, ...]) -> None:
    for value in refused:
        with wording.raises(UserError) as caught:
            SamplingParams(**{field: value})
        assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 2.5),
        ("seed", 1.5),
        ("seed", True),
        ("top_k", "3"),
        ("ignore_eos", "no"),
        ("temperature", "hot"),
        ("temperature", None),
        ("stop_token_ids", (1.0,)),
        ("logit_bias", (("a", 1.0),)),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UserError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("grammar", ["é" * 32_769, None, "\ud800"])
def test_a_grammar_is_text_of_64_kib_at_most(grammar: object) -> None:
    with wording.raises(UserError):
        SamplingParams(grammar=grammar)  # type: ignore[arg-type]  # what callers without types can bring


def test_only_penalties_and_grammars_read_the_text() -> None:
    assert SamplingParams(grammar="start: /a/").reads_text
    assert SamplingParams(presence_penalty=0.1).reads_text
    assert not SamplingParams(temperature=0.8, top_k=3, logit_bias=((1, 2.0),)).reads_text
