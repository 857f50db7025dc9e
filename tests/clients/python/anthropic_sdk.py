# /// script
# requires-python = ">=3.11"
# dependencies = ["anthropic==2.12.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""Anthropic's SDK."""

import anthropic
from cases import GREETING, MODEL, TOKEN, URL, WEATHER, run, weather

CLIENT = anthropic.Anthropic(base_url=URL, auth_token=TOKEN, max_retries=0)
TOOL = {
    "name": "weather",
    "description": "Tell the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def asked(*messages, **more):
    return {"model": MODEL, "max_tokens": 200, "messages": [*messages], **more}


def user(content):
    return {"role": "user", "content": content}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def chat():
    found = CLIENT.messages.create(**asked(user(GREETING)))
    return {"text": text_of(found), "usage": found.usage.output_tokens > 0}


def streamed():
    with CLIENT.messages.stream(**asked(user(GREETING))) as stream:
        text = "".join(stream.text_stream)
        return {"text": text, "usage": stream.get_final_message().usage.output_tokens > 0}


def answered(message):
    (call,) = (block for block in message.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
    said = {"role": "assistant", "content": message.content}
    found = CLIENT.messages.create(**asked(user(WEATHER), said, user([result]), tools=[TOOL]))
    return {"called": [call.name, call.input], "text": text_of(found)}


def tools():
    return answered(CLIENT.messages.create(**asked(user(WEATHER), tools=[TOOL])))


def tools_streamed():
    with CLIENT.messages.stream(**asked(user(WEATHER), tools=[TOOL])) as stream:
        return answered(stream.get_final_message())


def error():
    try:
        CLIENT.messages.create(**asked(user(GREETING), extra_body={"temperature": -1}))
    except anthropic.BadRequestError as error:
        return {"status": error.status_code}


run(chat, streamed, tools, tools_streamed, error)
