"""Checks the draft model: its file, its pace, its tokens, and two short texts by a verifier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common.errors import ForerunError
from common.llama.files import find_model
from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaSettings
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.network.client_tls import TlsSettings
from edge_client.settings import DraftSection
from forerun.doctor.device import SAYS_IT, Finding, check_processor, fail, ok, refused, skip, warn

if TYPE_CHECKING:
    from common.llama.model import LlamaModel
    from common.llama.runtime import LlamaRuntime
    from edge_client.core.draft_times import DraftTimes
    from edge_client.draft.late_seat import Drafts
    from edge_client.draft.seats import GroupMaker
    from edge_client.network.channel import VerifierChannel
    from schemes.drafters.translation import Translation

PROMPT = "The weather report for tomorrow says that"
TOKENS = 64  # of each text
STEPS = 64
"""Most timed draft steps; a step takes milliseconds."""

LONGEST = 60.0
"""Time limit of the texts in seconds."""

CONTEXT = 2048  # tokens, where the configuration says auto
SLOW_STEP = 0.05  # seconds; few targets take longer for a step of theirs


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Holds what was measured of a draft and its verifier. Times are in seconds; None means unknown."""

    rtt: float | None = None
    step_time: float | None = None  # of the target
    draft_time: float | None = None  # a token in a row, where a step says several
    acceptance: float | None = None  # how often the draft's best token is the target's
    row_share: float = 0.0  # what a further row adds to a target step, as a share of its time, if told
    seen: float | None = None  # speed-up of doctor's own text with drafts over the one without

    @property
    def missing(self) -> list[str]:
        """Return the unknown inputs of the prediction in words."""
        named = (
            (self.rtt, "the RTT"),
            (self.step_time, "the target's step"),
            (self.draft_time, "the draft's step"),
            (self.acceptance, "how often drafts are right"),
        )
        return [words for value, words in named if value is None]


@dataclass(frozen=True, slots=True)
class MeasuredText:
    """Holds a text of the target. Times are in seconds."""

    tokens: tuple[int, ...]
    token_time: float
    step_time: float


@dataclass(frozen=True)
class LoadedDraft:
    """Holds a loaded draft, the target's tokens, and what translates if they are not the draft's."""

    runtime: LlamaRuntime
    words: LlamaModel
    translation: Translation | None

    @cached_property
    def group(self) -> GroupMaker:
        from edge_client.draft.shared_model import group_of

        return group_of(self.runtime) if self.translation is None else self.translation.group

    @cached_property
    def levels(self) -> int:
        """Return the tokens in a row that a step says: several of a parallel draft."""
        return self.group(self.runtime, 1).levels

    def reach(self, text: Sequence[int], acceptance: float | None) -> Finding:
        """Report which of the target's tokens the draft can propose, of its vocabulary and of a text."""
        assert self.translation is not None, "there are two vocabularies"
        shared, total = self.translation.draft_of, Vocabulary(self.words.token_table()).num_tokens
        words = f"the draft has {len(shared)} of the target's {total} tokens ({len(shared) / total:.0%})"
        if acceptance is None or not text:
            return ok("translation", f"{words}; without a text of the target its acceptance is unknown")
        share = sum(token in shared for token in text) / len(text)
        return ok(
            "translation", f"{words}, {share:.0%} of its text, of which {acceptance:.0%} are its choice"
        )


def find_file(draft: DraftSection) -> tuple[str, Finding]:
    """Return the draft's file, or "" if its name, content or hash is wrong, and a finding about it."""
    if not draft.model:
        said = "no draft model is configured, and the daemon does not start without one"
        return "", fail("draft file", said, "give --draft FILE, or set draft.model")
    try:
        path = find_model(draft.model, draft.sha256)
    except ForerunError as error:
        return "", fail("draft file", str(error), SAYS_IT)
    return path, ok("draft file", f"{path}, {Path(path).stat().st_size / 1e6:.1f} MB")


def check_draft(
    draft: DraftSection, trials: ModelTrials, address: str, tls: TlsSettings | None
) -> Generator[Finding, None, MeasuredPair]:
    """Yield findings about the draft, and about texts with the verifier at `address` if there is one. Return
    what was measured. A child process tries the file first, as llama.cpp may crash on a damaged one."""
    try:
        from common.llama.library import library, offloaded_layers
        from common.llama.runtime import LlamaRuntime

        yield check_processor(library().llama_print_system_info().decode())
    except (ImportError, OSError, RuntimeError) as error:
        yield fail("processor", f"llama.cpp cannot be loaded: {error}", "pip install 'forerun[edge]'")
        return MeasuredPair()
    path, finding = find_file(draft)
    yield finding
    if not path:
        return MeasuredPair()
    settings = LlamaSettings(
        path,
        n_ctx=draft.context or CONTEXT,
        threads=draft.threads,
        gpu_layers=offloaded_layers(draft.gpu_layers),
    )
    try:
        trials.ensure(settings, weights=True)
        began = time.monotonic()
        with ExitStack() as stack:
            runtime = stack.enter_context(LlamaRuntime(settings))
            kind = runtime.description.replace(" ?B", "")  # llama.cpp's words for a size without a name
            yield ok("draft loads", f"{kind}, in {time.monotonic() - began:.1f} s")
            loaded = _with_tokens(runtime, draft.tokens, trials, stack)
            prompt = tuple(loaded.words.tokenize(PROMPT, True))
            step_time, _ = draft_steps(loaded, prompt, prompt)
            yield _judged(step_time, loaded.levels)
            measured = MeasuredPair(draft_time=step_time / loaded.levels)
            if not address:
                yield skip("tokenizer", "no verifier answers to compare with")
                if loaded.translation is not None:
                    yield loaded.reach((), None)
                return measured
            findings, measured = asyncio.run(_with_verifier(loaded, prompt, address, tls, measured))
            yield from findings
            return measured
    except ForerunError as error:
        yield fail("draft loads", str(error), "fetch it again, or choose another draft")
        return MeasuredPair()


def _with_tokens(runtime: LlamaRuntime, file: str, trials: ModelTrials, stack: ExitStack) -> LoadedDraft:
    """Return the draft with the target's tokens of `file`; empty: the draft's are the same."""
    if not file:
        return LoadedDraft(runtime, runtime, None)
    from common.llama.model import LlamaModel
    from schemes.drafters.translation import Translation

    trials.ensure(settings := LlamaSettings(find_model(file)), weights=False)
    words = stack.enter_context(LlamaModel(settings, weights=False))
    return LoadedDraft(runtime, words, Translation(runtime, words))


def _judged(step_time: float, levels: int) -> Finding:
    words = f"{1e3 * step_time:.1f} ms" + (f", which says {levels} tokens" if levels > 1 else "")
    if step_time / levels > SLOW_STEP:
        advice = "use a smaller draft, fewer bits, or other --threads (fewer if a verifier runs here, too)"
        return warn("draft step", words, advice)
    return ok("draft step", words)


def draft_steps(draft: LoadedDraft, prompt: tuple[int, ...], text: tuple[int, ...]) -> tuple[float, float]:
    """Draft along `text` after `prompt`, a step a token. Return the seconds of a step, and how often the best
    candidate was the text's next token."""
    from edge_client.core.effects import DraftRow, Reroot
    from edge_client.draft.group import MemberDrafter

    draft.runtime.clear()
    drafter = MemberDrafter(draft.group(draft.runtime, 1))
    way = [*prompt, *text]
    drafter.start(prompt, 1, SamplingParams())
    times, right = list[float](), 0
    for number, place in enumerate(range(len(prompt) - 1, min(len(way) - 1, len(prompt) + STEPS)), 1):
        began = time.perf_counter()
        (expansion,) = drafter.expand([DraftRow(number, None, way[place], place)])
        times.append(time.perf_counter() - began)
        right += bool(expansion.tokens) and expansion.tokens[0] == way[place + 1]
        drafter.reroot(Reroot(((number + 1, way[place + 1]),), ()))
    draft.runtime.clear()
    return median(times[1:] or times), right / max(1, len(times))


async def _with_verifier(
    draft: LoadedDraft,
    prompt: tuple[int, ...],
    address: str,
    tls: TlsSettings | None,
    measured: MeasuredPair,
) -> tuple[list[Finding], MeasuredPair]:
    """Compare the tokens, and let the target write without drafts and with them."""
    from edge_client.core.draft_times import DraftTimes
    from edge_client.draft.measure_pace import measure_pace
    from edge_client.draft.seats import DraftPool
    from edge_client.network.channel import VerifierChannel

    findings, pace = list[Finding](), DraftTimes()
    measure_pace(draft.runtime).teach(pace, draft.levels)
    vocabulary = Vocabulary(draft.words.token_table())
    try:
        async with asyncio.timeout(LONGEST), VerifierChannel(address, tls=tls) as channel:
            described = await channel.describe()
            if described.fingerprint != vocabulary.fingerprint:
                advice = "choose a draft of the target's family; `forerun models` lists pairs"
                return [fail("tokenizer", await channel.explain_mismatch(vocabulary), advice)], measured
            words = f"{vocabulary.num_tokens} tokens, fingerprint {vocabulary.fingerprint.hex()[:16]}"
            findings.append(ok("tokenizer", words))
            await channel.describe()  # the second answer shows the round trip, the first followed a handshake
            plain = await _write(vocabulary, channel, prompt, None, pace)
            _, acceptance = draft_steps(draft, prompt, plain.tokens)
            if draft.translation is not None:
                findings.append(draft.reach(plain.tokens, acceptance))
            measured = replace(measured, acceptance=acceptance, step_time=plain.step_time or None)
            async with DraftPool(draft.runtime, seats=1, group=draft.group) as pool:
                drafted = await _write(vocabulary, channel, prompt, pool.seat(), pace)
    except ForerunError as error:
        return [*findings, refused("texts", error)], measured
    except TimeoutError:
        advice = "stop other work on both machines and run doctor again, or use smaller models"
        return [*findings, fail("texts", f"they took longer than {LONGEST:g} s", advice)], measured
    seen = plain.token_time / drafted.token_time if drafted.token_time else None
    return [*findings, compared(plain, drafted)], replace(measured, seen=seen)


def compared(plain: MeasuredText, drafted: MeasuredText) -> Finding:
    """Report the pace of both texts of the target, and whether they are the same."""
    same = "the same text" if plain.tokens == drafted.tokens else "another text (a near-tie)"
    return ok(
        "texts",
        f"{1e3 * plain.token_time:.1f} ms per token streamed, a target step takes "
        f"{1e3 * plain.step_time:.1f} ms; {1e3 * drafted.token_time:.1f} ms with drafts, {same}",
    )


async def _write(
    vocabulary: Vocabulary,
    channel: VerifierChannel,
    prompt: tuple[int, ...],
    drafts: Drafts | None,
    pace: DraftTimes,
) -> MeasuredText:
    """Write a greedy text by the target, with drafts or without."""
    from edge_client.core.effects import SessionConfig
    from edge_client.core.policies import make_policy
    from edge_client.core.session import EdgeSession
    from edge_client.network.generation import Generation

    config = SessionConfig(
        prompt,
        SamplingParams(max_tokens=TOKENS, ignore_eos=True),
        vocabulary.fingerprint,
        session_id=f"doctor-{'drafts' if drafts else 'plain'}",
        patience=None,
        max_attempts=1,
        draft_waits=channel.shares_machine,
        privacy=Privacy.PADDED,  # as the daemon; a verifier may require it
    )
    session = EdgeSession(config, make_policy("adaptive" if drafts else "off"), pace=pace)
    arrivals, tokens = list[float](), list[int]()
    async for emit in Generation(session, channel, drafts):
        tokens += emit.tokens
        arrivals += [time.monotonic()] * len(emit.tokens)
    token_time = (arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1) if arrivals else 0.0
    stats = session.stats
    return MeasuredText(tuple(tokens), token_time, stats.compute_time / max(1, stats.target_steps))
