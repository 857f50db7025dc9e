"""Implements `forerun edge`: `complete` writes one completion; `pipe` serves JSON requests on stdin."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.acceptance import make_acceptance
from common.errors import ForerunError, PeerError, UnavailableError, UserError
from common.messages import FinishReason
from common.privacy import LEVELS, Privacy
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.draft.prior_file import read_priors
from edge_client.formats.detokenizer import TokenOrigin, spelled
from edge_client.process.paths import find_paths
from edge_client.texts.events import (
    ModeChanged,
    NoteAdded,
    PreviewAdded,
    PreviewWithdrawn,
    TextAdded,
    TextEvent,
)
from edge_client.texts.text_request import TextRequest, Writer
from forerun.chat.display import legend, new_display, stats_line
from forerun.commands import config, daemon, process, service
from forerun.options import (
    REQUIRED,
    RULES_IN_WORDS,
    CoreOption,
    DraftOptions,
    SamplingOptions,
    add_command,
    option,
    pin_to_core,
    read_prompt,
)
from forerun.terminal import Painter, note

if TYPE_CHECKING:
    from edge_client.network.client_tls import TlsSettings
    from edge_client.texts.text_service import TextService

COMPLETE = """\
Write one completion without the daemon: draft on this device, let the verifier decide, and show the text as
it is committed.

  forerun edge complete --verifier 127.0.0.1:50051 --draft lab/demo_models/draft/draft-q8_0.gguf \\
      --prompt 'def is_palindrome(text' --max-tokens 80"""

PIPE = """\
Serve requests one after the other, without the daemon: one JSON object a line on standard input, JSON events
on standard output.

  request: {"prompt": "text", "policy": "adaptive", "recall": true, "acceptance": "coupled",
            "sampling": {"max_tokens": 64, "temperature": 0.8, "seed": 1}}
  "ahead": true asks also for {"event": "ahead", "text": ...}: what the draft has ready behind the text now.
  events:  {"event": "ready"}, then for each request {"event": "text", "text": ..., "drafted": true}, ... and
           {"event": "done", "tokens": [...], "arrivals_ms": [...], ...}, or {"event": "error", ...}

  If no server answers for a second (and --offline is not wait), the draft's own guess is shown:
           {"event": "mode", "mode": "device-only", "why": ...},
           {"event": "preview", "start": 12, "pieces": ["a", "b"]}, the pieces of tokens 12 and 13;
           {"event": "withdraw", "start": 13}: the guess from token 13 on is void.
  A text event replaces the guess's first piece. "error" carries the text and the guess so far.

The policy "device" uses no verifier: the text is the draft model's own, and may differ from the target's."""

DEVICE = "device"
"""Name requested like a policy for a text that is written on the device alone."""

MAX_ATTEMPTS = 8
"""Reconnects in a row without text before a command gives up: about 20 seconds of pauses."""

LOOK_EVERY = 0.03
"""Seconds between two looks at what the draft has ready. A screen shows no more."""

DRAWN_AHEAD = (
    "this acceptance rule uses only drafts that arrive in time, and most drafts sent ahead arrive late. "
    "Give --policy sync:K to wait for drafts, or use --acceptance coupled (docs/acceptance.md)"
)
"""Note shown when a rule that draws is combined with a policy that runs ahead."""

SWITCH = argparse.BooleanOptionalAction


TLS = "TLS"


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Declares trusted CAs, the edge's own identity, and whether plain text may leave the machine."""

    tls: bool = option(False, "use TLS; the system's CAs are trusted unless --tls-ca is given", group=TLS)
    tls_ca: Path | None = option(None, "PEM file with the verifier's CA", "FILE", group=TLS)
    tls_cert: Path | None = option(None, "PEM file with this edge's certificate", "FILE", group=TLS)
    tls_key: Path | None = option(None, "PEM file with the private key of --tls-cert", "FILE", group=TLS)
    tls_name: str = option("", "name in the verifier's certificate (default: the host)", "NAME", group=TLS)
    token_file: Path | None = option(None, "file with a token, sent only over TLS", "FILE", group=TLS)
    insecure: bool = option(False, "allow unencrypted traffic to another machine", group=TLS)

    @property
    def channel_tls(self) -> TlsSettings | None:
        """Return the TLS settings; None for plain text. Raise `UserError`."""
        from edge_client.network.client_tls import TlsSettings

        found = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_name, self.token_file)
        if not (self.tls or any(found)):
            return None
        if self.insecure:
            raise UserError("--insecure allows plain text, but other options request TLS; give one")
        return TlsSettings(*found)


@dataclass(frozen=True, kw_only=True)
class PipeOptions(TlsOptions, CoreOption, DraftOptions):
    """Declares the verifier, the draft model, and how both are used."""

    verifier: str = option(REQUIRED, "address of `forerun verify`", "HOST:PORT")
    privacy: str = option(
        Privacy.PADDED.title,
        "privacy of message sizes; the verifier may require padded (default: %(default)s; docs/privacy.md)",
        choices=LEVELS,
    )
    draft: str = option(REQUIRED, "draft model: GGUF file or hf://organisation/repository/file.gguf", "PATH")
    small_draft: str = option("", "smaller model in front of the draft model (docs/edge.md)", "PATH")
    recall: bool = option(True, "propose tokens copied from earlier in the same text", action=SWITCH)
    remember: int = option(262144, "newest tokens of all texts, kept for --recall; 0: none", "N")
    index: tuple[str, ...] = option((), "index of `forerun index`, from which --recall proposes", "NAME")
    drafting: bool = option(True, "load the draft model; without it only --recall proposes", action=SWITCH)
    offline: str = option(
        "preview",
        "behaviour while no server answers: preview shows the draft's own guess, wait shows nothing",
        choices=("preview", "wait"),
    )
    prior: Path | None = option(None, "file of `forerun fit` with the initial trust in the draft", "FILE")

    @property
    def previews(self) -> bool:
        """Tell whether the draft's own guess is shown while no server answers."""
        return self.offline == "preview"


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(PipeOptions, SamplingOptions):
    """Declares the options of one completion."""

    prompt: str | None = option(None, "the prompt (default: standard input)", "TEXT", either="prompt")
    prompt_file: str | None = option(None, "UTF-8 file with the prompt", "FILE", either="prompt")
    policy: str = option(
        "adaptive", "growth policy: adaptive, tree, chain, sync:K, off or a published scheme"
    )
    acceptance: str = option(
        "coupled",
        f"acceptance rule: {RULES_IN_WORDS} (default: %(default)s; docs/acceptance.md)",
        "RULE",
    )
    json: bool = option(False, "print one JSON object at the end instead of text")


def add_parser(commands: Any) -> None:
    words = "run the daemon on this device: it drafts for verifiers and serves an API to local programs"
    parser = add_command(commands, "edge", words, description=daemon.DESCRIPTION)
    daemon.add_options(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_command(actions, "complete", "write one completion", _complete, CompleteOptions, COMPLETE)
    add_command(actions, "pipe", "serve JSON requests on standard input", _pipe, PipeOptions, PIPE)
    for module in (process, config, service):
        module.add_actions(actions)


# complete ---------------------------------------------------------------------------------------------------


def _complete(options: CompleteOptions) -> int:
    return asyncio.run(_write_one(options))


async def _write_one(options: CompleteOptions) -> int:
    sampling, policy = options.sampling, make_policy(options.policy)
    acceptance = make_acceptance(options.acceptance)
    prompt = read_prompt(options.prompt, options.prompt_file)
    if acceptance.draws(sampling.greedy) and policy.fill and policy.name != "off":
        note(DRAWN_AHEAD)
    painter = Painter(sys.stdout)
    async with _texts(options, note) as (texts, greeting):
        if greeting:
            note(greeting)
        asked: dict[str, Any] = {
            "policy": options.policy,
            "recall": options.recall,
            "drafting": options.drafting,
        }
        request = _request(options, texts, prompt, sampling=sampling, acceptance=acceptance, **asked)
        if not options.json:
            note(legend(painter))
        take = (lambda event: None) if options.json else new_display(painter, origin=True).take
        record, error = await write_text(texts, request, take)
    if options.json:
        print(json.dumps(record))
    elif error is None or record["tokens"] or record["preview"]["tokens"]:
        _, figures = texts.recent[-1]
        print(f"\n{painter.dim(stats_line(figures.as_json()))}")
        if count := len(record["preview"]["tokens"]):
            note(f"{count} more tokens are the draft's own guess, which no server has confirmed")
    if error is not None:
        raise error
    return 0


# pipe -------------------------------------------------------------------------------------------------------


def _pipe(options: PipeOptions) -> int:
    asyncio.run(_serve(options))
    return 0


async def _serve(options: PipeOptions) -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read_lines() -> None:
        """Run in a daemon thread, because a blocked read cannot be cancelled."""
        for line in iter(sys.stdin.readline, ""):
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    async with _texts(options) as (texts, greeting):
        found = texts.verifiers.best()
        positions = 0 if found is None else found.max_positions
        _print("ready", model_positions=positions, **({"note": greeting} if greeting else {}))
        threading.Thread(target=read_lines, name="stdin", daemon=True).start()
        while line := await lines.get():
            try:
                await _serve_line(texts, line, options)
            except ForerunError as error:
                _print("error", message=str(error), code=error.code.value)


async def _serve_line(texts: TextService, line: str, options: PipeOptions) -> None:
    try:
        asked = json.loads(line)
        request = _request(
            options,
            texts,
            asked["prompt"],
            sampling=SamplingParams(**asked.get("sampling", {})),
            policy=asked.get("policy", "adaptive"),
            acceptance=make_acceptance(asked.get("acceptance", "coupled")),
            **{key: bool(asked.get(key, getattr(options, key))) for key in ("recall", "drafting")},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this request is not valid ({error}): {line.strip()[:200]}") from error
    async with _shown(texts, request, ahead=bool(asked.get("ahead", False))) as take:
        record, failure = await write_text(texts, request, take)
    if failure is None:
        _print("done", **record)
    elif request.policy == DEVICE:
        raise failure
    else:
        told = {key: record[key] for key in ("tokens", "text", "preview")}
        _print("error", message=str(failure), code=failure.code.value, **told)


@contextlib.asynccontextmanager
async def _shown(
    texts: TextService, request: TextRequest, *, ahead: bool
) -> AsyncIterator[Callable[[TextEvent], None]]:
    """Yield what prints each event. With `ahead` also print what the draft has ready behind the text."""
    if not ahead:
        yield _print_event
        return
    before = ""

    def look() -> None:
        nonlocal before
        now = _ahead(texts, request)
        if now != before:
            _print("ahead", text=now)
            before = now

    def take(event: TextEvent) -> None:
        nonlocal before
        _print_event(event)
        if isinstance(event, TextAdded):
            before = ""  # the text stands where it stood
            look()

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(LOOK_EVERY)

    watching = asyncio.create_task(watch())
    try:
        yield take
    finally:
        watching.cancel()


def _ahead(texts: TextService, request: TextRequest) -> str:
    """Return the draft's likeliest continuation of a text, up to an end token."""
    from edge_client.network.generation import Generation

    live = texts.live.get(request.id)
    run = None if live is None else live.answer.run
    if live is None or not isinstance(run, Generation):
        return ""
    tokens = run.session.tree.likeliest()
    return spelled(texts.words, takewhile(lambda token: token not in live.answer.ends, tokens))


def _print_event(event: TextEvent) -> None:
    match event:
        case TextAdded():
            for span in event.spans:
                _print("text", text=span.text, drafted=span.origin is not TokenOrigin.SERVER)
        case PreviewAdded():
            _print("preview", start=event.start, pieces=event.texts)
        case PreviewWithdrawn():
            _print("withdraw", start=event.start)
        case ModeChanged():
            _print("mode", mode=event.mode, why=event.why)
        case NoteAdded():
            note(event.words)


def _print(name: str, **fields: Any) -> None:
    """Print one event for the program at the other end of the pipe."""
    print(json.dumps({"event": name, **fields}), flush=True)


# both -------------------------------------------------------------------------------------------------------


def _request(
    options: PipeOptions, texts: TextService, prompt: str, *, policy: str, drafting: bool, **more: Any
) -> TextRequest:
    """Raise `UserError` for a request that this edge cannot serve."""
    writer = Writer.DRAFT if policy == DEVICE else Writer.SPLIT
    request = TextRequest(
        tuple(texts.words.tokenize(prompt, True)),
        id=f"edge-{secrets.token_hex(5)}",  # session ids are to differ between devices
        writer=writer,
        policy=policy,
        drafting=drafting or writer is Writer.DRAFT,
        revises=options.previews,
        **more,
    )
    if writer is Writer.SPLIT:
        make_policy(policy)
    if request.drafts and not texts.can_draft:
        raise UserError("no draft model is loaded here; start the edge without --no-drafting")
    return request


async def write_text(
    texts: TextService, request: TextRequest, take: Callable[[TextEvent], None]
) -> tuple[dict[str, Any], ForerunError | None]:
    """Write a text to its end. Return its record, and the error that ended it or None.

    `take` gets each event. `arrivals_ms` are the tokens' times of arrival in milliseconds since the request.
    `preview` is the draft's own guess at the end, if no server came back. The record of a text by the draft
    model alone has fewer fields.
    """
    from edge_client.formats.detokenizer import TextDecoder
    from edge_client.network.generation import Generation

    began, arrivals = time.monotonic(), list[float]()
    error: ForerunError | None = None
    async with texts.writing(request) as live:
        answer = live.answer
        try:
            async for event in answer.events():
                arrivals += [(time.monotonic() - began) * 1e3] * len(answer.since(len(arrivals)).tokens)
                take(event)
        except ForerunError as caught:
            error = caught
        for words in live.before:  # why nothing was drafted
            take(NoteAdded(words))
    run, decoder = answer.run, TextDecoder(texts.words)
    record: dict[str, Any] = {"tokens": answer.tokens, "text": decoder.feed(answer.tokens)}
    ends = {"arrivals_ms": arrivals, "ended": _reason_in_words(answer.finish)}
    assert run is not None, "it has written, or failed"
    if not isinstance(run, Generation):
        count = len(answer.tokens)  # of which the draft model is the only judge
        stats = replace(run.stats, committed=count, accepted=count)
        return {**record, **ends, "stats": asdict(stats)}, error
    session = run.session
    if session.text != answer.tokens or session.preview != answer.preview:
        raise PeerError("the text shown is not the session's; please report this") from error
    record |= {
        "preview": {"tokens": answer.preview, "text": decoder.feed(answer.preview)},
        **ends,
        "modes": [{"mode": each.mode.value, "why": each.why} for each in run.modes],
        "stats": asdict(session.stats),
        "bytes_up": run.traffic.up,
        "bytes_down": run.traffic.down,
        "smoothed_rtt_ms": (session.view.rtt.smoothed_rtt or 0.0) * 1e3,
        "draft_times": asdict(session.draft_times),
        "target_times": asdict(session.target_times),
    }
    return record if error is None else {**record, "error": str(error)}, error


def _reason_in_words(reason: FinishReason | None) -> str:
    """Describe why a text ended."""
    words = {
        FinishReason.STOP: "a stop token came",
        FinishReason.LENGTH: "the requested number of tokens was reached",
        FinishReason.CANCELLED: "it was stopped here",
        None: "an error ended it",
    }
    return words[reason]


@contextlib.asynccontextmanager
async def _texts(
    options: PipeOptions, progress: Callable[[str], None] = lambda words: None
) -> AsyncIterator[tuple[TextService, str]]:
    """Yield the text service of one draft model and one verifier, and a note for the user or "". Tell of
    slow work by `progress`.

    Raise `UserError` if the draft's tokens are not the verifier's. If the verifier does not answer, start
    with the draft's own guesses (--offline preview), or raise `UnavailableError`.
    """
    from edge_client.draft.draft_models import DraftModels
    from edge_client.network.single import SingleVerifier
    from edge_client.texts.datastore import IndexFiles, place_of
    from edge_client.texts.earlier import EarlierTexts
    from edge_client.texts.text_service import TextService, TextSettings

    previews = options.drafting and options.previews
    settings = TextSettings(
        seats=1,
        patience=1.0 if previews else None,
        first_backoff=0.1,
        max_attempts=MAX_ATTEMPTS,
        max_preview=256,
        privacy=Privacy[options.privacy.upper()],
        priors=None if options.prior is None else read_priors(options.prior),
    )
    llama = options.llama(options.draft)
    async with contextlib.AsyncExitStack() as stack:
        verifier = SingleVerifier(options.verifier, tls=options.channel_tls, insecure=options.insecure)
        await stack.enter_async_context(verifier)
        pin_to_core(options.core)
        paths = find_paths(os.environ)
        small = options.llama(options.small_draft) if options.small_draft else None
        opened = DraftModels(paths, stack).open(
            llama, drafting=options.drafting, seats=1, keep_alive=-1.0, small=small
        )
        vocabulary, greeting = opened.vocabulary, ""
        try:
            await verifier.ask(vocabulary)
        except UnavailableError as error:
            if not previews:
                raise
            greeting = f"{error}; the draft begins alone"
        files = IndexFiles(
            tuple(place_of(each, paths.indexes) for each in options.index), vocabulary.fingerprint
        )
        earlier = EarlierTexts(options.remember) if options.remember else None
        texts = TextService(
            opened.words, vocabulary, verifier, opened.model, settings, indexes=files, earlier=earlier
        )
        if opened.model is not None:
            opened.model.targets.append(lambda: texts.max_positions)
            progress(f"loading the draft model {options.draft}")
            await opened.model.load()
        yield texts, greeting
