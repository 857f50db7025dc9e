"""All endpoints that write texts."""

from __future__ import annotations

from typing import Any

from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.api_error import ApiError
from edge_client.formats.dialect import Dialect
from edge_client.formats.llama_server import InfillCompletion, LlamaCompletion
from edge_client.formats.ollama import OllamaChat, OllamaGenerate
from edge_client.formats.openai import ChatCompletion, Completion
from edge_client.formats.responses import Responses

DIALECTS: tuple[type[Dialect], ...] = (
    ChatCompletion,
    Completion,
    Responses,
    AnthropicMessages,
    LlamaCompletion,
    InfillCompletion,
    OllamaChat,
    OllamaGenerate,
)

PATHS = {each.path: each for each in DIALECTS} | {
    "/chat/completions": ChatCompletion,
    "/responses": Responses,
}
"""The endpoints by all their paths. llama-server has OpenAI's without /v1, too."""

BY_NAME = {each.name: each for each in DIALECTS}
"""The endpoints by their names in the journal."""


def error_body(path: str, error: ApiError) -> dict[str, Any]:
    """Return an error as clients of this path, or of one below it, read it; OpenAI's shape by default."""
    own = (each for each in DIALECTS if f"{path}/".startswith(f"{each.path}/"))
    other = OllamaChat if path.startswith("/api/") else ChatCompletion
    return next(own, other).error(error)
