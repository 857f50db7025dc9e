# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""OpenAI's SDK: chat completions and responses."""

import json

import openai
from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather
from pydantic import BaseModel

CLIENT = openai.OpenAI(base_url=V1, api_key=TOKEN, max_retries=0)


class Weather(BaseModel):
    """Tell the weather in a city."""

    city: str


TOOL = openai.pydantic_function_tool(Weather, name="weather")


def asked(*messages, **more):
    return {"model": MODEL, "messages": [*messages], **more}


def user(text):
    return {"role": "user", "content": text}


def chat():
    found = CLIENT.chat.completions.create(**asked(user(GREETING)))
    return {"text": found.choices[0].message.content, "usage": found.usage.completion_tokens > 0}


def streamed():
    with CLIENT.chat.completions.stream(
        **asked(user(GREETING)), stream_options={"include_usage": True}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        return {"text": text, "usage": stream.get_final_completion().usage.completion_tokens > 0}


def answered(message):
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)}
    said = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    found = CLIENT.chat.completions.create(**asked(user(WEATHER), said, result), tools=[TOOL])
    return {"called": [call.function.name, arguments], "text": found.choices[0].message.content}


def tools():
    return answered(CLIENT.chat.completions.parse(**asked(user(WEATHER)), tools=[TOOL]).choices[0].message)


def tools_streamed():
    with CLIENT.chat.completions.stream(**asked(user(WEATHER)), tools=[TOOL]) as stream:
        return answered(stream.get_final_completion().choices[0].message)


def responses():
    """The response is kept until it is deleted."""
    with CLIENT.responses.stream(model=MODEL, input=GREETING) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        found = stream.get_final_response()
    assert found.output_text == CLIENT.responses.retrieve(found.id).output_text == text
    more = CLIENT.responses.create(model=MODEL, input="More.", previous_response_id=found.id)
    items = [*CLIENT.responses.input_items.list(more.id, order="asc")]
    assert [part.text for item in items for part in item.content] == [GREETING, text, "More."]
    assert items[1].id == found.output[0].id
    CLIENT.responses.delete(found.id)
    assert gone(lambda: CLIENT.responses.retrieve(found.id))
    refused = gone(lambda: CLIENT.responses.create(model=MODEL, input="a", previous_response_id=found.id))
    assert refused.code == "previous_response_not_found"
    return {"text": text, "usage": found.usage.output_tokens > 0}


def gone(call):
    try:
        call()
    except openai.NotFoundError as error:
        return error


def responses_tools():
    """The second request names the first by `previous_response_id`, or repeats its items."""
    tool = {
        "type": "function",
        "name": "weather",
        "strict": True,
        "parameters": TOOL["function"]["parameters"],
    }
    first = CLIENT.responses.create(model=MODEL, input=[user(WEATHER)], tools=[tool])
    (call,) = (item for item in first.output if item.type == "function_call")
    arguments = json.loads(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": weather(**arguments)}
    found = CLIENT.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=[tool])
    items = [user(WEATHER), *(each.to_dict() for each in first.output), result]
    again = CLIENT.responses.create(model=MODEL, input=items, store=False, tools=[tool])
    assert again.output_text == found.output_text
    assert again.usage.input_tokens == found.usage.input_tokens
    return {"called": [call.name, arguments], "text": found.output_text}


def structured():
    found = CLIENT.chat.completions.parse(**asked(user(FACTS)), response_format=City).choices[0].message
    assert CLIENT.responses.parse(model=MODEL, input=FACTS, text_format=City).output_parsed == found.parsed
    return found.parsed.model_dump()


def error():
    try:
        CLIENT.chat.completions.create(**asked(user(GREETING)), temperature=-1)
    except openai.BadRequestError as error:
        return {"status": error.status_code, "param": error.param}


run(chat, streamed, tools, tools_streamed, responses, responses_tools, structured, error)
