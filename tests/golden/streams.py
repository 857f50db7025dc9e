"""What each endpoint streams: ten scripted texts in all dialects, a completion and an infill."""

import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx

from common.messages import FinishReason
from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.api.app import Api, ApiSettings
from edge_client.api.endpoints import Defaults
from edge_client.api.pairs import Pairs
from edge_client.api.security import Gate
from edge_client.core.effects import ChangeMode, Emit, Mode, ModeStatus, SessionStats, Shown, Traffic
from edge_client.network.channel import VerifierChannel
from edge_client.texts.figures import SessionRun
from edge_client.texts.text_request import TextRequest
from edge_client.texts.text_service import TextService, TextSettings
from tests.clients.answers import CITY, call
from tests.clients.scripted import MODEL, TABLE, THINKING, Bytes, newest
from tests.edge_client.api.world import Filling, OneVerifier

WEATHER = call("weather", city="Ulm")
ANSWERS = {
    "plain": "Hello, I am here.",
    "empty": "",
    "letters of many bytes": "¿Qué tal? 🙂 数据",
    "markup": "```python\nprint('<a>')\n```\n",
    "thought": "<think>\nI ponder.\n</think>\n\nI look.",
    "call": WEATHER,
    "text and call": f"I look.\n{WEATHER}",
    "two calls": f"{WEATHER}\n{call('weather', city='Bern')}",
    "no call": '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    "schema": json.dumps(CITY),
}
"""By what is asked."""

CITY_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "inhabitants": {"type": "integer"}},
    "required": ["name", "inhabitants"],
    "additionalProperties": False,
}
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Returns the weather.", "parameters": ARGUMENTS}

CHANGING = re.compile(
    r'("(?:[a-z_]*_(?:ms|at|duration)|created|seed)": ?)'
    r'(?:-?[0-9.e+-]+|"[^"]*"|null)'
)
"""Fields of time and drawn seeds, which differ from run to run."""

NAMES = re.compile(
    r"\b((?:chatcmpl|cmpl|infill)-|(?:resp|msg|fc|ctc|rs|call|toolu|item|seq)_)"
    r'[0-9A-Za-z]+(?![0-9A-Za-z]|":)'
)
"""Names of texts, items and calls, which are drawn. A key, such as `item_id`, is none."""


def masked(body: str) -> list[str]:
    """Return the lines of a response without what differs from run to run."""
    return [NAMES.sub(r"\1?", CHANGING.sub(r"\1?", line)) for line in body.split("\n") if line]


def bodies(question: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the body of each chat endpoint for one question."""
    messages = [{"role": "user", "content": question}]
    calls, fits = "call" in question, question == "schema"
    usual: dict[str, Any] = {"model": MODEL, "stream": True, "seed": 1}
    tool = {"type": "function", "function": FUNCTION}
    form = {"name": "City", "schema": CITY_SCHEMA, "strict": True}
    chat = {"messages": messages, **usual, **({"tools": [tool]} if calls else {})}
    formed = {"response_format": {"type": "json_schema", "json_schema": form}} if fits else {}
    yield (
        "/v1/chat/completions",
        {**chat, **formed, "max_tokens": 400, "stream_options": {"include_usage": True}},
    )
    text: dict[str, Any] = {"text": {"format": {"type": "json_schema", **form}}} if fits else {}
    tools = [{"type": "function", "strict": False, **FUNCTION}] if calls else []
    yield "/v1/responses", {"input": question, "tools": tools, "max_output_tokens": 400, **text, **usual}
    named = {"name": "weather", "description": FUNCTION["description"], "input_schema": ARGUMENTS}
    yield "/v1/messages", {
        "messages": messages, "max_tokens": 400, "model": MODEL, "stream": True,
        **({"tools": [named]} if calls else {}),
    }  # fmt: skip
    yield "/api/chat", {**chat, "options": {"num_predict": 400}, **({"format": CITY_SCHEMA} if fits else {})}


class ScriptedRun:
    """A `SessionRun` of a given text: one, two or three tokens a Commit, of which the device drafted some."""

    def __init__(self, start: int, tokens: tuple[int, ...]) -> None:
        self.traffic, self.stats = Traffic(), SessionStats(cached=3)
        self.reason: FinishReason | None = None
        self.verifier, self.rtts, self.streaming_time = "127.0.0.1:50051", (0.05, 0.06), 0.03
        self._start, self._tokens = start, tokens

    async def shown(self) -> AsyncGenerator[Shown]:
        at, stats = 0, self.stats
        while at < len(self._tokens):
            tokens = self._tokens[at : at + 1 + at % 3]
            stats.committed, stats.target_steps = at + len(tokens), stats.target_steps + 1
            stats.proposed += len(tokens)
            stats.accepted += len(tokens) - 1
            yield Emit(self._start + at, tokens, 1 << (len(tokens) - 1))
            if at == 4:
                yield ChangeMode(ModeStatus(Mode.SERVER_ONLY, "the script says so"))
            at += len(tokens)


class ScriptedTexts(TextService):
    """Texts by a script, without a verifier."""

    def _begin(self, request: TextRequest, *_: object) -> Callable[[Sequence[int]], SessionRun]:
        prompt = b"".join(TABLE[token] for token in request.prompt).decode()
        answer = ANSWERS.get(newest(prompt).removeprefix("user\n"), ANSWERS["plain"])
        tokens = (*answer.encode(), *Bytes.eos_ids)
        return lambda written: ScriptedRun(
            len(request.prompt) + len(written), tokens[len(written) : request.sampling.max_tokens]
        )


PLAIN: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "stop": ["here"], "max_tokens": 400},
    "/api/generate": {"prompt": "abc", "raw": True},
    "/infill": {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 9},
}
"""Requests of endpoints that need no chat, by path."""


@contextlib.asynccontextmanager
async def scripted_client(service: type[TextService] = ScriptedTexts) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an API whose texts are written by a script."""
    vocabulary = Vocabulary(TABLE)
    description = Description(
        MODEL, len(TABLE), 4096, vocabulary.fingerprint, Bytes.eos_ids, chat_template=THINKING, grammars=True
    )
    verifier = OneVerifier(VerifierChannel("127.0.0.1:1"), description)
    texts = service(Bytes(), vocabulary, verifier, None, TextSettings(), clock=lambda: 100.0)
    api = Api(
        Pairs(Filling(texts, Defaults(), lambda: 1_700_000_000.0)),
        ApiSettings(Gate()),
        status=lambda: {"mode": "server-only"},
        ready=lambda: "",
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(api.app), base_url="http://127.0.0.1"
    ) as client:
        yield client
    await api.streams.close()


async def responses() -> dict[str, list[str]]:
    """Return the masked lines of all responses, by path and text."""
    asked = [(path, question, body) for question in ANSWERS for path, body in bodies(question)]
    asked += [(path, "plain", {**body, "model": MODEL, "stream": True}) for path, body in PLAIN.items()]
    lines = {}
    async with scripted_client() as client:
        for path, question, body in asked:
            answer = await client.post(path, json=body)
            lines[f"{path} {question}"] = [str(answer.status_code), *masked(answer.text)]
    return lines
