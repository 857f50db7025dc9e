# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.3"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""LangChain's ChatOpenAI."""

import openai
from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def model(**more):
    return ChatOpenAI(model=MODEL, base_url=V1, api_key=TOKEN, max_retries=0, stream_usage=True, **more)


def chat():
    found = model().invoke(GREETING)
    return {"text": found.content, "usage": found.usage_metadata["output_tokens"] > 0}


def streamed():
    chunks = [*model().stream(GREETING)]
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    return {"text": "".join(chunk.content for chunk in chunks), "usage": usage[-1]["output_tokens"] > 0}


def tools():
    bound = model().bind_tools([weather])
    messages = [HumanMessage(WEATHER)]
    messages.append(bound.invoke(messages))
    (call,) = messages[-1].tool_calls
    messages.append(ToolMessage(weather(**call["args"]), tool_call_id=call["id"]))
    return {"called": [call["name"], call["args"]], "text": bound.invoke(messages).content}


def tools_streamed():
    whole = None
    for chunk in model().bind_tools([weather]).stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return {"called": [call["name"], call["args"]]}


def responses():
    return {"text": model(use_responses_api=True).invoke(GREETING).text}


def structured():
    return model().with_structured_output(City).invoke(FACTS).model_dump()


def error():
    try:
        model(temperature=-1).invoke(GREETING)
    except openai.BadRequestError as error:
        return {"status": error.status_code, "param": error.param}


run(chat, streamed, tools, tools_streamed, responses, structured, error)
