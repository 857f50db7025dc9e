# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents==0.24.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""OpenAI's Agents SDK, by chat completions and by responses."""

import json

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.items import ToolCallItem
from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather

set_tracing_disabled(True)


def agent(model=OpenAIChatCompletionsModel, **more):
    client = openai.AsyncOpenAI(base_url=V1, api_key=TOKEN, max_retries=0)
    return Agent(name="agent", model=model(MODEL, client), **more)


async def chat():
    found = await Runner.run(agent(), GREETING)
    return {"text": found.final_output, "usage": found.context_wrapper.usage.output_tokens > 0}


async def streamed():
    stream, text = Runner.run_streamed(agent(), GREETING), ""
    async for event in stream.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return {"text": text}


async def tools(model=OpenAIChatCompletionsModel):
    found = await Runner.run(agent(model, tools=[function_tool(weather)]), WEATHER)
    (call,) = [item.raw_item for item in found.new_items if isinstance(item, ToolCallItem)]
    return {"called": [call.name, json.loads(call.arguments)], "text": found.final_output}


async def responses():
    return {"text": (await Runner.run(agent(OpenAIResponsesModel), GREETING)).final_output}


async def responses_tools():
    return await tools(OpenAIResponsesModel)


async def structured():
    return (await Runner.run(agent(output_type=City), FACTS)).final_output.model_dump()


async def error():
    try:
        await Runner.run(agent(model_settings=ModelSettings(temperature=-1)), GREETING)
    except openai.BadRequestError as error:
        return {"status": error.status_code, "param": error.param}


run(chat, streamed, tools, responses, responses_tools, structured, error)
