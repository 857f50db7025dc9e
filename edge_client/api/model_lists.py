"""Describes models as each API's clients read them.

OpenAI's list has vLLM's and llama-server's fields, too. Anthropic's shapes are those of its SDK 2.12.0. Codex
0.169 asks for `/v1/models?client_version=VERSION` if its provider has a command for the token, and then needs
all fields of its option `model_catalog_json`. Ollama's are in its docs/api.md: Zed reads `capabilities` and
`model_info`, Open WebUI the list and the version.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ForerunError
from edge_client.api.endpoints import DEFAULT, TextEndpoints
from edge_client.api.pairs import Pairs
from edge_client.formats.dialect import Json
from edge_client.formats.fields import Fields
from edge_client.formats.parsed_request import read_model
from edge_client.texts.text_request import Writer

ANTHROPIC_VERSION = "anthropic-version"
"""Header of Anthropic's clients, which read another list of models than OpenAI's."""

CODEX_VERSION = "client_version"
"""Parameter of Codex' requests, which tells them from OpenAI's."""

CODEX_INSTRUCTIONS = """\
You are a coding agent that runs in a terminal. Do what the user asks for: read and change files and run \
commands with your tools until the task is done, and check the result. Then say in a few sentences what you \
did. Change nothing that the task does not need."""

CODEX_EFFORTS = {
    "none": "No reasoning",
    "low": "Some reasoning",
    "medium": "More reasoning",
    "high": "Most reasoning",
}

CODEX_OUTPUT_BYTES = 10_000
"""Bytes of a command's output that the model reads: Codex' own value for models that it does not know."""

OLLAMA_VERSION = "0.12.10"
"""Version of Ollama's API that is spoken. Clients refuse servers older than what they need."""

FAMILY = "forerun"
UNTOLD_TIME = "1970-01-01T00:00:00Z"
"""The time of models, which no verifier reports."""

NEVER = "2318-01-01T00:00:00Z"
"""When a loaded model is unloaded, as Ollama writes it for `keep_alive` -1."""

THOUGHTS = ("enable_thinking", "reasoning_content", "reasoning_effort", "<think>")
"""Texts of which a template of a model that thinks has one."""


def openai_card(name: str, service: TextEndpoints, writer: Writer) -> Json:
    """Return a model as OpenAI's clients, vLLM's and llama-server's list it."""
    texts = service.texts
    longest = texts.max_positions or None
    meta = {
        "writer": writer.value,
        "vocabulary": texts.vocabulary.fingerprint.hex(),
        "num_vocab": texts.words.num_vocab,
        "max_positions": longest,
        "n_ctx_train": longest,
        "sampling_defaults": {} if writer is Writer.DRAFT else service.sampling_defaults(),
    }
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "forerun",
        "context_length": longest,
        "max_model_len": longest,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "meta": meta,
    }


def anthropic_card(name: str, longest: int) -> Json:
    """Return a model as Anthropic's clients read it. `longest` is its context in tokens; 0: unknown."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": UNTOLD_TIME,  # as Anthropic's API for an unknown time
        "lifecycle": "active",
        "max_input_tokens": longest or None,
        "max_tokens": longest or None,
    }


def anthropic_list(cards: Sequence[Json]) -> Json:
    first, last = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
    return {"data": list(cards), "has_more": False, "first_id": first, "last_id": last}


def codex_card(name: str, priority: int, longest: int) -> Json:
    """Return a model as Codex reads it. The smallest `priority` is its default; `longest` 0 is unknown."""
    return {
        "slug": name,
        "display_name": name,
        "supported_reasoning_levels": [
            {"effort": effort, "description": words} for effort, words in CODEX_EFFORTS.items()
        ],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "base_instructions": CODEX_INSTRUCTIONS,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": CODEX_OUTPUT_BYTES},
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "context_window": longest or None,
    }


def ollama_list(pairs: Pairs) -> list[Json]:
    """Return all models for `/api/tags`."""
    models = pairs.models().items()
    return [_ollama_entry(name, service) for name, (service, _) in models if name != DEFAULT]


def ollama_running(pairs: Pairs) -> list[Json]:
    """Return the models whose verifier answers now, for `/api/ps`."""
    models = pairs.models().items()
    return [
        {**_ollama_entry(name, service), "expires_at": NEVER, "size_vram": 0, **_context(service)}
        for name, (service, writer) in models
        if name != DEFAULT and writer is not Writer.DRAFT and service.texts.verifiers.best() is not None
    ]


def read_name(fields: Fields) -> str:
    """Read the name of the model that a request asks about."""
    name = fields.text("name", longest=512)
    return read_model(fields) or name


def ollama_model(service: TextEndpoints, name: str) -> Json:
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
        "tools": bool(template),  # where it lacks them, they stand in the system message
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


def _ollama_entry(name: str, service: TextEndpoints) -> Json:
    return {
        "name": name,
        "model": name,
        "modified_at": UNTOLD_TIME,
        "size": 0,
        "digest": service.texts.vocabulary.fingerprint.hex(),
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
