"""The packed engine writes what the target alone writes, whatever is packed together and wherever KV lies."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.engine.attention.torch_ref import TorchRefBackend, TorchRefStep
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.sampling.host_choice import choice_rows
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import CapacityError, LocalError
from common.sampling import SamplingParams
from tests import wording
from tests.cloud_verifier.engine.tiny import Session, Slots, ints, plain_greedy, target

pytestmark = pytest.mark.torch

FAMILIES = "llama, qwen3, mistral, gemma2, gemma3_text, gpt_oss, phi3, gpt2, opt, qwen3_moe, deepseek_v3"
PROMPTS = ([5, 9, 2, 41, 7, 7, 80, 13, 22, 90, 4, 61, 33], [11, 3, 8, 60, 96])
CHUNKS = ((3, 5, 4), (1, 3))  # odd ones; the last prompt token is each session's first tip
LENGTH = 9


@pytest.fixture(scope="module", params=FAMILIES.split(", "))
def model(request: pytest.FixtureRequest) -> TargetModel:
    return target(request.param)


@pytest.fixture(scope="module")
def llama() -> TargetModel:
    return target("llama")


def engine_of(model: TargetModel) -> TorchEngine:
    return TorchEngine(model, 128)


def new_session(key: int) -> Session:
    return Session(key, Slots(128))


def prefill(engine: TorchEngine, sessions: list[Session]) -> None:
    """All prompt tokens but the last, in chunks of both sessions at once while both have some left."""
    lines = [iter(chunks(prompt, sizes)) for prompt, sizes in zip(PROMPTS, CHUNKS, strict=True)]
    while True:
        parts = [(session, next(line, None)) for session, line in zip(sessions, lines, strict=True)]
        items = [(session, session.chunk(part)) for session, part in parts if part]
        if not items:
            return
        engine.evaluate(StepPlan(tuple(item for _, item in items)))
        for session, item in items:
            session.keep(item, range(len(item.tokens)))


def chunks(prompt: list[int], sizes: tuple[int, ...]) -> Iterator[list[int]]:
    at = 0
    for size in sizes:
        yield prompt[at : at + size]
        at += size


def write(engine: TorchEngine, sessions: list[Session], truths: list[list[int]]) -> list[list[int]]:
    """Write each session's text by trees that hold right and wrong proposals; returns the texts."""
    texts: list[list[int]] = [[] for _ in sessions]
    while any(len(text) < LENGTH for text in texts):
        items = []
        for session, text, truth, prompt in zip(sessions, texts, truths, PROMPTS, strict=True):
            tip = [*prompt, *text][-1]
            right = [*truth[len(text) :], 0, 0][:2]
            wrong = (right[0] + 1) % 97
            tokens = [tip, wrong, right[0], wrong, right[1]]  # the fork's wrong branch has a child of its own
            items.append(session.item(tokens, [-1, 0, 0, 1, 2], range(5)))
        result = engine.evaluate(StepPlan(tuple(items)))
        for session, text, item, choices in zip(sessions, texts, items, result.choices, strict=True):
            rows = walk(item.tokens.tolist(), item.parents.tolist(), choices.tolist())
            session.keep(item, rows)
            text.extend(choices[rows].tolist())
    return [text[:LENGTH] for text in texts]


def walk(tokens: list[int], parents: list[int], choices: list[int]) -> list[int]:
    """The commit walk: from the tip as long as a child holds the choice."""
    rows = [0]
    while True:
        below = [row for row, parent in enumerate(parents) if parent == rows[-1]]
        agreed = [row for row in below if tokens[row] == choices[rows[-1]]]
        if not agreed:
            return rows
        rows.append(agreed[0])


def test_two_sessions_write_what_the_target_alone_writes(model: TargetModel) -> None:
    truths = [plain_greedy(model, prompt, LENGTH) for prompt in PROMPTS]
    slots = Slots(128)
    sessions = [Session(0, slots), Session(1, slots)]
    engine = engine_of(model)
    prefill(engine, sessions)
    assert write(engine, sessions, truths) == truths


def test_results_lie_as_the_outputs_do(llama: TargetModel) -> None:
    engine, first, second = engine_of(llama), new_session(1), new_session(2)
    second.slots = first.slots
    plan = StepPlan((first.chunk([1, 2, 3]), second.chunk([4, 5, 6], [0, 2]), first.chunk([7], [0])))
    result = engine.evaluate(plan)
    assert [choices.dtype for choices in result.choices] == [np.int32] * 3
    assert [margins.dtype for margins in result.margins] == [np.float32] * 3
    assert [len(choices) for choices in result.choices] == [0, 2, 1]
    logits = engine.logits(plan)
    assert np.concatenate(result.choices).tolist() == logits.argmax(1).tolist()
    best = logits.topk(2).values
    np.testing.assert_allclose(np.concatenate(result.margins), best[:, 0] - best[:, 1], rtol=1e-4)


def test_a_step_without_rows_or_outputs_is_allowed(llama: TargetModel) -> None:
    engine, session = engine_of(llama), new_session(1)
    assert engine.evaluate(StepPlan(())).choices == ()
    assert len(engine.evaluate(StepPlan((session.chunk([1, 2]),))).choices[0]) == 0
    assert len(engine.kv.layers) == 2
    assert engine.logits(StepPlan((session.chunk([1, 2]),))).shape == (0, 97)


def test_a_bad_plan_is_our_fault_and_changes_nothing(llama: TargetModel) -> None:
    engine, session = engine_of(llama), new_session(1)
    item = session.chunk([1, 2, 3], [2])
    engine.evaluate(StepPlan((item,)))
    with wording.raises(LocalError):
        engine.evaluate(StepPlan((item, item)))
    with wording.raises(LocalError):
        engine.evaluate(StepPlan((replace(item, tokens=item.tokens + 95),)))


def test_sampled_choices_depend_on_the_path_and_not_on_the_company(llama: TargetModel) -> None:
    engine, session, other = engine_of(llama), new_session(1), new_session(2)
    session.sampling = SamplingParams(temperature=1.5, top_p=0.9, seed=77)
    other.slots = session.slots
    alone = engine.evaluate(StepPlan((session.chunk([5, 6, 7], [0, 1, 2]),))).choices[0]
    mixed = engine.evaluate(StepPlan((other.chunk([1, 2]), session.chunk([5, 6, 7], [0, 1, 2])))).choices[1]
    tree = session.item([5, 9, 6, 9, 7], [-1, 0, 0, 1, 2], [0, 2, 4])
    assert mixed.tolist() == alone.tolist()
    assert engine.evaluate(StepPlan((tree,))).choices[0].tolist() == alone.tolist()


def test_penalties_see_the_path_and_no_other_branch(llama: TargetModel) -> None:
    session = new_session(1)
    session.sampling = SamplingParams(presence_penalty=1.0)
    session.held = session.slots.take(5)  # a prompt of 4 tokens and one generated
    item = session.item([20, 21, 22, 23], [-1, 0, 0, 2], [0, 1, 3])
    item = replace(item, prompt=ints([1, 2, 3, 4]), generated=ints([19]))
    rows = choice_rows(item)
    assert [row.position for row in rows] == [5, 6, 7]
    histories = [row.generated for row in rows]
    assert [None if one is None else one.tolist() for one in histories] == [
        [19, 20],
        [19, 20, 21],
        [19, 20, 22, 23],
    ]


def test_prompt_rows_are_not_generated_tokens() -> None:
    session = new_session(1)
    session.sampling = SamplingParams(frequency_penalty=1.0)
    item = replace(session.chunk([1, 2, 3, 9], [2, 3]), prompt=ints([1, 2, 3]), generated=ints([]))
    histories = [row.generated for row in choice_rows(item)]
    assert [None if one is None else one.tolist() for one in histories] == [[], [9]]


def test_a_lack_of_memory_costs_the_step_and_no_more(llama: TargetModel) -> None:
    class Narrow(TorchRefBackend):
        """Has room for steps of few rows, as a GPU would."""

        def prepare(self, step: PackedStep, device: torch.device) -> TorchRefStep:
            if step.num_rows > 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore of it")
            return super().prepare(step, device)

    engine, session = TorchEngine(llama, 128, backend=Narrow()), new_session(1)
    large = StepPlan((session.chunk([1, 2, 3, 4], [3]),))
    for run in (engine.evaluate, engine.logits):
        with wording.raises(CapacityError):
            run(large)
    assert len(engine.evaluate(StepPlan((session.chunk([1, 2, 3], [2]),))).choices[0]) == 1
