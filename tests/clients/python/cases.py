"""What the scripts of this folder share.

Each is run as `NAME.py URL TOKEN MODEL` and prints one JSON object, a key a case. A case of the
same name has the same answer with every client (`tests/clients/answers.py`).
"""

import asyncio
import inspect
import json
import sys

from pydantic import BaseModel

URL, TOKEN, MODEL = sys.argv[1:]
V1 = f"{URL}/v1"

GREETING = "Say hello."
WEATHER = "What is the weather in Ulm?"
FACTS = "Give the facts about Ulm."


class City(BaseModel):
    name: str
    inhabitants: int


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"21 degrees in {city}"


def run(*cases):
    """Print what each case returns, or how it failed."""
    found = {}
    for case in cases:
        try:
            answer = case()
            found[case.__name__] = asyncio.run(answer) if inspect.isawaitable(answer) else answer
        except Exception as error:
            found[case.__name__] = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))
