"""Ask a running SGLang server for a session's text, by `/generate`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from common.acceptance import AcceptanceRule
from common.messages import Open
from forerun_beside.http import events
from forerun_beside.serve import main as serve_main
from forerun_beside.worker import Request
from forerun_sglang.rows import PARAMETER, told


class SglangClient:
    """Speaks to SGLang. Requests are greedy there: the plug-in has added the noise to the logits before."""

    rules = (AcceptanceRule.COUPLED,)

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def refuse(self, request: Open) -> None:
        """Every session that the scheduler admits can be served."""

    async def texts(self, request: Request) -> AsyncGenerator[list[int], None]:
        """See `EngineClient`."""
        body = {
            "rid": request.name,
            "input_ids": request.tokens,
            "stream": True,
            "extra_key": request.tenant or None,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": request.max_tokens,
                "ignore_eos": True,  # the scheduler here knows what ends the text
                "custom_params": {PARAMETER: told(request.prompt_length, request.sampling)},
            },
        }
        num_seen = 0
        async with aclosing(events(self._http, "/generate", body)) as answers:
            async for event in answers:
                tokens, written = event["output_ids"], event["meta_info"]["completion_tokens"]
                # All tokens so far, or with --incremental-streaming-output the new ones alone.
                new = tokens[num_seen:] if len(tokens) >= written else tokens
                num_seen += len(new)
                yield new


def main() -> int:
    """Run `forerun-sglang`."""
    return serve_main(SglangClient, "forerun-sglang")
