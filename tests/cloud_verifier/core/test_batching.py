"""Laws of the batch: tips come first, prompts take what time there is, tenants take turns."""

from dataclasses import replace

import pytest

from cloud_verifier.core.batching import LEAST_PREFILL, Batcher, OomBackoff, StepDraft
from cloud_verifier.core.cost import StepCost
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.tenants import Tenants
from cloud_verifier.core.verify_session import VerifySession
from tests.cloud_verifier.core.bench import VOCAB, ask


class Yard:
    """Sessions with as much read as one likes, and a batcher that knows what steps cost."""

    def __init__(self, per_row: float = 1e-4, per_read: float = 0.0, per: int = 1, **limits: float) -> None:
        self.memory = KvMemory(100_000, caches=False)
        self.tenants = Tenants()
        config = SchedulerConfig(**limits)  # type: ignore[arg-type]  # as the fields are
        self.rows = rows = OomBackoff(1000)
        self.batcher = Batcher(config, rows, StepCost(0.010, per_row, per_read), per, self.tenants.service)
        self.ready: list[VerifySession] = []

    def session(self, prompt: int, read: int = 0, tenant: str = "", opened_at: float = 0.0) -> VerifySession:
        key = len(self.ready) + 1
        request = ask((1,) * prompt)
        found = VerifySession(key, request, VOCAB, frozenset(), 128, opened_at, (), tenant)
        found.admit(self.memory.open(tenant, (), prompt + 50), prompt + 50, prompt + 50)
        self.memory.settle(found.lease, self.memory.take(found.lease, read), ())
        self.tenants.enter(tenant, 1)
        self.ready.append(found)
        return found

    def decoding(self, tenant: str = "", context: int = 5) -> VerifySession:
        return self.session(context + 1, context, tenant)

    def keys(self) -> list[int]:
        return [session.key for session in self.batcher.batch(self.ready).decoding]

    def chunks(self) -> dict[int, int]:
        return self.batcher.batch(self.ready).chunks


def test_the_only_session_reads_more_as_long_as_that_is_quick() -> None:
    """Nobody waits for its step; one that opens meanwhile waits for 0.2 s more at most."""
    for per_row, chunk in ((0.0, 400), (1e-4, 400), (1e-3, 200), (1e-2, 100)):
        yard = Yard(per_row=per_row, prefill_chunk=100)
        yard.session(1000)
        batch = yard.batcher.batch(yard.ready, alone=True)
        assert batch.chunks == {1: chunk}


LONG = {"per_row": 1e-5, "per_read": 1e-8, "prefill_chunk": 4096}  # limits of a prompt of 32,000 tokens


@pytest.mark.parametrize(
    ("writers", "prompts", "limits", "chunks"),
    [
        (0, [(1000, 0)], {"per_row": 1.0, "prefill_chunk": 100}, [100]),  # alone, in whole chunks
        (1, [(1000, 0)], {}, [77]),  # 1.75 times a step of both, less one of the first: at 0.1 ms a token
        (1, [(1000, 900)], {"per_read": 1.0}, [LEAST_PREFILL]),  # however dear, it is read in the end
        (1, [(32_000, 0)], LONG, [752]),
        (1, [(32_000, 10_000)], LONG, [68]),  # the longer what was read, the shorter the chunk
        (1, [(32_000, 30_000)], LONG, [24]),
        (1, [(32_000, 30_000)], {**LONG, "per": 16}, [261]),  # rows that share a reading pay it together
        (0, [(5000, 0), (41, 0), (600, 0)], {"prefill_chunk": 100}, [50, 40, 10]),  # short ones need not wait
        (0, [(5000, 0), (11, 0)], {"prefill_chunk": 100}, [90, 10]),  # what they leave the oldest takes
    ],
)
def test_prompts_take_what_the_step_of_others_can_bear(
    writers: int, prompts: list[tuple[int, int]], limits: dict[str, float], chunks: list[int]
) -> None:
    yard = Yard(**limits)  # type: ignore[arg-type]  # fields vary by case
    for _ in range(writers):
        yard.decoding()
    for at, (prompt, read) in enumerate(prompts):
        yard.session(prompt, read, opened_at=float(at))
    assert [*yard.chunks().items()] == [*enumerate(chunks, writers + 1)]


def drafted(batch: StepDraft, num_nodes: int, longer: float) -> StepDraft:
    """The batch with so many nodes, which make its step longer by this share."""
    session = batch.members[0]
    return replace(batch, nodes={session.key: [session.tree.tip] * num_nodes}, longer=longer)


def test_prompts_have_their_share_of_what_drafts_add_to_a_step() -> None:
    yard = Yard(per_row=1e-4, prefill_chunk=256, max_prefill_slowdown=1.75)
    yard.decoding()
    yard.session(1000)
    batch = yard.batcher.batch(yard.ready)
    longer = yard.batcher.keep_pace(drafted(batch, 16, 0.5))
    assert (longer.chunks, longer.spared) == ({2: 77 + 38}, {2: 1.0})
    again = yard.batcher.keep_pace(drafted(batch, 16, 0.5))
    assert again.chunks == {2: 77 + 39}, "half a token was left over"


def test_a_prompt_that_ends_by_what_drafts_add_writes_at_once() -> None:
    yard = Yard(per_row=1e-4)
    yard.decoding()
    short, long = yard.session(81), yard.session(1000, opened_at=1.0)
    batch = yard.batcher.batch(yard.ready)
    assert batch.chunks == {2: 79}
    longer = yard.batcher.keep_pace(drafted(batch, 3, 0.1))
    assert (longer.chunks, longer.spared) == ({2: 80, 3: 6}, {2: 1.0, 3: 1.0})
    assert longer.decoding == (*batch.decoding, short)
    assert longer.members == (*batch.members, long)
    longer = yard.batcher.keep_pace(drafted(batch, 3, 4.0))
    assert longer.spared == {2: 0.25, 3: 1.0}, "a step of five that could have been two delays it by three"


def test_who_reads_and_does_not_end_bears_no_drafts() -> None:
    yard = Yard(per_row=1e-4)
    writing, ending, reading = yard.decoding(), yard.session(11), yard.session(1000, opened_at=1.0)
    batch = yard.batcher.batch(yard.ready)
    assert (list(batch.bearing), list(batch.reading)) == ([writing, ending], [reading])


def test_where_a_step_has_no_rows_left_prompts_fall_behind() -> None:
    yard = Yard(per_row=1e-4, prefill_chunk=60, max_rows=40)
    yard.decoding()
    yard.session(1000)
    batch = yard.batcher.batch(yard.ready)
    assert batch.chunks == {2: 60}
    longer = yard.batcher.keep_pace(drafted(batch, 40, 0.5))
    assert longer.chunks == {2: 60}
    assert longer.spared[2] == pytest.approx(0.0)
    longer = yard.batcher.keep_pace(drafted(batch, 25, 0.5))
    assert longer.chunks == {2: 75}
    assert longer.spared[2] == pytest.approx(0.5)


def test_the_prompts_of_a_tenant_that_has_had_less_come_first() -> None:
    yard = Yard(prefill_chunk=100)
    yard.session(5000, tenant="busy")
    yard.session(5000, tenant="new", opened_at=1.0)
    yard.tenants.note_service("busy", 1000, 0)
    assert yard.chunks() == {2: 100}


@pytest.mark.parametrize(
    ("limits", "contexts", "served"),
    [
        ({"max_rows": 2}, [5, 5, 5], [1, 2]),
        ({"max_context": 250}, [100] * 4, [1, 2]),
        ({"max_context": 50}, [100, 10], [1]),  # one that never fits is served alone
    ],
)
def test_tips_that_do_not_fit_take_turns(
    limits: dict[str, int], contexts: list[int], served: list[int]
) -> None:
    yard = Yard(**limits)
    for context in contexts:
        yard.decoding(context=context)
    assert yard.keys() == served
    yard.ready = [*yard.ready[len(served) :], *yard.ready[: len(served)]]
    assert yard.keys()[0] == len(served) + 1, "the least recently served first"


def test_when_not_all_fit_the_tenant_that_has_had_less_comes_first() -> None:
    yard = Yard(max_rows=2)
    yard.decoding("busy")
    yard.decoding("busy")
    yard.decoding("new")
    yard.tenants.note_service("busy", 10, 0)
    assert yard.keys() == [1, 3]


def test_a_prompt_that_ends_in_this_step_evaluates_its_tip_if_there_is_a_row() -> None:
    yard = Yard(max_rows=1)
    yard.session(4)
    yard.session(4)
    batch = yard.batcher.batch(yard.ready)
    assert [session.key for session in batch.decoding] == [1]
    assert [session.key for session in batch.members] == [1, 2]
    assert batch.chunks == {1: 3, 2: 3}


@pytest.mark.parametrize(("per", "reads"), [(1, 3 * 5), (2, 2 * 5), (16, 5)])
def test_reads_are_counted_by_tiles_of_rows(per: int, reads: int) -> None:
    yard = Yard(per=per)
    session = yard.decoding()
    tip = session.tree.tip
    nodes = [tip, *(session.tree.grow(tip, token, -0.5) for token in (3, 4))]
    item = session.plan(0, nodes, yard.memory)
    assert yard.batcher.reads(StepPlan((item,))) == reads


def test_steps_are_halved_until_they_fit_and_grow_again() -> None:
    relief = OomBackoff(300)
    assert (relief.left(500, 0), relief.left(200, 150), relief.active) == (300, 150, False)
    assert relief.on_failure(120)
    assert (relief.left(64, 0), relief.left(64, 50), relief.left(64, 70)) == (60, 10, 0)
    assert relief.on_failure(50)
    assert relief.left(64, 0) == 25
    for _ in range(126):
        relief.on_success()
    assert (relief.left(500, 0), relief.active) == (300, False)
    assert not OomBackoff(300).on_failure(1), "a single row that does not fit never will"
