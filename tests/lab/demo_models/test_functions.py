"""The generated functions: they do what they say, are many, and the held-out ones are not trained on."""

import json
import random
from itertools import islice

import pytest

from lab.demo_models import PROMPTS
from lab.demo_models.corpus import bundled_prompts, document, draw_function, held_out_functions, plain
from lab.demo_models.forms import FORMS
from lab.demo_models.functions import Function
from training.doctests import Verdict, check, run_doctests


def drawn(count: int, seed: int = 0) -> list[Function]:
    rng = random.Random(seed)
    return [draw_function(rng) for _ in range(count)]


def test_all_functions_pass_the_check_of_the_demo() -> None:
    for function in drawn(1000):
        check(function.head + function.indented_body)


@pytest.mark.slow
def test_functions_pass_their_own_doctests() -> None:
    rng = random.Random(3)
    for function in [*drawn(40), *(form.draw(rng) for form in FORMS)]:
        if (prompt := function.prompt(rng)) is not None:
            (outcome,) = run_doctests(prompt + function.indented_body)
            assert outcome.verdict is Verdict.PASSED, outcome


def test_a_description_decides_what_its_body_computes() -> None:
    """Names and nouns aside: the text before a body must say all that a model needs."""
    bodies: dict[tuple[str, str], str] = {}
    for function in drawn(20_000, seed=6):
        key = (function.head, function.description)
        assert bodies.setdefault(key, function.body) == function.body


def test_held_out_combinations_are_in_no_document_and_each_comes_once() -> None:
    held_out = [function for function, _ in islice(held_out_functions(seed=0), 60)]
    assert all(function.is_held_out for function in held_out)
    assert len({function.combination for function in held_out}) == 60
    rng = random.Random(7)
    texts = "\n".join(plain(document(rng)) for _ in range(500))
    assert not any(function.head + function.indented_body in texts for function in held_out)
    assert 0.01 < sum(function.is_held_out for function in drawn(5000)) / 5000 < 0.03


def test_the_committed_prompts_are_those_that_the_training_writes() -> None:
    assert json.loads(PROMPTS.read_text(encoding="utf-8")) == bundled_prompts()
