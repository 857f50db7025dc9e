"""Public suites of conformance, against a daemon with a scripted target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import call
from tests.clients.programs import FOLDER, IN_ITS_ENVIRONMENT, output_of
from tests.clients.scripted import THINKING, newest, scripted
from tests.edge_client.api.served import TOKEN

pytestmark = [pytest.mark.api, pytest.mark.grpc]

REASONER = "scripted-o1"
"""A model whose name tells llm-comply that it reasons. Of other models it skips a test."""

COMPLY: dict[str, tuple[int, list[str]]] = {
    "openai-chat": (9, ["-m", REASONER]),
    "open-responses": (13, ["-m", REASONER]),
    "anthropic": (9, ["-m", "claude-opus-4", "--auth-header", "x-api-key", "--no-bearer"]),
}
"""Formats of llm-comply, with the number of its tests."""

MEANT = {"Image Input": 400, "Error Handling": 200}
"""The status with which we fail a test on purpose. A target of text refuses an image. A request without
`model` is for the first model, as with vLLM and llama.cpp."""


def reasons_if_asked(prompt: str) -> str:
    """Answer as the suite wants."""
    asked = newest(prompt)
    if "San Francisco" in asked:
        return call("get_weather", location="San Francisco")
    return "<think>\nIt is.\n</think>\n\n555" if "reasoning" in asked else "Four."


@pytest.mark.clients
@pytest.mark.parametrize("form", COMPLY)
async def test_llm_comply_fails_only_what_is_meant(form: str, tmp_path: Path) -> None:
    num_tests, more = COMPLY[form]
    suite = (*IN_ITS_ENVIRONMENT, str(FOLDER / "suites" / "run_comply.py"), "--json", "--format", form)
    async with scripted(reasons_if_asked, THINKING, REASONER) as address:
        out = await output_of(tmp_path, *suite, "-u", f"http://{address}/v1", "-k", TOKEN, *more)
    results: list[dict[str, Any]] = json.loads(out)["results"]
    failed = {each["name"]: each["errors"] for each in results if each["status"] != "passed"}
    assert len(results) == num_tests
    assert failed.keys() == (MEANT.keys() if form != "anthropic" else {"Image Input"}), failed
    for name, errors in failed.items():
        assert errors[0].startswith(f"HTTP {MEANT[name]} "), errors
