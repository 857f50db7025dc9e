"""Ask a running vLLM server for a session's text, by `/inference/v1/generate`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from common.acceptance import AcceptanceRule
from common.errors import Code, UserError
from common.messages import Open
from common.noise import noise_output
from forerun_beside.http import events
from forerun_beside.serve import main as serve_main
from forerun_beside.worker import Request


class VllmClient:
    """Speaks to vLLM, which samples by its own random numbers and accepts drafts by rejection sampling."""

    rules = (AcceptanceRule.COUPLED, AcceptanceRule.REJECTION)

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def refuse(self, request: Open) -> None:
        """Raise `UserError` for what vLLM cannot do beside speculation, or would do otherwise."""
        sampling = request.sampling
        if not sampling.greedy and request.acceptance.rule is AcceptanceRule.COUPLED:
            raise UserError(
                "vLLM does not sample under the shared noise; ask for the acceptance rule rejection or for "
                "temperature 0",
                Code.FAILED_PRECONDITION,
            )
        others = (sampling.presence_penalty, sampling.frequency_penalty, sampling.min_p, sampling.logit_bias)
        if any(others):  # vLLM refuses the last two; a resumed text would lose its part of the first two
            raise UserError(
                "presence_penalty, frequency_penalty, min_p and logit_bias are not served beside vLLM; "
                "leave them out"
            )

    async def texts(self, request: Request) -> AsyncGenerator[list[int], None]:
        """See `EngineClient`."""
        sampling = request.sampling
        num_written = len(request.tokens) - request.prompt_length
        body = {
            "request_id": request.name,
            "token_ids": request.tokens,
            "stream": True,
            "cache_salt": request.tenant or None,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "repetition_penalty": sampling.repetition_penalty,
                # A resumed text must not meet the random numbers of its beginning again; 63 bits are allowed.
                "seed": noise_output(sampling.seed, num_written) >> 1,
                "max_tokens": request.max_tokens,
                "ignore_eos": True,  # the scheduler here knows what ends the text
                "detokenize": False,
            },
        }
        async with aclosing(events(self._http, "/inference/v1/generate", body)) as answers:
            async for event in answers:
                for choice in event["choices"]:
                    yield choice["token_ids"] or []


def main() -> int:
    """Run `forerun-vllm`."""
    return serve_main(VllmClient, "forerun-vllm")
