"""The routes of the local API."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from common.errors import ForerunError
from edge_client.api.errors import ApiError, api_error, too_long, wrong
from edge_client.api.fields import Fields
from edge_client.api.security import Gate, Guarded
from edge_client.api.service import TextService, read_messages, read_template_settings
from edge_client.api.telling import whole
from edge_client.api.text_streams import TextStreams
from edge_client.daemon.journal import Journal

logger = logging.getLogger(__name__)

MAX_CONVERSATION_CHARS = 256

CLIENT_GONE = 499
"""nginx' status of a request whose client went away; for logs alone."""

HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON escapes one half of a surrogate pair. Two halves that follow each other are one character."""

UNSUPPORTED = {
    "/v1/embeddings": "a draft model is no embedder, and the target only writes",
    "/v1/responses": "use /v1/chat/completions",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/images/generations": "text only",
    "/v1/audio/speech": "text only",
    "/v1/audio/transcriptions": "text only",
    "/v1/moderations": "the target only writes",
    "/v1/rerank": "the target only writes",
    "/v1/files": "nothing is stored",
    "/v1/batches": "send requests one by one; they are queued fairly",
    "/v1/fine_tuning/jobs": "models are trained elsewhere",
    "/api/chat": "use /v1/chat/completions",
    "/api/generate": "use /v1/completions",
    "/completion": "use /v1/completions",
    "/infill": "the target only goes on from a text's end",
}
"""Paths that clients of other daemons know, and what to do here."""

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Of the local API."""

    gate: Gate
    max_body_bytes: int = 8 * 2**20
    keep: float = 300.0  # seconds that a named stream is kept after its end
    limit: float = 600.0  # seconds that a text may take
    resumes: bool = True  # whether streams have names, and so can be read again


class Api:
    """The application (`app`) and what it holds; `routes` are all that it serves. `status` tells what
    /v1/status shows, `ready` why requests cannot be answered now (empty if they can), `metrics` the page."""

    def __init__(
        self,
        service: TextService,
        settings: ApiSettings,
        status: Callable[[], dict[str, Any]],
        ready: Callable[[], str],
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        journal: Journal | None = None,
        more: tuple[Route, ...] = (),
    ) -> None:
        self.service = service
        self.streams = TextStreams(service.device, settings.keep, settings.limit, journal, time.time)
        self._limit, self._resumes = settings.limit, settings.resumes
        self._status, self._ready, self._metrics = status, ready, metrics
        own = [Route(path, _told(endpoint), methods=[method]) for method, path, endpoint in self._table()]
        self.routes = (*own, *more)
        unsupported = [
            Route(path, _told(_refusing(path, hint)), methods=["GET", "POST"])
            for path, hint in UNSUPPORTED.items()
        ]
        handlers: Any = {HTTPException: _http_error, 404: _http_error, 405: _http_error}
        starlette = Starlette(routes=[*self.routes, *unsupported], exception_handlers=handlers)
        starlette.router.redirect_slashes = False
        self.app: ASGIApp = Guarded(starlette, settings.gate, settings.max_body_bytes)

    def _table(self) -> list[tuple[str, str, Endpoint]]:
        return [
            ("GET", "/healthz", self._healthz),
            ("GET", "/readyz", self._readyz),
            ("GET", "/metrics", self._metrics_page),
            ("GET", "/v1/status", self._status_page),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{name:path}", self._model),
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completion),
            ("POST", "/v1/tokenize", self._tokenize),
            ("POST", "/v1/detokenize", self._detokenize),
            ("POST", "/v1/apply-template", self._apply_template),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("POST", "/apply-template", self._apply_template),
            ("GET", "/v1/stream", self._resume),
            ("DELETE", "/v1/stream", self._delete_stream),
            ("POST", "/v1/streams/lookup", self._lookup),
            ("GET", "/v1/sessions", self._sessions),
        ]

    # Texts ------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        return await self._text(request, self.service.chat)

    async def _completion(self, request: Request) -> Response:
        return await self._text(request, self.service.completion)

    async def _text(self, request: Request, read: Any) -> Response:
        name = _conversation(request) if self._resumes else ""
        if (again := self._again(request, name)) is not None:
            return again
        telling, asked = await read(await _body(request))
        if not asked.stream:
            return JSONResponse(await self._unless_gone(request, whole(self.service.device, telling)))
        streams = self.streams
        return _event_stream(streams.named(name, telling) if name else streams.unnamed(telling))

    async def _unless_gone(self, request: Request, text: Any) -> dict[str, Any]:
        """The text, unless its client goes away before it is whole."""
        task = asyncio.ensure_future(text)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            waiting = {task, gone}
            await asyncio.wait(waiting, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ApiError(CLIENT_GONE, "the client went away") if gone.done() else too_long(self._limit)
            found: dict[str, Any] = task.result()
            return found
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    # Streams that are read again --------------------------------------------------------------------------

    def _again(self, request: Request, name: str) -> Response | None:
        """A repeated request that names the last event it has seen goes on with that stream."""
        last = request.headers.get("last-event-id", "")
        stream = self.streams.store.get(name) if name and last else None
        if stream is None:
            return None
        return _event_stream(stream.replay.read(stream.replay.offset_after(_whole("Last-Event-ID", last))))

    async def _resume(self, request: Request) -> Response:
        stream = self.streams.store.get(_named(request))
        if stream is None:
            raise ApiError(404, "there is no such stream (any more)", code="stream_not_found")
        if last := request.headers.get("last-event-id", ""):
            start = stream.replay.offset_after(_whole("Last-Event-ID", last))
        else:
            start = _whole("from", request.query_params.get("from", "0"))
        stream.replay.check(start)
        return _event_stream(stream.replay.read(start))

    async def _delete_stream(self, request: Request) -> Response:
        await self.streams.store.remove(_named(request))
        return Response(status_code=204)

    async def _lookup(self, request: Request) -> Response:
        fields = Fields(await _body(request))
        names = fields.list("conversation_ids", 256) or []
        fields.finish()
        found = [(name, self.streams.store.get(name)) for name in names if isinstance(name, str)]
        return JSONResponse(
            [
                {
                    "conversation_id": name,
                    "is_done": stream.ended_at is not None,
                    "total_bytes": stream.replay.total_bytes,
                    "started_at": stream.started_at,
                    "completed_at": stream.ended_at,
                }
                for name, stream in found
                if stream is not None
            ]
        )

    # Models and tokens ------------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self.service.models()]})

    async def _model(self, request: Request) -> Response:
        name, _ = self.service.writer(request.path_params["name"])
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        device = self.service.device
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "forerun",
            "meta": {
                "writer": self.service.models()[name].value,
                "vocabulary": device.vocabulary.fingerprint.hex(),
                "num_vocab": device.words.num_vocab,
                "max_positions": device.max_positions or None,
            },
        }

    async def _tokenize(self, request: Request) -> Response:
        fields = Fields(await _body(request))
        param = "content" if fields.has("content") else "prompt"
        text = fields.text("content", fields.text("prompt", longest=2**23), 2**23)
        special = fields.flag("parse_special", True)
        fields.finish()
        tokens = await self.service.tokenize(text, param, special)
        return JSONResponse({"tokens": tokens, "count": len(tokens)})

    async def _detokenize(self, request: Request) -> Response:
        fields = Fields(await _body(request))
        tokens = fields.list("tokens", 2**21) or []
        fields.finish()
        return JSONResponse({"content": await self.service.detokenize(tokens)})

    async def _apply_template(self, request: Request) -> Response:
        fields = Fields(await _body(request))
        messages, settings = read_messages(fields), read_template_settings(fields)
        fields.finish()
        return JSONResponse({"prompt": await self.service.render(messages, settings)})

    # The daemon -------------------------------------------------------------------------------------------

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        why = self._ready()
        return PlainTextResponse(f"{why or 'ready'}\n", status_code=503 if why else 200)

    async def _status_page(self, request: Request) -> Response:
        return JSONResponse(self._status())

    async def _metrics_page(self, request: Request) -> Response:
        if self._metrics is None:
            raise ApiError(404, "metrics are off here (api.metrics)", code="not_found")
        page, kind = self._metrics()
        return Response(page, media_type=kind)

    async def _sessions(self, request: Request) -> Response:
        device = self.service.device
        return JSONResponse(
            {
                "sessions": [
                    {
                        "id": name,
                        "client": live.client,
                        "verifier": live.answer.run.verifier if live.answer.run is not None else "",
                        "prompt": len(live.answer.request.prompt),
                        **live.answer.figures.as_json(),
                    }
                    for name, live in device.live.items()
                ],
                "waiting": device.admission.num_waiting,
            }
        )


def _told(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose errors are told in OpenAI's shape."""

    async def telling(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (ApiError, ForerunError) as error:
            found = api_error(error)
        except ClientDisconnect:  # in the middle of its body: there is nobody to answer
            return Response(status_code=CLIENT_GONE)
        except Exception as error:  # outermost frame of a request: its client must learn of a defect
            logger.exception("! a request failed")
            found = api_error(error)
        return JSONResponse(found.body, status_code=found.status, headers=found.headers)

    return telling


def _refusing(path: str, hint: str) -> Endpoint:
    async def refuse(request: Request) -> Response:
        raise ApiError(404, f"{path} is not supported here: {hint}", code="unsupported_endpoint")

    return refuse


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    said = {404: f"{what}: there is no such path", 405: f"{what}: this path takes other methods"}
    found = ApiError(status, said.get(status, what), code={404: "not_found", 405: "wrong_method"}.get(status))
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return JSONResponse(found.body, status_code=status, headers=headers)


async def _body(request: Request) -> dict[str, Any]:
    """A request's JSON object. Raises `ApiError`."""
    raw = await request.body()
    try:
        text = raw.decode(json.detect_encoding(raw))
        found = json.loads(text)
        if HALF_A_PAIR.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            "the body holds half a surrogate pair (\\ud800 to \\udfff), which is no character; send whole "
            "characters",
            code="invalid_json",
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no UTF-8
        raise ApiError(400, f"the body is not JSON: {error}"[:300], code="invalid_json") from error
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return found


def _conversation(request: Request) -> str:
    """Starlette reads headers as Latin-1; clients write a name in UTF-8, as they do in `conv_id`."""
    try:
        name = request.headers.get("x-conversation-id", "").encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise wrong("X-Conversation-Id", "X-Conversation-Id is not UTF-8; send UTF-8 or ASCII") from error
    if len(name) > MAX_CONVERSATION_CHARS:
        raise wrong(
            "X-Conversation-Id", f"X-Conversation-Id has more than {MAX_CONVERSATION_CHARS} characters"
        )
    return name


def _named(request: Request) -> str:
    name = request.query_params.get("conv_id", "")
    if not name:
        raise wrong("conv_id", "conv_id is missing")
    return name


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise wrong(name, f"{name} is {text[:40]!r}; it must be a whole number from 0 on")
    return int(text)


def _event_stream(body: AsyncIterator[bytes]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter: nginx does not hold it
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
