"""Predicts the cells of `end_to_end` by the simulator: the same texts, draft, link, steps and cores' pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.measure_pace import PaceTables, measure_pace
from lab.benchmarks.real_sizes.pair import Pair, PairText
from schemes.drafters.translation import Translation
from simulator.drafts import recorded_draft
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader
from simulator.system import SimulatedDevice, simulate
from simulator.world import DeviceSpec, VerifierSpec, World
from training.record import recorded_text, said_before


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """Holds what a draft says before each token of the target's texts, and the time that it takes."""

    texts: tuple[RecordedText, ...]
    pace: PaceTables

    @classmethod
    def of(cls, pair: Pair, texts: Sequence[PairText]) -> DraftRecord:
        """Let the draft read `texts`, with one thread."""
        cells = 2 * max(len(text.prompt) + len(text.tokens) for text in texts) + 64
        words = LlamaModel(LlamaSettings(str(pair.target)), weights=False)
        with words, LlamaRuntime(LlamaSettings(str(pair.draft), n_ctx=cells, threads=1)) as runtime:
            pace = measure_pace(runtime)
            group = Translation(runtime, words).group if pair.has_other_tokens else DraftGroup
            drafter = MemberDrafter(group(runtime, 1))
            said = [said_before(drafter, each.prompt, each.tokens, each.sampling) for each in texts]
        recorded = [recorded_text(t.prompt, t.tokens, each) for t, each in zip(texts, said, strict=True)]
        return cls(tuple(recorded), pace)


@dataclass(frozen=True, slots=True)
class TargetSteps(VerifierSpec):
    """Describes the steps of `OracleEngine`: a step of more rows than a session's nodes reads a prompt."""

    time_per_prompt_row: float = 0.0

    def time(self, rows: int, context: int, now: float = 0.0) -> float:
        step = super(TargetSteps, self).time  # a class with slots has no bare `super()` in Python 3.11
        if rows <= self.max_nodes_per_session:
            return step(rows, context, now)
        return step(1, context, now) + self.time_per_prompt_row * (rows - 1)


def predict(
    text: PairText, place: int, record: DraftRecord, policy: str, link: LinkSpec, target: TargetSteps
) -> dict[str, Any]:
    """Return the run of text number `place`, as `figures` reads it. The target's `recall` is the device's,
    too."""
    header = RecordingHeader("target", "draft", text.temperature, text.seed)
    rows, reads = tuple(record.pace.rows.items()), tuple(record.pace.reads.items())
    world = World(
        link,
        DeviceSpec(rows[0][1], draft_times=rows, read_times=reads, recall=target.recall),
        target.with_product_limits(),
        recorded_draft("draft", Recording(header, (record.texts[place],))),
        tokens=len(text.tokens),
        prompt_tokens=len(text.prompt),
    )

    class Device(SimulatedDevice):
        def _config(self) -> SessionConfig:
            return replace(super()._config(), prompt=text.prompt)

    (result,) = simulate(world, lambda _: make_policy(policy), Device)
    return result.as_run()
