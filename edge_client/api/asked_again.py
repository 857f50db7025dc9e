"""A `Telling` as JSON and back, for streams that outlive the daemon."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from common.acceptance import Acceptance, AcceptanceRule
from common.sampling import SamplingParams
from edge_client.api.shapes import ChatShape, Heading, Shape, TextShape
from edge_client.api.telling import Telling
from edge_client.core.config import Fallback
from edge_client.daemon.request import Begun, TextRequest, Writer
from edge_client.text import Words

SHAPES: dict[str, type[ChatShape] | type[TextShape]] = {"chat": ChatShape, "text": TextShape}


def as_json(telling: Telling) -> dict[str, Any]:
    """All that it takes to go on with the text."""
    request = telling.request
    return {
        "shape": next(name for name, kind in SHAPES.items() if isinstance(telling.shape, kind)),
        "heading": asdict(telling.heading),
        "client": telling.client,
        "include_usage": telling.include_usage,
        "origins": telling.origins,
        "request": {
            "prompt": list(request.prompt),
            "id": request.id,
            "writer": request.writer.value,
            "stops": list(request.stops),
            "logprobs": request.logprobs,
            "fallback": request.fallback.value,
            "revises": request.revises,
            "policy": request.policy,
            "recall": request.recall,
            "advised": dict(request.advised),
        },
        "sampling": asdict(request.sampling),
        "acceptance": {**asdict(request.acceptance), "rule": request.acceptance.rule.value},
    }


def from_json(found: dict[str, Any], words: Words, begun: Begun) -> Telling:
    """The telling, its text begun. Raises `ValueError`, `KeyError` or `TypeError` if it is none of ours, and
    `UserError` for values that are not allowed (any more)."""
    given = found["request"]
    request = TextRequest(
        prompt=tuple(given["prompt"]),
        sampling=_sampling(found["sampling"]),
        id=given["id"],
        writer=Writer(given["writer"]),
        stops=tuple(given["stops"]),
        logprobs=given["logprobs"],
        fallback=Fallback(given["fallback"]),
        revises=given["revises"],
        policy=given["policy"],
        recall=given["recall"],
        acceptance=_acceptance(found["acceptance"]),
        advised=tuple(given.get("advised", {}).items()),
        begun=begun,
    )
    shape: Shape = SHAPES[found["shape"]]()
    spelled = words if request.logprobs is not None else None
    heading = Heading(**found["heading"])
    return Telling(
        heading, shape, request, found["client"], spelled, found["include_usage"], found["origins"]
    )


def _sampling(found: dict[str, Any]) -> SamplingParams:
    bias = tuple((int(token), float(value)) for token, value in found["logit_bias"])
    return SamplingParams(**{**found, "logit_bias": bias, "stop_token_ids": tuple(found["stop_token_ids"])})


def _acceptance(found: dict[str, Any]) -> Acceptance:
    return Acceptance(**{**found, "rule": AcceptanceRule(found["rule"])})
