"""A daemon's API over a real verifier with the tiny target: each of its seven tokens is one letter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from starlette.routing import Route

from cloud_verifier.core.limits import SchedulerConfig
from common.errors import CapacityError, ForerunError, UserError
from common.sampling import SamplingParams
from common.wire.describe import Description
from edge_client.api.app import Api, ApiSettings
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.api.pairs import Pairs
from edge_client.api.security import Gate
from edge_client.api.stored import StoredResponses
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import (
    Drafted,
    DraftEffect,
    DraftRow,
    Expansion,
)
from edge_client.core.verifier_choice import DraftSkill
from edge_client.formats.infill import Infill, InfillFamily
from edge_client.network.channel import StreamSource, VerifierChannel
from edge_client.texts.device_metrics import metrics_page
from edge_client.texts.earlier import EarlierTexts
from edge_client.texts.resume import Journal
from edge_client.texts.text_service import TextService, TextSettings
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, VOCABULARY, System, running
from tests.worlds.models import VOCAB, TinyDrafter, target_alone
from training.session_drafter import SessionDrafter

LETTERS = "~abcdef"
"""By token id; the first ends a text and is none of it."""

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class Letters:
    """`Words` of the tiny target: texts are spelled in letters, the handshake is by `VOCABULARY`."""

    num_vocab = VOCAB
    eos_ids = EOS
    begin_ids: tuple[int, ...] = ()
    control_texts: tuple[str, ...] = ()

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        return [LETTERS.index(letter) for letter in text if letter in LETTERS[1:]]

    def piece(self, token: int) -> bytes:
        return LETTERS[token].encode()


LETTERED = Letters()


class Filling(TextEndpoints):
    """A target that fills gaps: its letters a, b and c are the tokens around them."""

    infill = Infill(InfillFamily("<P>", "<S>", "<M>"), {"<P>": 1, "<S>": 2, "<M>": 3})


class SlowDrafter(TinyDrafter):
    """The tiny drafter, with steps long enough for something to happen meanwhile."""

    step_time = 0.0

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        time.sleep(self.step_time)
        return super().expand(rows)


class Seats:
    """A `DraftSource` of tiny drafters, each with its own thread."""

    def __init__(self, most: int = 8, blend: float = 0.3, step_time: float = 0.0) -> None:
        self.num_taken = 0
        self.pace = DraftTimes()
        self.loaded = asyncio.Event()  # who comes before waits
        self.loaded.set()
        self.failure: ForerunError | None = None  # of loading
        self.most = most
        self.blend = blend
        self.step_time = step_time

    def choose(self, *, alone: bool) -> Seats:
        return self

    def judge(self, model: object, num_best: int, num_observed: int) -> None:
        pass

    async def prepare(self, grammar: str) -> None:
        raise UserError("a tiny drafter knows no grammars")

    async def acquire(self, prompt: Sequence[int]) -> TinySeat:
        await self.loaded.wait()
        if self.failure is not None:
            raise self.failure
        if self.num_taken >= self.most:
            raise CapacityError("all seats are taken")
        self.num_taken += 1
        drafter = SlowDrafter(blend=self.blend)
        drafter.step_time = self.step_time
        return TinySeat(self, drafter)


class TinySeat:
    """One drafter's."""

    def __init__(self, source: Seats, drafter: SessionDrafter) -> None:
        self._source = source
        self._worker = DrafterThread(drafter)
        self._worker.__enter__()

    def submit(self, effect: DraftEffect, on_drafted: Drafted) -> None:
        self._worker.submit(effect, on_drafted)

    def num_kept(self, tokens: Sequence[int]) -> int:
        return 0

    def release(self) -> None:
        self._worker.__exit__()
        self._source.num_taken -= 1


@dataclass
class OneVerifier:
    """A `VerifierChoice` of one."""

    channel: VerifierChannel
    description: Description | None = None
    spoken: asyncio.Event = field(default_factory=asyncio.Event)  # who asks before that waits
    num_waiting: int = 0  # so far

    async def heard(self, patience: float) -> None:
        if self.description is not None:
            return
        self.num_waiting += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.spoken.wait()

    def route(self, key: str, skill: DraftSkill, target: str) -> StreamSource:
        return self.channel

    def refusal(self) -> ForerunError | None:
        return None

    def best(self) -> Description | None:
        return self.description


@dataclass
class World:
    """A client of the API, and what stands behind it."""

    client: httpx.AsyncClient
    api: Api
    texts: TextService
    system: System
    seats: Seats

    @property
    def verifier(self) -> OneVerifier:
        """The one that the daemon asks."""
        assert isinstance(self.texts.verifiers, OneVerifier)
        return self.texts.verifiers

    def describe(self, **told: Any) -> None:
        """Let the verifier describe itself otherwise."""
        assert self.verifier.description is not None
        self.verifier.description = replace(self.verifier.description, **told)

    async def chat(self, content: str = "abc", **fields: Any) -> dict[str, Any]:
        """A chat completion; it must succeed."""
        return _whole(await self.post_chat(content, **fields))

    async def post_chat(self, content: str = "abc", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": "", "messages": messages, "max_tokens": 20, "temperature": 0, **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "abc", **fields: Any) -> dict[str, Any]:
        """A text completion; it must succeed."""
        return _whole(await self.post(prompt, **fields))

    async def post(self, prompt: Any = "abc", **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, **fields}
        return await self.client.post("/v1/completions", json=body)


def _whole(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def alone(prompt: str = "abc", **sampling: Any) -> str:
    """What the tiny target writes by itself, spelled."""
    params = SamplingParams(**{"max_tokens": 20, **sampling})
    text = target_alone(Letters().tokenize(prompt, True), params, EOS)
    return "".join(LETTERS[token] for token in text if params.ignore_eos or token not in EOS)


@contextlib.asynccontextmanager
async def world(
    gate: Gate | None = None,
    settings: TextSettings | None = None,
    defaults: Defaults | None = None,
    *,
    config: SchedulerConfig | None = None,
    seats: Seats | None = None,
    drafts: bool = True,
    earlier: EarlierTexts | None = None,
    step_time: float = 0.0,
    num_slots: int = 4096,
    words: Letters = LETTERED,
    headers: Mapping[str, str] | None = None,
    max_body_bytes: int = 2**20,
    template: str = TEMPLATE,
    journal: Journal | None = None,
    stored: StoredResponses | None = None,
    resumes: bool = True,
    not_ready: str = "",
    through: Callable[[str], Awaitable[str]] | None = None,
    endpoints: type[TextEndpoints] = TextEndpoints,
    status: Mapping[str, Any] | None = None,
    more: Callable[[TextService], tuple[Route, ...]] = lambda texts: (),
) -> AsyncIterator[World]:
    """Everything in one process, and HTTP without a socket. `through` puts something before the verifier.
    Not `drafts`: the device has no draft model."""
    seats = seats or Seats()
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(running(config, step_time, num_slots=num_slots))
        address = system.address if through is None else await through(system.address)
        channel = await stack.enter_async_context(VerifierChannel(address))
        described = replace(await channel.describe(), chat_template=template)
        texts = TextService(
            words,
            VOCABULARY,
            OneVerifier(channel, described),
            seats if drafts else None,
            settings or TextSettings(),
            earlier=earlier,
        )
        usual = Defaults(draft_name="tiny-draft" if drafts else "")
        service = endpoints(texts, defaults or usual, lambda: 1_700_000_000.0)
        api = Api(
            Pairs(service),
            ApiSettings(gate or Gate(), max_body_bytes=max_body_bytes, resumes=resumes),
            status=lambda: dict(status or {"mode": "ahead"}),
            ready=lambda: not_ready,
            metrics=metrics_page({"": texts}, lambda: {system.address: True}),
            journal=journal,
            stored=stored,
            more=more(texts),
        )
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080", headers=headers, timeout=60
        ) as client:
            yield World(client, api, texts, system, seats)
        await api.streams.close()
    assert texts.live == {}
    assert seats.num_taken == 0


def events_of(text: str) -> list[dict[str, Any]]:
    """The objects of an event stream, which must end as OpenAI's do."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
