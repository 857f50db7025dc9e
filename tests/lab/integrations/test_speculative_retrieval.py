"""Laws of retrieving ahead: the text is that of the true retriever at every stride, in fewer batches."""

import random
from collections.abc import Sequence

import pytest

from speculative_retrieval import SpeculativeWriter, best, write_waiting

WORDS = ("ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew")
DOCUMENTS = [f"{first} {second}" for first in WORDS for second in WORDS if first < second]


class ScriptedModel:
    """Writes by document and text alone. With the chance `sticks` a stride names the document's own words, so
    that the next document is the same."""

    def __init__(self, seed: int, sticks: float, ends_after: int) -> None:
        self.seed, self.sticks, self.ends_after = seed, sticks, ends_after
        self.batches: list[int] = []

    def write(self, document: str, text: str) -> str:
        if len(text.split()) >= self.ends_after:
            return ""
        chance = random.Random(f"{self.seed} {document} {text}")
        return " " + (document if chance.random() < self.sticks else " ".join(chance.choices(WORDS, k=2)))

    def retrieve(self, queries: Sequence[str]) -> list[str]:
        self.batches.append(len(queries))
        return [best(query[-24:], DOCUMENTS) for query in queries]


@pytest.mark.parametrize("ahead", [1, 2, 3, 7])
@pytest.mark.parametrize("sticks", [0.0, 0.5, 0.9, 1.0])
def test_the_text_is_that_of_the_true_retriever_at_every_stride(sticks: float, ahead: int) -> None:
    for seed in range(8):
        for num_strides, ends_after in ((9, 99), (20, 17), (1, 99), (0, 99), (6, 1)):
            world = ScriptedModel(seed, sticks, ends_after)
            wanted = write_waiting(world.write, world.retrieve, "ash", num_strides)
            waited, world.batches = len(world.batches), []
            writer = SpeculativeWriter(world.write, world.retrieve, ahead)
            assert writer.text("ash", num_strides) == wanted
            assert len(world.batches) <= waited, "a wrong document costs no batch more"
            assert max(world.batches, default=0) <= ahead


def test_where_documents_stay_the_retriever_is_waited_for_once_in_so_many_strides() -> None:
    world = ScriptedModel(0, 1.0, 99)
    writer = SpeculativeWriter(world.write, world.retrieve, ahead=4)
    writer.text("ash elm", 13)
    assert world.batches == [1, 4, 4, 4], "the first finds the cache empty"
