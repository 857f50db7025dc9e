"""What the scripted target answers to the questions of all clients, and what each case must return for it."""

from __future__ import annotations

import json
from typing import Any

from tests.clients.scripted import newest

GREETING = "Hello, I am here. ¿Qué tal? 🙂"
REPORT = "It is 21 degrees in Ulm."
CITY = {"name": "Ulm", "inhabitants": 126949}
ARGUMENTS = {"city": "Ulm"}


def call(name: str, /, **arguments: Any) -> str:
    """What a model in the manner of Qwen and Hermes writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(prompt: str) -> str:
    """Answer the newest message."""
    told = newest(prompt)
    if told.startswith("tool") and "21 degrees" in told:
        return REPORT
    if "weather in Ulm" in told:
        return call("weather", **ARGUMENTS)
    if "facts about Ulm" in told:
        forced = '"name": "City"' in prompt and '"type": "function"' in prompt
        return call("City", **CITY) if forced else json.dumps(CITY)
    return GREETING


TOLD: dict[str, Any] = {"text": GREETING, "usage": True}
CALLED: dict[str, Any] = {"called": ["weather", ARGUMENTS], "text": REPORT}
EXPECTED: dict[str, dict[str, Any]] = {
    "chat": TOLD,
    "streamed": TOLD,
    "tools": CALLED,
    "tools_streamed": CALLED,
    "responses": TOLD,
    "responses_tools": CALLED,
    "structured": CITY,
    "structured_by_tool": CITY,
    "error": {"status": 400, "param": "temperature"},
}
"""By case. A client returns some of these fields, never others."""
