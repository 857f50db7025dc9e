# /// script
# requires-python = ">=3.11"
# dependencies = ["ollama==0.6.3"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""Ollama's own package: chat, generate, tools, formats, and the discovery of models."""

import ollama
from cases import FACTS, GREETING, MODEL, TOKEN, URL, WEATHER, City, run, weather

CLIENT = ollama.Client(URL, headers={"authorization": f"Bearer {TOKEN}"})


def user(text):
    return {"role": "user", "content": text}


def chat():
    (model,) = discovered()
    assert CLIENT.chat(model, []).done_reason == "load"
    found = CLIENT.chat(model, [user(GREETING)])
    counts = (found.prompt_eval_count, found.eval_count, found.total_duration, found.eval_duration)
    return {"text": found.message.content, "usage": found.done and min(counts) > 0}


def discovered():
    """Return the models that can be found, each with all that programs look for."""
    names = [each.model for each in CLIENT.list().models]
    assert [each.model for each in CLIENT.ps().models] == names
    for name in names:
        show = CLIENT.show(name)
        assert {"completion", "tools"} <= set(show.capabilities)
        assert show.modelinfo[f"{show.modelinfo['general.architecture']}.context_length"] > 4096
    return names


async def streamed():
    client = ollama.AsyncClient(URL, headers={"authorization": f"Bearer {TOKEN}"})
    generated = [part.response async for part in await client.generate(MODEL, GREETING, stream=True)]
    *parts, last = CLIENT.chat(MODEL, [user(GREETING)], stream=True)
    assert not any(part.done for part in parts)
    text = "".join(part.message.content for part in parts)
    assert text == "".join(generated)
    return {"text": text, "usage": last.done_reason == "stop" and last.eval_count > 0}


def ask_with_tools(ask):
    messages = [user(WEATHER)]
    message = ask(messages)
    (call,) = message.tool_calls
    name, arguments = call.function.name, dict(call.function.arguments)
    result = {"role": "tool", "tool_name": name, "content": weather(**arguments)}
    return {"called": [name, arguments], "text": ask([*messages, message, result]).content}


def tools():
    return ask_with_tools(lambda messages: CLIENT.chat(MODEL, messages, tools=[weather]).message)


def tools_streamed():
    def ask(messages):
        parts = [*CLIENT.chat(MODEL, messages, tools=[weather], stream=True)]
        calls = [call for part in parts for call in part.message.tool_calls or []]
        text = "".join(part.message.content or "" for part in parts)
        return ollama.Message(role="assistant", content=text, tool_calls=calls or None)

    return ask_with_tools(ask)


def structured():
    found = CLIENT.chat(MODEL, [user(FACTS)], format=City.model_json_schema())
    return City.model_validate_json(found.message.content).model_dump()


def error():
    try:
        CLIENT.chat(MODEL, [user(GREETING)], options={"temperature": -1})
    except ollama.ResponseError as error:
        return {"status": error.status_code, "param": "temperature" if "temperature" in error.error else None}


run(chat, streamed, tools, tools_streamed, structured, error)
