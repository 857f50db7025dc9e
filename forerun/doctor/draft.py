"""Checks the draft model: its file, and the report of a child process that loads it.

Doctor continues even if a damaged file crashes the child. The child reads one JSON object (`ChildQuestion`)
and writes a line of JSON for each stage.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common.errors import ForerunError
from common.llama.files import find_model
from common.llama.model import LlamaSettings
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.network.client_tls import TlsSettings
from edge_client.settings import DraftSection
from forerun.doctor.device import Finding, check_processor, fail, ok, skip, warn

if TYPE_CHECKING:
    from common.llama.runtime import LlamaRuntime
    from edge_client.core.draft_times import DraftTimes
    from edge_client.draft.late_seat import Drafts
    from edge_client.network.channel import VerifierChannel

PROMPT = "The weather report for tomorrow says that"
STEPS = 64
"""Most timed draft steps; a step takes milliseconds."""

LONGEST = 60.0
"""Time limit of a child in seconds: a large draft from a slow disk, and two short texts."""

SLOW_STEP = 50.0  # ms; few targets take longer for a step of theirs


@dataclass(frozen=True, slots=True)
class ChildQuestion:
    """Sets the child's work. An empty path: only llama.cpp's system report; an empty address: no texts."""

    path: str = ""
    context: int = 2048
    threads: int = 0
    gpu_layers: int | None = None
    address: str = ""
    tls: TlsSettings | None = None
    tokens: int = 64  # of each text

    def as_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ChildQuestion:
        tls = fields["tls"]
        if tls is not None:
            files = {name: Path(each) for name, each in tls.items() if each and name != "server_name"}
            tls = TlsSettings(**files, server_name=tls["server_name"])
        return cls(**{**fields, "tls": tls})


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Holds the child's report, by stage."""

    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plain: Mapping[str, Any] | None = None  # the text without drafts
    drafted: Mapping[str, Any] | None = None  # the text with them
    end: str = ""  # what went wrong, in words

    def number(self, stage: str, name: str) -> float | None:
        value = self.stages.get(stage, {}).get(name)
        return float(value) if isinstance(value, int | float) else None


def find_file(draft: DraftSection) -> tuple[str, Finding]:
    """Return the draft's file, or "" if its name, content or hash is wrong, and a finding about it."""
    if not draft.model:
        said = "no draft model is configured, and the daemon does not start without one"
        return "", fail("draft file", said, "give --draft FILE, or set draft.model")
    try:
        path = find_model(draft.model, draft.sha256)
    except ForerunError as error:
        return "", fail("draft file", str(error))
    return path, ok("draft file", f"{path}, {Path(path).stat().st_size / 1e6:.1f} MB")


def ask_child(asked: ChildQuestion, longest: float = LONGEST) -> DraftReport:
    """Run the child to its end, even if it crashes, and return its report."""
    command = [sys.executable, "-m", "forerun.doctor.draft"]
    try:
        done = subprocess.run(
            command, input=asked.as_json(), capture_output=True, text=True, check=False, timeout=longest
        )
    except subprocess.TimeoutExpired as error:
        told = _read((error.stdout or b"").decode("utf-8", "replace"))  # bytes, whatever `text` says
        return replace(told, end=f"it took longer than {longest:g} s")
    told = _read(done.stdout)
    if told.end or done.returncode == 0:
        return told
    if done.returncode < 0:
        return replace(told, end=f"it was ended by {signal.Signals(-done.returncode).name}")
    last = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
    return replace(told, end=f"it failed: {last[0]}")


def check_child(asked: ChildQuestion, told: DraftReport) -> list[Finding]:
    """Return findings of the child's report; without a file only the processor's."""
    system = told.stages.get("system")
    findings = (
        [check_processor(str(system["info"]))]
        if system is not None
        else [fail("processor", f"llama.cpp cannot be loaded: {told.end}", "pip install 'forerun[edge]'")]
    )
    if not asked.path or system is None:
        return findings
    loaded = told.stages.get("loaded")
    if loaded is None:
        return [*findings, fail("draft loads", told.end, "fetch it again, or choose another draft")]
    kind = loaded["description"].replace(" ?B", "")  # llama.cpp's words for a size that it has no name for
    findings.append(ok("draft loads", f"{kind}, in {loaded['seconds']:.1f} s"))
    return [*findings, *_steps(told), *_tokens(asked, told), *_texts(told)]


def _steps(told: DraftReport) -> list[Finding]:
    step = told.number("steps", "step_ms")
    if step is None:
        return [fail("draft step", told.end)]
    if step > SLOW_STEP:
        advice = "use a smaller draft, fewer bits, or other --threads (fewer if a verifier runs here, too)"
        return [warn("draft step", f"{step:.1f} ms", advice)]
    return [ok("draft step", f"{step:.1f} ms")]


def _tokens(asked: ChildQuestion, told: DraftReport) -> list[Finding]:
    if not asked.address:
        return [skip("tokenizer", "no verifier answers to compare with")]
    check = told.stages.get("tokens")
    if check is None:
        return [fail("tokenizer", told.end)]
    return [(ok if check["same"] else fail)("tokenizer", str(check["words"]))]


def _texts(told: DraftReport) -> list[Finding]:
    """Return findings about the texts of the target."""
    plain, drafted = told.plain, told.drafted
    if plain is None:
        compared = told.stages.get("tokens", {}).get("same")
        return [fail("texts", told.end)] if compared and told.end else []
    words = (
        f"{plain['ms_per_token']:.1f} ms per token streamed, a target step takes {plain['step_ms']:.1f} ms"
    )
    if drafted is None:
        return [warn("texts", f"{words}; with drafts: {told.end or 'no text came'}")]
    same = "the same text" if plain["tokens"] == drafted["tokens"] else "another text (a near-tie)"
    return [ok("texts", f"{words}; {drafted['ms_per_token']:.1f} ms with drafts, {same}")]


def _read(output: str) -> DraftReport:
    stages, texts, end = dict[str, Mapping[str, Any]](), dict[bool, Mapping[str, Any]](), ""
    for line in output.splitlines():
        try:
            stage_told = json.loads(line)
            stage = stage_told.pop("stage")
        except (ValueError, KeyError, AttributeError):
            continue  # a library's own output
        if stage == "text":
            texts[bool(stage_told["drafted"])] = stage_told
        elif stage == "error":
            end = str(stage_told["words"])
        else:
            stages[stage] = stage_told
    return DraftReport(stages, texts.get(False), texts.get(True), end)


# The child --------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the child: load the draft, time it, and let the target write with it."""
    asked = ChildQuestion.from_json(json.load(sys.stdin))
    try:
        _run(asked)
    except ForerunError as error:
        _tell("error", words=str(error))


def _run(asked: ChildQuestion) -> None:
    from common.llama.library import library, offloaded_layers

    _tell("system", info=library().llama_print_system_info().decode())
    if not asked.path:
        return
    from common.llama.runtime import LlamaRuntime
    from edge_client.core.draft_times import DraftTimes
    from edge_client.draft.measure_pace import measure_pace

    began = time.monotonic()
    settings = LlamaSettings(
        asked.path,
        n_ctx=asked.context,
        threads=asked.threads,
        gpu_layers=offloaded_layers(asked.gpu_layers),
    )
    with LlamaRuntime(settings) as runtime:
        _tell("loaded", description=runtime.description, seconds=time.monotonic() - began)
        pace = DraftTimes()
        measure_pace(runtime).teach(pace)
        prompt = tuple(runtime.tokenize(PROMPT, True))
        _tell("steps", **_draft_steps(runtime, prompt, prompt))
        if asked.address:
            asyncio.run(_with_verifier(asked, runtime, pace, prompt))


def _draft_steps(runtime: LlamaRuntime, prompt: tuple[int, ...], text: tuple[int, ...]) -> dict[str, Any]:
    """Draft along `text` after `prompt`, a step a token. Return the step time, and how often the best
    candidate was the text's next token."""
    from edge_client.core.effects import DraftRow, Reroot
    from edge_client.draft.group import DraftGroup, MemberDrafter

    runtime.clear()
    drafter = MemberDrafter(DraftGroup(runtime, 1))
    way = [*prompt, *text]
    drafter.start(prompt, 1, SamplingParams())
    times, right = list[float](), 0
    for number, place in enumerate(range(len(prompt) - 1, min(len(way) - 1, len(prompt) + STEPS)), 1):
        began = time.perf_counter()
        (expansion,) = drafter.expand([DraftRow(number, None, way[place], place)])
        times.append(time.perf_counter() - began)
        right += bool(expansion.tokens) and expansion.tokens[0] == way[place + 1]
        drafter.reroot(Reroot(((number + 1, way[place + 1]),), ()))
    return {"step_ms": median(times[1:] or times) * 1e3, "right": right, "of": len(times)}


async def _with_verifier(
    asked: ChildQuestion, runtime: LlamaRuntime, pace: DraftTimes, prompt: tuple[int, ...]
) -> None:
    from edge_client.draft.seats import DraftPool
    from edge_client.network.channel import VerifierChannel

    async with VerifierChannel(asked.address, tls=asked.tls) as channel:
        vocabulary = Vocabulary(runtime.token_table())
        if not await _compare(vocabulary, channel):
            return
        await channel.describe()  # the second answer shows the round trip, the first followed a handshake
        plain = await _write(asked, vocabulary, channel, prompt, None, pace)
        _tell("text", drafted=False, **plain)
        _tell("rank", **_draft_steps(runtime, prompt, tuple(plain["tokens"])))
        runtime.clear()
        async with DraftPool(runtime, seats=1) as pool:
            drafted = await _write(asked, vocabulary, channel, prompt, pool.seat(), pace)
        _tell("text", drafted=True, **drafted)


async def _compare(vocabulary: Vocabulary, channel: VerifierChannel) -> bool:
    told = await channel.describe()
    same = told.fingerprint == vocabulary.fingerprint
    words = f"{vocabulary.num_tokens} tokens, fingerprint {vocabulary.fingerprint.hex()[:16]}"
    if not same:
        words = await channel.explain_mismatch(vocabulary)
    _tell("tokens", same=same, words=words)
    return same


async def _write(
    asked: ChildQuestion,
    vocabulary: Vocabulary,
    channel: VerifierChannel,
    prompt: tuple[int, ...],
    drafts: Drafts | None,
    pace: DraftTimes,
) -> dict[str, Any]:
    """Write a greedy text by the target, with drafts or without."""
    from edge_client.core.effects import SessionConfig
    from edge_client.core.policies import make_policy
    from edge_client.core.session import EdgeSession
    from edge_client.network.generation import Generation

    sampling = SamplingParams(max_tokens=asked.tokens, ignore_eos=True)
    name = f"doctor-{'drafts' if drafts else 'plain'}"
    config = SessionConfig(
        prompt,
        sampling,
        vocabulary.fingerprint,
        session_id=name,
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
    stats = session.stats
    return {
        "tokens": tokens,
        "ms_per_token": (arrivals[-1] - arrivals[0]) * 1e3 / max(1, len(arrivals) - 1) if arrivals else 0.0,
        "step_ms": stats.compute_time * 1e3 / max(1, stats.target_steps),
        "accepted": stats.accepted,
    }


def _tell(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


if __name__ == "__main__":
    main()
