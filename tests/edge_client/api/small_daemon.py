"""A listener with few descriptors, in a process of its own: `python -m tests.edge_client.api.small_daemon N`.

Prints its address, and its warnings on standard error; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from typing import Any

from edge_client.api.listening import Listening, raise_descriptor_limit


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"ok\n"})


async def main(descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))
    raise_descriptor_limit()
    async with Listening(app, "127.0.0.1:0", request_time=1.0) as listening:
        sys.stdout.write(f"{listening.address}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(int(sys.argv[1])))
