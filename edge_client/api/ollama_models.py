"""Describes models as Ollama does, so that its clients find them.

Shapes: Ollama's docs/api.md. Zed reads `capabilities` and `model_info`, Open WebUI the list and the version.
"""

from __future__ import annotations

from common.errors import ForerunError
from edge_client.api.endpoints import DEFAULT, TextEndpoints
from edge_client.api.pairs import Pairs
from edge_client.formats.dialect import Json
from edge_client.texts.text_request import Writer

VERSION = "0.12.10"
"""Version of Ollama's API that is spoken. Clients refuse servers older than what they need."""

FAMILY = "forerun"
UNTOLD_TIME = "1970-01-01T00:00:00Z"
"""The time of models, which no verifier reports."""

NEVER = "2318-01-01T00:00:00Z"
"""When a loaded model is unloaded, as Ollama writes it for `keep_alive` -1."""

THOUGHTS = ("enable_thinking", "reasoning_content", "reasoning_effort", "<think>")
"""Texts of which a template of a model that thinks has one."""


def listed(pairs: Pairs) -> list[Json]:
    """Return all models for `/api/tags`."""
    models = pairs.models().items()
    return [_entry(name, service) for name, (service, _) in models if name != DEFAULT]


def running(pairs: Pairs) -> list[Json]:
    """Return the models whose verifier answers now, for `/api/ps`."""
    models = pairs.models().items()
    return [
        {**_entry(name, service), "expires_at": NEVER, "size_vram": 0, **_context(service)}
        for name, (service, writer) in models
        if name != DEFAULT and writer is not Writer.DRAFT and service.texts.verifiers.best() is not None
    ]


def described(service: TextEndpoints, name: str) -> Json:
    """Return one model for `/api/show`. Raises `ApiError` for an unknown one."""
    service.writer(name)
    template = _template(service)
    length = {f"{FAMILY}.{name}": value for name, value in _context(service).items()}
    return {
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": _details(),
        "model_info": {"general.architecture": FAMILY, **length},
        "capabilities": _capabilities(service, template),
        "modified_at": UNTOLD_TIME,
    }


def _capabilities(service: TextEndpoints, template: str) -> list[str]:
    has = {
        "completion": True,
        "tools": "tools" in template,
        "thinking": any(text in template for text in THOUGHTS),
        "insert": service.infill is not None,
    }
    return [name for name, is_so in has.items() if is_so]


def _template(service: TextEndpoints) -> str:
    try:
        return service.chat_template().source
    except ForerunError:  # there is none, or none is known yet
        return ""


def _context(service: TextEndpoints) -> Json:
    """Return the context's length, once a verifier has reported it."""
    length = service.texts.max_positions
    return {"context_length": length} if length else {}


def _entry(name: str, service: TextEndpoints) -> Json:
    digest = service.texts.vocabulary.fingerprint.hex()
    return {
        "name": name,
        "model": name,
        "modified_at": UNTOLD_TIME,
        "size": 0,
        "digest": digest,
        "details": _details(),
    }


def _details() -> Json:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": FAMILY,
        "families": [FAMILY],
        "parameter_size": "",
        "quantization_level": "",
    }
