# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-llms-openai-like==0.8.1"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""LlamaIndex' OpenAILike."""

import openai
from cases import FACTS, GREETING, MODEL, TOKEN, V1, WEATHER, City, run, weather
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def model(**more):
    return OpenAILike(
        model=MODEL,
        api_base=V1,
        api_key=TOKEN,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8192,
        max_retries=0,
        **more,
    )


def chat():
    found = model().chat([ChatMessage(GREETING)])
    return {"text": found.message.content, "usage": found.raw.usage.completion_tokens > 0}


def streamed():
    return {"text": "".join(each.delta for each in model().stream_chat([ChatMessage(GREETING)]))}


def tools():
    found = model().predict_and_call([FunctionTool.from_defaults(weather)], WEATHER)
    (source,) = found.sources
    return {"called": [source.tool_name, source.raw_input["kwargs"]]}


def structured():
    return (
        model(should_use_structured_outputs=True).structured_predict(City, PromptTemplate(FACTS)).model_dump()
    )


def error():
    try:
        model(additional_kwargs={"temperature": -1}).chat([ChatMessage(GREETING)])
    except openai.BadRequestError as error:
        return {"status": error.status_code, "param": error.param}


run(chat, streamed, tools, structured, error)
