# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor==1.17.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""instructor, by a JSON schema and by a forced tool."""

import instructor
from cases import FACTS, MODEL, TOKEN, V1, City, run
from openai import OpenAI


def ask(mode):
    client = instructor.from_openai(OpenAI(base_url=V1, api_key=TOKEN, max_retries=0), mode=mode)
    messages = [{"role": "user", "content": FACTS}]
    return client.chat.completions.create(
        model=MODEL, messages=messages, response_model=City, max_retries=0
    ).model_dump()


def structured():
    return ask(instructor.Mode.JSON_SCHEMA)


def structured_by_tool():
    return ask(instructor.Mode.TOOLS)


run(structured, structured_by_tool)
