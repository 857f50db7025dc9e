"""Predicts, by the simulator, at which pace a text is written with a draft that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from common.llama.model import LlamaSettings
from common.sampling import SamplingParams
from edge_client.draft.group import DraftGroup, MemberDrafter
from simulator.drafts import recorded_draft
from simulator.figures import pace
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, Recording, RecordingHeader
from simulator.schemes import FORERUN, SERVER_STREAMING, run_scheme
from simulator.world import DeviceSpec, VerifierSpec, World
from training.options import open_draft
from training.record import draft_step_ms

RUNS = 4  # sessions of a prediction, each with a text of its own
TOKENS = 400  # of each session; a recorded text follows the other
PROMPT = 100  # tokens before a timed draft step
CANDIDATES = 5  # of a timed draft step


def draft_times(file: Path, threads: int) -> dict[int, float]:
    """Return the milliseconds of the draft's steps on this machine, by their rows."""
    with open_draft(LlamaSettings(str(file), n_ctx=1024, threads=threads)) as runtime:
        drafter = MemberDrafter(DraftGroup(runtime, 1, CANDIDATES))
        return draft_step_ms(drafter, range(1, PROMPT), SamplingParams())


def seconds(times_ms: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return milliseconds by rows as the simulator takes them."""
    return tuple((rows, time / 1e3) for rows, time in sorted(times_ms.items()))


def predicted_pace(
    texts: Sequence[RecordedText],
    draft_ms: Mapping[int, float],
    target_ms: Mapping[int, float],
    link: LinkSpec,
    temperature: float,
    masked: Sequence[Sequence[RecordedText]] = (),
) -> dict[str, float]:
    """Return the milliseconds a token of the product and of streaming, over this link.

    Args: texts: what the draft says before each of the target's tokens; draft_ms, target_ms: times of
    steps by their rows; masked: the same texts as each mask of a parallel draft sees them.
    """
    header = RecordingHeader("target", "draft", temperature, 0)
    world = World(
        link=link,
        device=DeviceSpec(draft_times=seconds(draft_ms), levels=1 + len(masked)),
        verifier=VerifierSpec(
            step_time=target_ms[1] / 1e3,
            step_times=seconds(target_ms) if len(target_ms) > 1 else (),
        ).with_product_limits(),
        draft=recorded_draft("texts held out", Recording(header, tuple(texts)), masked),
        tokens=TOKENS,
        prompt_tokens=texts[0].prompt_tokens,
    )
    worlds = [replace(world, seed=seed) for seed in range(RUNS)]
    return {
        scheme: pace([result.as_run() for each in worlds for result in run_scheme(scheme, each)])
        for scheme in (SERVER_STREAMING, FORERUN)
    }
