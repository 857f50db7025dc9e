"""Good bodies of requests to the daemon, for its OpenAPI description and for tests that spoil them."""

from __future__ import annotations

from typing import Any

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "a"}'}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 1, "stream": True}
CHAT = {
    "model": "",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "c"},
        {"role": "tool", "tool_call_id": "c", "content": "d"},
    ],
    "max_tokens": 4,
    "n": 2,
    "stop": ["ab"],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream_options": {"include_usage": True},
    "logit_bias": {"1": 2},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"a": 1},
    "forerun": {"origins": True, "policy": "tree", "fallback": "wait"},
    **SAMPLING,
}
FORMED = {
    "messages": [{"role": "user", "content": "abc"}],
    "max_completion_tokens": 4,
    "logprobs": True,
    "top_logprobs": 2,
    "repetition_penalty": 1.1,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "description": "d", "schema": SCHEMA, "strict": True},
    },
    "prediction": {"type": "content", "content": "abc"},
    "forerun": {"recall": True, "reference": ["abc"], "speculate": True, "acceptance": "coupled"},
}
RESPONSE = {
    "model": "",
    "instructions": "a",
    "input": [
        {"type": "message", "role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": '{"x": "a"}'},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "d"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": [{"type": "input_text", "text": "b"}]},
    ],
    "max_output_tokens": 4,
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "g"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "store": True,
    "truncation": "disabled",
    "metadata": {"a": "b"},
    **SAMPLING,
}

MESSAGES_PATH = "/v1/messages"
"""Begins the paths whose errors have Anthropic's shape."""

OPTIONS = {"num_predict": 4, "num_ctx": 9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1, "stop": ["ab"]}
OLLAMA = {"model": "default:latest", "options": {**OPTIONS, "seed": 1}, "keep_alive": "5m", "think": True}
MESSAGES = {
    "model": "claude-opus-5-5",
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": "c", "clear_at": "never", "output_config": {"effort": "low"}},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "d", "signature": "s"},
                {"type": "text", "text": "e"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "is_error": True,
                    "content": [{"type": "tool_reference", "tool_name": "g"}, {"type": "text", "text": "f"}],
                }
            ],
        },
    ],
    "max_tokens": 4,
    "top_k": 5,
    "stop_sequences": ["ab"],
    "tools": [
        {"name": "f", "description": "d", "input_schema": SCHEMA},
        {"name": "g", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20260318", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
    **SAMPLING,
}

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [CHAT],
    "/v1/completions": [{"prompt": "abc", "max_tokens": 4, "logprobs": 2, "n": 2, **SAMPLING}],
    "/completion": [
        {"prompt": "abc", "n_predict": 4, "response_fields": ["content", "timings/prompt_n"], **SAMPLING},
        {"prompt": [1, 2], "n_predict": -1, "return_tokens": True, "stop": ["ab"]},
    ],
    "/infill": [
        {
            "input_prefix": "ab",
            "input_suffix": "cd",
            "input_extra": [{"filename": "a", "text": "def", "time": 1}],
            "prompt": "e",
            "n_predict": 4,
            "samplers": ["top_k", "top_p", "infill"],
            "response_fields": ["content", "timings/prompt_n"],
            "temperature": 0.5,
            "stream": True,
        },
        {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 4},
    ],
    "/api/chat": [
        {
            "messages": [
                {"role": "user", "content": "a", "images": []},
                {
                    "role": "assistant",
                    "thinking": "b",
                    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
                },
                {"role": "tool", "tool_name": "f", "content": "c"},
            ],
            "tools": CHAT["tools"],
            "stream": True,
            **OLLAMA,
        },
        {"messages": [], "model": "default"},
    ],
    "/api/generate": [
        {"prompt": "abc", "system": "d", "context": [], "images": [], "template": "", **OLLAMA},
        {"prompt": "abc", "suffix": "def", "stream": False, **OLLAMA},
        {"prompt": "abc", "raw": True, "stream": False, **OLLAMA},
        {"model": "default"},
    ],
    "/api/show": [{"model": "default", "verbose": True}, {"name": "default:latest"}],
    "/v1/responses": [RESPONSE, {"input": "abc", "max_output_tokens": 4}, {"input": "abc", "reasoning": {}}],
    MESSAGES_PATH: [MESSAGES],
    f"{MESSAGES_PATH}/count_tokens": [MESSAGES],
    "/v1/responses/input_tokens": [RESPONSE],
    "/v1/apply-template": [{"messages": CHAT["messages"], "tools": CHAT["tools"]}],
    "/v1/tokenize": [
        {"content": "abc", "parse_special": True, "add_special": True, "with_pieces": True},
        {"prompt": "abc", "add_special_tokens": False, "return_token_strs": True},
        {"messages": CHAT["messages"]},
    ],
    "/v1/detokenize": [{"tokens": [1, 2]}],
}
"""Good bodies by path, which together with `HELD` have all fields that are read."""

HELD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        FORMED,
        {"messages": FORMED["messages"], "repeat_penalty": 1.1, "forerun": {"regex": "[ab]+"}},
        {"messages": FORMED["messages"], "forerun": {"grammar": 'start: "a"'}},
    ],
    "/completion": [{"prompt": "abc", "n_predict": 4, "json_schema": SCHEMA}],
}
"""Likewise, of texts that a grammar holds, which not every target can write."""
