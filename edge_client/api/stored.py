"""Keeps responses with their conversations, for `previous_response_id` and the endpoints that read them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path

from edge_client.api.response import ResponseSpec
from edge_client.formats.api_error import ApiError, wrong
from edge_client.formats.dialect import Json
from edge_client.formats.response_items import MAX_ITEMS
from edge_client.formats.responses import Responses

logger = logging.getLogger(__name__)

KEEP = 86_400.0
"""Seconds that a response is kept: people take a conversation up again on the next day."""

MOST = 1024
MAX_BYTES = 32 * 2**20
"""Limits on responses and on the bytes of all of them. The oldest are dropped first."""

SUFFIX = ".json"


class StoredResponses:
    """Keeps responses in memory and, with a `folder`, in files that only their owner may read.

    A response is kept for `keep` seconds. `wall` returns seconds since 1970, which hold over a restart.
    """

    def __init__(
        self,
        keep: float = KEEP,
        folder: Path | None = None,
        most: int = MOST,
        max_bytes: int = MAX_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keep, self._folder, self._wall = keep, folder, wall
        self._most, self._max_bytes = most, max_bytes
        self._kept = OrderedDict[str, bytes]()  # JSON, by the response's id, the oldest first
        self._until = dict[str, float]()  # seconds since 1970, likewise
        self._num_bytes = 0
        if folder is not None:
            self._read(folder)

    def ended(self, spec: ResponseSpec, last: Json) -> None:
        """Keep a whole response, unless its client forbids it. `last` is it, or the last event with it."""
        if spec.kind is not Responses or not spec.heading.form["told"]["store"]:
            return
        response = last.get("response", last)
        items = [*spec.heading.form["input"], *response["output"]]
        data = json.dumps({"at": self._wall(), "response": response, "items": items}).encode()
        name = str(response["id"])
        if self._add(name, data, self._wall() + self._keep) and self._folder is not None:
            _write(self._folder / f"{name}{SUFFIX}", data)

    def get(self, name: str) -> Json:
        """Return a response. Raises `ApiError` if it is not kept."""
        response: Json = self._found(name)["response"]
        return response

    def input_items(self, name: str) -> list[Json]:
        """Return the items before a response, the oldest first. A continued conversation is among them.

        Raises `ApiError` if it is not kept.
        """
        record = self._found(name)
        items = record["items"][: len(record["items"]) - len(record["response"]["output"])]
        base = name.removeprefix(Responses.prefix)
        return [_listed(f"item_{base}_{at}", each) for at, each in enumerate(items)]

    def remove(self, name: str) -> None:
        """Forget a response. Raises `ApiError` if it is not kept."""
        self._found(name)
        self._drop(name)

    def continued(self, body: Json) -> Json:
        """Return a request's body with the conversation before it, and with items in place of references.

        Raises `ApiError` for what is not kept.
        """
        previous, items = body.get("previous_response_id"), body.get("input")
        if previous is None and not isinstance(items, list):
            return body
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        if not isinstance(items, list) or len(items) > MAX_ITEMS:
            return body  # the reader of the request says what is wrong
        output = cache(self._output)  # of this request: many items may be of one response
        own = [_referred(at, each, output) for at, each in enumerate(items)]
        return {**body, "input": [*self._conversation(previous), *own]}

    def _conversation(self, previous: object) -> list[Json]:
        if previous is None:
            return []
        param, code = "previous_response_id", "previous_response_not_found"
        if not isinstance(previous, str):
            raise wrong(param, f"{param} must be the id of a response")
        try:
            items: list[Json] = self._found(previous)["items"]
        except ApiError as error:
            raise ApiError(404, str(error), param=param, code=code) from error
        return items

    def _output(self, name: str) -> list[Json]:
        """Return a response's items; none if it is not kept."""
        try:
            output: list[Json] = self.get(name)["output"]
        except ApiError:
            return []
        return output

    def _found(self, name: str) -> Json:
        self._drop_old()
        data = self._kept.get(name)
        if data is None:
            words = f"the response {name[:80]!r} is not kept; send the whole conversation as input"
            raise ApiError(404, words, param="response_id", code="not_found")
        record: Json = json.loads(data)
        return record

    def _add(self, name: str, data: bytes, until: float) -> bool:
        """Keep one more response. Return whether it can be kept."""
        self._drop_old()
        if len(data) > self._max_bytes or not self._most:
            return False
        if name in self._kept:  # its stream has gone on after a restart
            self._drop(name)
        self._kept[name], self._until[name] = data, until
        self._num_bytes += len(data)
        while self._num_bytes > self._max_bytes or len(self._kept) > self._most:
            self._drop(next(iter(self._kept)))
        return True

    def _drop_old(self) -> None:
        while self._until and next(iter(self._until.values())) < self._wall():
            self._drop(next(iter(self._until)))

    def _drop(self, name: str) -> None:
        self._num_bytes -= len(self._kept.pop(name))
        del self._until[name]
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def _read(self, folder: Path) -> None:
        """Read the last run's responses. An unreadable file is removed with a warning."""
        records = list[tuple[float, str, bytes]]()
        for path in folder.iterdir():
            try:
                with path.open("rb") as file:
                    data = file.read(self._max_bytes)
                if path.suffix != SUFFIX:
                    raise ValueError("it was not written whole")
                read = json.loads(data)
                if not isinstance(read["items"], list) or not isinstance(read["response"]["output"], list):
                    raise ValueError("it is another version's")
                records.append((float(read["at"]), path.stem, data))
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("! a response on disk cannot be read and is dropped: %s", type(error).__name__)
                with contextlib.suppress(OSError):  # it may be a folder
                    path.unlink()
        for at, name, data in sorted(records):
            self._add(name, data, at + self._keep)


def _referred(at: int, item: object, output: Callable[[str], list[Json]]) -> object:
    """Return the item that a reference names, or the item itself. An item's id holds its response's."""
    if not isinstance(item, dict) or item.get("type") != "item_reference":
        return item
    name = str(item.get("id"))
    kept = output(Responses.prefix + "".join(name.split("_")[1:2]))
    if not (items := [each for each in kept if each["id"] == name]):
        param = f"input[{at}].id"
        raise ApiError(404, f"the item {name[:80]!r} is not kept", param=param, code="not_found")
    return items[0]


def _listed(identity: str, item: Json) -> Json:
    """Return an item with what clients may leave out: its id, its type, and a list as content."""
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": kind, "text": content}]}
    return {"id": identity, "type": "message", "status": "completed", **item}


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all. The response is kept in memory in any case."""
    half = path.with_suffix(".half")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        half.replace(path)
    except OSError as error:
        logger.warning("! a response cannot be kept on disk: %s", error.strerror or error)
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
