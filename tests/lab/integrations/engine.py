"""A small engine of the tiny model that decides its own steps, like SGLang and vLLM: it speaks HTTP and takes
drafts out of a mailbox."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun_beside.drafts import DraftTree, key_in
from forerun_beside.mailbox import Mailbox
from tests.support.listener import listening
from tests.worlds.models import tiny_logits

Choose = Callable[[list[int], list[list[int]], dict[str, Any]], list[int]]
"""Takes a text, the paths of its rows below it and a request; returns the choice of each row."""


def greedy(text: list[int], paths: list[list[int]], request: dict[str, Any]) -> list[int]:
    return [int(tiny_logits(1, [*text, *path]).argmax()) for path in paths]


def paths_of(tokens: NDArray[np.int64], mask: NDArray[np.bool_]) -> list[list[int]]:
    """The tokens below the tip of each row of a tree, the row's own last."""
    return [tokens[np.flatnonzero(above)][1:].tolist() for above in mask]


def walk(paths: list[list[int]], choices: list[int]) -> list[int]:
    """The tokens that a step writes: from the tip on, as long as a row holds what was chosen."""
    written = list[int]()
    while (row := next((at for at, path in enumerate(paths) if path == written), None)) is not None:
        written.append(choices[row])
    return written


def wait_for(mailbox: Mailbox, count: int) -> None:
    """Wait until the mailbox's thread has so many messages that nobody took yet."""
    while len(mailbox._arrived) < count:
        time.sleep(0)


class Engine:
    """Writes texts in steps of `num_rows` rows; a chain of drafts or their tree.

    With `waits` each step begins when drafts have come, so that tests do not depend on speed.
    """

    waits = False

    def __init__(
        self, mailbox: Mailbox, choose: Choose = greedy, *, chains: bool = False, num_rows: int = 6
    ) -> None:
        self.num_steps = self.num_tokens = self.num_aborted = 0
        self.requests = list[dict[str, Any]]()
        self._mailbox = mailbox
        self._choose = choose
        self._chains = chains
        self._num_rows = num_rows

    def drafts(self, name: str, text: list[int]) -> DraftTree | None:
        self._mailbox.keep(self._mailbox.take())
        return self._mailbox.drafts(key_in(name) or "", 0, text)

    def step(self, name: str, text: list[int], request: dict[str, Any]) -> list[int]:
        drafts = self.drafts(name, text)
        paths: list[list[int]] = [[]]
        if drafts is not None and self._chains:
            chain = drafts.chain(self._num_rows - 1)
            paths += [chain[: length + 1] for length in range(len(chain))]
        elif drafts is not None:
            paths = paths_of(*drafts.rows(text[-1], self._num_rows))
        tokens = walk(paths, self._choose(text, paths, request))
        self.num_steps, self.num_tokens = self.num_steps + 1, self.num_tokens + len(tokens)
        return tokens

    async def texts(self, request: dict[str, Any]) -> AsyncIterator[tuple[list[int], list[int]]]:
        """The new tokens of each step, and all of them."""
        self.requests.append(request)
        vllm = "token_ids" in request
        name, text = (
            request["request_id" if vllm else "rid"],
            list(request["token_ids" if vllm else "input_ids"]),
        )
        start = len(text)
        end = start + request["sampling_params"]["max_tokens" if vllm else "max_new_tokens"]
        while len(text) < end:
            await asyncio.sleep(0)
            while self.waits and len(text) < end - 1 and self.drafts(name, text) is None:  # noqa: ASYNC110 - by socket
                await asyncio.sleep(0.001)
            new = self.step(name, text, request)[: end - len(text)]
            text += new
            yield new, text[start:]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        request = json.loads(await reader.readexactly(size))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        try:
            async for new, written in self.texts(request):
                event: dict[str, Any] = {"choices": [{"index": 0, "token_ids": new}]}
                if "rid" in request:
                    event = {"output_ids": written, "meta_info": {"completion_tokens": len(written)}}
                writer.write(f"data: {json.dumps(event)}\n\n".encode())
                await writer.drain()
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        except ConnectionError:
            self.num_aborted += 1
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(
    folder: Path, choose: Choose = greedy, *, chains: bool = False
) -> AsyncIterator[tuple[Engine, str, str]]:
    """An engine on a free port: it, its address and its mailbox's path."""
    path = str(folder / "drafts.sock")
    mailbox = Mailbox(path)
    engine = Engine(mailbox, choose, chains=chains)
    async with listening(engine.answer) as address:
        yield engine, f"http://{address}", path
    mailbox.close()
