"""A server in a test's own loop that is neither gRPC nor HTTP of ours."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Yields its HOST:PORT. At its end the answers that still run are cancelled, and nothing stays open."""
    answers: set[asyncio.Task[None]] = set()

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answers.add(task)
        try:
            await answer(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            answers.discard(task)

    async with await asyncio.start_server(whole, "127.0.0.1", 0, ssl=tls) as server:
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(answers):
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
