"""The routes of the local API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from common.errors import ForerunError, UnavailableError
from edge_client.api import model_lists
from edge_client.api.endpoints import TextEndpoints
from edge_client.api.other_paths import advice
from edge_client.api.pairs import Pairs
from edge_client.api.response import JsonResponse, event_stream, whole
from edge_client.api.security import HEALTH_PATHS, REQUEST, REQUEST_ID, Gate, Guarded
from edge_client.api.stored import MOST, StoredResponses
from edge_client.api.text_streams import TextStreams
from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.api_error import ApiError, api_error, log_refusal, stopping, too_long, wrong
from edge_client.formats.dialect import SSE, Dialect
from edge_client.formats.dialects import PATHS, error_body
from edge_client.formats.fields import MAX_DEPTH, Fields, is_too_deep
from edge_client.formats.json_text import well_formed
from edge_client.formats.responses import Responses
from edge_client.formats.token_requests import read_detokenize, read_template, read_tokenize, tokens_json
from edge_client.texts.resume import Journal, ReplayStream
from edge_client.texts.text_request import Writer

MAX_CONVERSATION_CHARS = 256

OPENAPI = files("edge_client.api") / "openapi.json"

CLIENT_GONE = 499
"""nginx' status of a request whose client went away, for logs only."""

HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches JSON's escape of half a surrogate pair. Two halves in a row are one character, one alone becomes
U+FFFD: nobody can mend what a model or a tool has written, and its conversation would be refused for ever."""

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiSettings:
    gate: Gate
    max_body_bytes: int = 8 * 2**20
    keep: float = 300.0  # seconds to keep a named stream after its end
    limit: float = 600.0  # most seconds of a text
    resumes: bool = True  # whether clients can name streams and read them again


class Api:
    """Holds the application (`app`) and its `routes`.

    `status` returns the content of /v1/status. `ready` returns why requests fail now, or an empty string.
    """

    def __init__(
        self,
        pairs: Pairs,
        settings: ApiSettings,
        status: Callable[[], dict[str, Any]],
        ready: Callable[[], str],
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        journal: Journal | None = None,
        stored: StoredResponses | None = None,
        more: tuple[Route, ...] = (),
    ) -> None:
        self.pairs = pairs
        self.stored = stored or StoredResponses(most=MOST if settings.resumes else 0)
        self.streams = TextStreams(pairs, settings.keep, settings.limit, journal, self.stored.ended)
        self._limit, self._resumes = settings.limit, settings.resumes
        self._stopped = asyncio.Event()
        self._status, self._ready, self._metrics = status, ready, metrics
        self.routes = (*_routes(self._table()), *more)
        handlers: Any = {
            HTTPException: _http_error,
            ApiError: _error,
            ForerunError: _error,
            ClientDisconnect: _gone,
            Exception: _error,
        }
        starlette = Starlette(routes=self.routes, exception_handlers=handlers)
        starlette.router.redirect_slashes = False
        guarded = Guarded(starlette, settings.gate, settings.max_body_bytes, error_body)
        self.app: ASGIApp = CORSMiddleware(  # outside, so that pages can read refusals, too
            guarded,
            allow_origins=settings.gate.origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=REQUEST_ID,
        )

    def stop(self) -> None:
        """End all texts now, with the reason for their clients."""
        self._stopped.set()
        self.streams.stop()

    def _table(self) -> list[tuple[str, str, Endpoint]]:
        return [
            ("GET", "/healthz", self._healthz),
            *(("GET", path, self._health) for path in HEALTH_PATHS),
            ("GET", "/readyz", self._readyz),
            ("GET", "/metrics", self._metrics_page),
            ("GET", "/openapi.json", _openapi),
            ("GET", "/v1/status", _telling(self._status)),
            *(("GET", path, self._models) for path in ("/v1/models", "/v1/models/", "/models")),
            ("GET", "/v1/models/{name:path}", self._model),
            *(("POST", path, partial(self._text, dialect)) for path, dialect in PATHS.items()),
            ("POST", f"{Responses.path}/input_tokens", partial(self._count_tokens, Responses)),
            (
                "POST",
                f"{AnthropicMessages.path}/count_tokens",
                partial(self._count_tokens, AnthropicMessages),
            ),
            ("GET", "/v1/responses/{name}", self._response),
            ("DELETE", "/v1/responses/{name}", self._delete_response),
            ("GET", "/v1/responses/{name}/input_items", self._input_items),
            *(("POST", f"{base}/tokenize", self._tokenize) for base in ("", "/v1")),
            *(("POST", f"{base}/detokenize", self._detokenize) for base in ("", "/v1")),
            *(("POST", f"{base}/apply-template", self._apply_template) for base in ("", "/v1")),
            ("GET", "/v1/stream", self._resume),
            ("DELETE", "/v1/stream", self._delete_stream),
            ("GET", "/v1/sessions", _telling(self._sessions)),
            ("GET", "/api/version", _telling(lambda: {"version": model_lists.OLLAMA_VERSION})),
            ("GET", "/api/tags", _telling(lambda: {"models": model_lists.ollama_list(self.pairs)})),
            ("POST", "/api/show", self._ollama_show),
            ("GET", "/api/ps", _telling(lambda: {"models": model_lists.ollama_running(self.pairs)})),
        ]

    # Texts ------------------------------------------------------------------------------------------------

    async def _text(self, dialect: type[Dialect], request: Request) -> Response:
        asked_at = self.pairs.first.texts.clock()
        name, streams = _conversation(request) if self._resumes else "", self.streams
        last = request.headers.get("last-event-id", "")
        if name and last and (stream := streams.store.get(name)) is not None:
            return _read_again(stream, last)  # a repeated request continues its stream
        body = await _body(request)
        service = await self.pairs.of(body)
        if dialect.asks_nothing(body):
            return JsonResponse(service.nothing(dialect, body))
        body = self.stored.continued(body) if dialect is Responses else body
        spec = replace(await service.read(dialect, body), asked_at=asked_at)
        if not spec.stream:
            response = await self._unless_gone(request, whole(service.texts, spec))
            self.stored.ended(spec, response)
            return JsonResponse(response)
        events = streams.named(name, spec) if name else streams.unnamed(spec)
        return event_stream(events, dialect.media_type)

    async def _unless_gone(self, request: Request, text: Any) -> dict[str, Any]:
        """Return the whole text. Raises `ApiError` if its client goes away before."""
        task = asyncio.ensure_future(text)
        gone = asyncio.ensure_future(_disconnected(request))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            waiting = {task, gone, stopped}
            await asyncio.wait(waiting, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and stopped.done():
                raise stopping()
            if not task.done():
                raise ApiError(CLIENT_GONE, "the client went away") if gone.done() else too_long(self._limit)
            response: dict[str, Any] = task.result()
            return response
        finally:
            gone.cancel()
            stopped.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    # Streams that are read again --------------------------------------------------------------------------

    async def _resume(self, request: Request) -> Response:
        stream = self.streams.store.get(_named(request))
        if stream is None:
            raise ApiError(404, "there is no such stream, or it is no longer kept", code="stream_not_found")
        if last := request.headers.get("last-event-id", ""):
            return _read_again(stream, last)
        start = _whole("from", request.query_params.get("from", "0"))
        stream.check(start)
        return event_stream(stream.read(start), stream.kind.media_type)

    async def _delete_stream(self, request: Request) -> Response:
        await self.streams.store.remove(_named(request))
        return Response(status_code=204)

    # Responses that are kept ------------------------------------------------------------------------------

    async def _response(self, request: Request) -> Response:
        response, query = self.stored.get(request.path_params["name"]), request.query_params
        if query.get("stream") != "true":
            return JsonResponse(response)
        seen = query.get("starting_after")
        begin = 0 if seen is None else _whole("starting_after", seen) + 1
        return Response(b"".join(Responses.again(response)[begin:]), media_type=SSE)

    async def _delete_response(self, request: Request) -> Response:
        self.stored.remove(name := request.path_params["name"])
        return JsonResponse({"id": name, "object": "response", "deleted": True})

    async def _input_items(self, request: Request) -> Response:
        items = self.stored.input_items(request.path_params["name"])
        if request.query_params.get("order", "desc") != "asc":  # OpenAI's default
            items.reverse()
        first, last = (items[at]["id"] if items else None for at in (0, -1))
        told = {"object": "list", "data": items, "has_more": False}
        return JsonResponse({**told, "first_id": first, "last_id": last})

    # Models and tokens ------------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        await self.pairs.heard()
        models = self.pairs.models()
        if model_lists.CODEX_VERSION in request.query_params:
            rows = enumerate(models.items())
            cards = [
                model_lists.codex_card(name, at, pair.texts.max_positions) for at, (name, (pair, _)) in rows
            ]
            return JsonResponse({"models": cards})
        cards = [_card(request, name, *each) for name, each in models.items()]
        if model_lists.ANTHROPIC_VERSION in request.headers:
            return JsonResponse(model_lists.anthropic_list(cards))
        return JsonResponse({"object": "list", "data": cards})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self.pairs.heard()
        service = await self.pairs.of({"model": name})
        name, writer = service.writer(name)
        return JsonResponse(_card(request, name, service, writer))

    async def _count_tokens(self, dialect: type[Dialect], request: Request) -> Response:
        body = await _body(request)
        service = await self.pairs.of(body)
        body = self.stored.continued(body) if dialect is Responses else body
        kind = {"object": "response.input_tokens"} if dialect is Responses else {}
        return JsonResponse({**kind, "input_tokens": await service.count_tokens(dialect, body)})

    async def _tokenize(self, request: Request) -> Response:
        asked, service = await self._read(request, read_tokenize)
        tokens = await service.tokens(asked)
        return JsonResponse(await asyncio.to_thread(tokens_json, asked, service.texts.words, tokens))

    async def _detokenize(self, request: Request) -> Response:
        tokens, service = await self._read(request, read_detokenize)
        return JsonResponse({"content": await service.detokenize(tokens)})

    async def _apply_template(self, request: Request) -> Response:
        chat, service = await self._read(request, read_template)
        return JsonResponse({"prompt": await service.render(chat)})

    async def _read(self, request: Request, read: Callable[[Fields], T]) -> tuple[T, TextEndpoints]:
        """Return what `read` takes from a request's fields, and the pair that its `model` names."""
        body = await _body(request)
        fields = Fields(body)
        asked = read(fields)
        fields.finish()
        return asked, await self.pairs.of(body)

    async def _ollama_show(self, request: Request) -> Response:
        name = model_lists.read_name(Fields(await _body(request)))
        service = await self.pairs.of({"model": name})
        return JsonResponse(model_lists.ollama_model(service, name))

    # The daemon -------------------------------------------------------------------------------------------

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _health(self, request: Request) -> Response:
        if why := self._ready():
            raise UnavailableError(why)
        return JsonResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        why = self._ready()
        return PlainTextResponse(f"{why or 'ready'}\n", status_code=503 if why else 200)

    async def _metrics_page(self, request: Request) -> Response:
        if self._metrics is None:
            raise ApiError(404, "metrics are off; set api.metrics to serve them", code="not_found")
        page, kind = self._metrics()
        return Response(page, media_type=kind)

    def _sessions(self) -> dict[str, Any]:
        sessions = [
            {
                "id": name,
                **({"pair": service.pair} if service.pair else {}),
                "client": live.client,
                "verifier": live.answer.run.verifier if live.answer.run is not None else "",
                "prompt": len(live.answer.request.prompt),
                **live.answer.figures.as_json(),
            }
            for service in self.pairs
            for name, live in service.texts.live.items()
        ]
        return {"sessions": sessions, "waiting": self.pairs.admission.num_waiting}


def _routes(table: Iterable[tuple[str, str, Endpoint]]) -> list[Route]:
    """Return one route for each path, whose refusal of a method names all others."""
    paths = dict[str, dict[str, Endpoint]]()
    for method, path, endpoint in table:
        paths.setdefault(path, {})[method] = endpoint
    return [Route(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]


def _by_method(endpoints: Mapping[str, Endpoint]) -> Endpoint:
    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return answer


def _card(request: Request, name: str, service: TextEndpoints, writer: Writer) -> dict[str, Any]:
    """Return a model as the request's client reads it."""
    if model_lists.ANTHROPIC_VERSION in request.headers:
        return model_lists.anthropic_card(name, service.texts.max_positions)
    return model_lists.openai_card(name, service, writer)


async def _openapi(request: Request) -> Response:
    """Return the API's description, which `make generate` writes (lab/tools/openapi.py)."""
    return Response(OPENAPI.read_bytes(), media_type="application/json")


async def _error(request: Request, error: Exception) -> Response:
    """Return the error in the endpoint's shape. A defect also reaches uvicorn, which logs it."""
    refusal = api_error(error)
    log_refusal(request.method, request.url.path, refusal, request.scope[REQUEST])
    return JsonResponse(error_body(request.url.path, refusal), refusal.status, refusal.headers)


async def _gone(request: Request, error: Exception) -> Response:
    """End a request whose client left in the middle of its body."""
    return Response(status_code=CLIENT_GONE)


def _telling(what: Callable[[], dict[str, Any]]) -> Endpoint:
    """Return the endpoint of an object that no request changes."""

    async def tell(request: Request) -> Response:
        return JsonResponse(what())

    return tell


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    what = f"{request.method} {request.url.path}"
    said = {
        404: ("there is no such path", "not_found"),
        405: ("this path does not allow the request's method", "wrong_method"),
    }
    words, code = said.get(error.status_code, (error.detail, None))
    refusal = ApiError(error.status_code, f"{what}: {words}", code=code)
    if code is not None and (hint := advice(request.url.path)):
        refusal = ApiError(404, f"{what} is not supported here: {hint}", code="unsupported_endpoint")
    log_refusal(request.method, request.url.path, refusal, request.scope[REQUEST])
    return JsonResponse(error_body(request.url.path, refusal), refusal.status, error.headers)


async def _body(request: Request) -> dict[str, Any]:
    """Return a request's JSON object. Raises `ApiError`."""
    if (coding := request.headers.get("content-encoding", "").lower()) not in ("", "identity"):
        words = f"Content-Encoding {coding[:40]!r} is not read here; send the body as plain JSON"
        raise ApiError(415, words, code="unsupported_encoding")
    raw = await request.body()
    try:
        text = raw.decode(json.detect_encoding(raw))
        body = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are not UTF-8
        raise ApiError(400, f"the body is not JSON: {error}"[:300], code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if is_too_deep(body):
        words = f"the body is nested too deeply: at most {MAX_DEPTH} lists and objects within each other"
        raise ApiError(400, words, code="invalid_json")
    whole: dict[str, Any] = well_formed(body) if HALF_A_PAIR.search(text) else body
    return whole


def _conversation(request: Request) -> str:
    """Return the stream's name, in UTF-8 as in `conv_id`. Starlette reads headers as Latin-1."""
    header = "X-Conversation-Id"
    try:
        name = request.headers.get(header, "").encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise wrong(header, f"{header} is not UTF-8; send UTF-8 or ASCII") from error
    if len(name) > MAX_CONVERSATION_CHARS:
        raise wrong(header, f"{header} has more than {MAX_CONVERSATION_CHARS} characters")
    return name


def _named(request: Request) -> str:
    if name := request.query_params.get("conv_id", ""):
        return name
    raise wrong("conv_id", "conv_id is missing")


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise wrong(name, f"{name} is {text[:40]!r}; it must be a whole number of at least 0")
    return int(text)


def _read_again(stream: ReplayStream, last: str) -> Response:
    """Return the events after `last`, the last event that the client has seen."""
    start = stream.offset_after(_whole("Last-Event-ID", last))
    return event_stream(stream.read(start), stream.kind.media_type)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
