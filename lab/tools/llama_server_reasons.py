"""Why tests of llama.cpp's server fail here: the table behind `lab.tools.llama_server_tests`."""

from __future__ import annotations

import re

CONSTRAINED = ('"42"', '"foooooo"', "[ -3000 ]", "(\\{|John)+", "a{5,5}")
"""Patterns that a text matches with any model, because a schema or a grammar holds it."""

UNEXPLAINED = "a fault of ours, or not yet explained"

REASONS: dict[str, tuple[tuple[str, str], ...]] = {
    # A fault of the adapter, whose daemons each have a port of their own.
    "the adapter: a restarted server has another port": (("test_no_ui", "200 == 404"),),
    # Not features of a split system.
    "on purpose: no embeddings, no reranking; the target only writes texts": (("", "only writes texts"),),
    "on purpose: text only; images get 400, in a tool's result a note": (("image|vision|local_media", ""),),
    "on purpose: one pair a daemon, of its start; no router, no LoRA by request": (
        ("test_(router|stream)", ""),
        ("", "of the daemon's start"),
    ),
    "on purpose: no slots to see, to save or to put to sleep": (
        ("", "use /v1/models and /v1/status"),
        ("test_(slot_save|sleep|kv_keep)", ""),
    ),
    "on purpose: no acceptance by lot": (("test_(synth|with_and_without_draft)", ""),),
    "on purpose: no tools, MCP servers or proxy in the daemon": (
        ("test_(mcp_servers|tools_builtin|proxy)|cors_proxy", "404|405|MCP JSON"),
    ),
    # Another API's form.
    "on purpose: too long a text is an error in OpenAI's words; no context is shifted": (
        ("", "maximum context length"),
    ),
    "on purpose: a stream begins as OpenAI's, with empty content": (
        ("", "'' is None|Expected non empty content delta"),
        ("completion_stream", "0 > 0"),
    ),
    "on purpose: system_fingerprint names the target, not llama.cpp's build": (
        ("", r"fp_\w+.*(startswith|False)"),
    ),
    "on purpose: no messages, no answer, as Anthropic's own API": (("empty", "at least one message"),),
    "on purpose: logit_bias as OpenAI has it, by token id": (("", "logit_bias (is|has) "),),
    "on purpose: one prompt a request, a text or token ids": (("", "several prompts|prompt is {"),),
    "on purpose: a template gets what transformers gives it, and is the target's own": (
        ("test_date_inside|apply_chat_template", ""),
    ),
    # Llama-server's own.
    "another model: the target has no tokens to fill a gap": (("test_infill", "no tokens to fill"),),
    "on purpose: a field that would change the text and is not done is refused": (
        ("", "unsupported_parameter"),
    ),
    "on purpose: `forerun` has the figures, /apply-template the prompt": (
        ("", "__verbose|KeyError: '(generation_settings|logit_bias|prompt)"),
        ("progress|telemetry", ""),
    ),
    "on purpose: metrics have names of our own and are on": (
        ("test_metrics", "Process-Start-Time|200 == 501"),
    ),
    "on purpose: no page of another origin, unless api.allowed_origins names it": (("cors", ""),),
    "on purpose: another page, with other files": (("static_assets", ""),),
    "on purpose: one address": (("multiple_addresses", "the daemon ended"),),
    "on purpose: /v1/models lists target, draft and pair": (("models|aliases", "4 == 1"),),
    "on purpose: a path of llama.cpp's own or of a cloud's": (("", "there is no such path"),),
    "on purpose: two messages of the assistant may be the last": (("messages7", "200 == 400"),),
    "another model: its tokens are others, or its text ends earlier": (
        ("", r"^assert \d+ == \d+(?!.*Response)"),
        ("prompt_cache", "'prompt_n' in"),
    ),
}
"""Reasons with expressions for a test's name and the words of its end. The first that fits counts."""


def reason_of(test: str, words: str) -> str:
    """Return why a test failed."""
    for reason, pairs in REASONS.items():
        if any(re.search(name, test) and re.search(end, words, re.DOTALL) for name, end in pairs):
            return reason
    return UNEXPLAINED
