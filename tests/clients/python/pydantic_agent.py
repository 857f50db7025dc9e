# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai]==2.68.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""pydantic-ai with OpenAI's chat."""

from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(**more):
    return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=V1, api_key=TOKEN)), **more)


def chat():
    found = agent().run_sync(GREETING)
    return {"text": found.output, "usage": found.usage.output_tokens > 0}


async def streamed():
    async with agent().run_stream(GREETING) as stream:
        text = "".join([each async for each in stream.stream_text(delta=True)])
    return {"text": text, "usage": stream.usage.output_tokens > 0}


def tools():
    called = []

    def weather_of(city: str) -> str:
        called.append(["weather", {"city": city}])
        return weather(city)

    weather_of.__name__ = "weather"
    found = agent(tools=[weather_of]).run_sync(WEATHER)
    return {"called": called[0], "text": found.output}


def structured():
    return agent(output_type=NativeOutput(City)).run_sync(FACTS).output.model_dump()


def error():
    try:
        agent(model_settings={"temperature": -1}).run_sync(GREETING)
    except ModelHTTPError as error:
        return {"status": error.status_code, "param": error.body["param"]}


run(chat, streamed, tools, structured, error)
