# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp==2.3.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""LiteLLM's provider `openai/`."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a list of prices

import litellm
from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather

litellm.suppress_debug_info = True


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text, *more, **fields):
    messages = [{"role": "user", "content": text}, *more]
    return litellm.completion(
        f"openai/{MODEL}", messages, base_url=V1, api_key=TOKEN, num_retries=0, max_retries=0, **fields
    )


def chat():
    found = ask(GREETING)
    return {"text": found.choices[0].message.content, "usage": found.usage.completion_tokens > 0}


def streamed():
    chunks = [*ask(GREETING, stream=True, stream_options={"include_usage": True})]
    whole = litellm.stream_chunk_builder(chunks)
    return {"text": whole.choices[0].message.content, "usage": whole.usage.completion_tokens > 0}


def tools():
    message = ask(WEATHER, tools=[TOOL]).choices[0].message
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    told = {"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)}
    again = ask(WEATHER, message.model_dump(exclude_none=True), told, tools=[TOOL])
    return {"called": [call.function.name, arguments], "text": again.choices[0].message.content}


def structured():
    found = ask(FACTS, response_format=City)
    return City.model_validate_json(found.choices[0].message.content).model_dump()


def error():
    try:
        ask(GREETING, temperature=-1)
    except litellm.BadRequestError as error:
        return {"status": error.status_code, "param": error.param}


run(chat, streamed, tools, structured, error)
