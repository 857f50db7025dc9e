"""The list of models as Codex reads it.

Codex 0.169 asks for `/v1/models?client_version=VERSION` if its provider has a command for the token. It then
needs all fields below, as in its option `model_catalog_json`.
"""

from __future__ import annotations

from edge_client.formats.dialect import Json

VERSION = "client_version"
"""Parameter of Codex' requests, which tells them from OpenAI's."""

INSTRUCTIONS = """\
You are a coding agent that runs in a terminal. Do what the user asks for: read and change files and run \
commands with your tools until the task is done, and check the result. Then say in a few sentences what you \
did. Change nothing that the task does not need."""

EFFORTS = {
    "none": "No reasoning",
    "low": "Some reasoning",
    "medium": "More reasoning",
    "high": "Most reasoning",
}

OUTPUT_BYTES = 10_000
"""Bytes of a command's output that the model reads: Codex' own value for models that it does not know."""


def model(name: str, priority: int, longest: int) -> Json:
    """Return a model as Codex reads it. The smallest `priority` is its default; `longest` 0 is unknown."""
    return {
        "slug": name,
        "display_name": name,
        "supported_reasoning_levels": [
            {"effort": effort, "description": words} for effort, words in EFFORTS.items()
        ],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "base_instructions": INSTRUCTIONS,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": OUTPUT_BYTES},
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "context_window": longest or None,
    }
