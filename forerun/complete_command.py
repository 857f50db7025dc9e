"""`forerun complete`: one text by the running daemon."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from common.errors import ForerunError, UserError
from forerun.chat.asking import (
    CHAT_PATH,
    TEXT_PATH,
    Asking,
    Json,
    add_asking,
    add_daemon,
    asking_from,
    find_daemon,
)
from forerun.chat.display import AsEvents, Display, Silent, legend, new_display
from forerun.chat.following import Following
from forerun.chat.parts import Anew, Ended, Run, Text
from forerun.chat.stats import stats_line
from forerun.chat.talk import Conversation
from forerun.options import read_prompt
from forerun.paint import Painter, note

DESCRIPTION = """\
Goes on from a text, by the running daemon (`forerun edge`):

  forerun complete 'def parse_header(line):' --max-tokens 80 --temperature 0
  forerun complete - --json < prompt.txt

With --system the text is a question, and the model answers it as in a chat."""

MAX_TOKENS = 128


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "complete",
        help="one text by the running daemon",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", default="-", metavar="PROMPT", help="- is standard input")
    add_asking(parser, max_tokens=MAX_TOKENS)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object at the end")
    form.add_argument("--jsonl", action="store_true", help="a JSON object a line, as the text comes")
    add_daemon(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    prompt = _prompt(options)
    asking = asking_from(options, revise=options.jsonl, name="complete")
    path, body = _request(asking, prompt, options.system_text)
    painter = Painter(sys.stdout)
    if options.show_origin and not (options.json or options.jsonl):
        note(legend(painter))
    following = Following(lambda: find_daemon(options), path, body)
    runs, ended = _follow(following, _display(options, painter))
    if options.json:
        print(json.dumps(_whole(following.text, runs, ended)))
    elif not options.jsonl:
        print(painter.dim(stats_line(ended.figures)), file=sys.stderr)
    return 0


def _follow(following: Following, display: Display) -> tuple[list[Run], Ended]:
    """The text's runs and its end. Ctrl-C also ends it at the daemon."""
    runs, ended = list[Run](), Ended("", {})
    try:
        for part in following.parts():
            display.take(part)
            if isinstance(part, Text):
                runs += part.runs
            elif isinstance(part, Ended):
                ended = part
            elif isinstance(part, Anew):
                runs.clear()
    except (KeyboardInterrupt, BrokenPipeError):
        following.stop()
        raise
    except ForerunError:
        display.close()
        raise
    display.close()
    return runs, ended


def _prompt(options: argparse.Namespace) -> str:
    given = None if options.prompt == "-" else options.prompt
    prompt = read_prompt(argparse.Namespace(prompt=given, prompt_file=None))
    if not prompt:
        raise UserError("the prompt is empty; give a text, or pipe one in")
    return prompt


def _request(asking: Asking, prompt: str, system: str) -> tuple[str, Json]:
    if system:
        return CHAT_PATH, asking.body({"messages": Conversation(system).messages(prompt)})
    return TEXT_PATH, asking.body({"prompt": prompt})


def _display(options: argparse.Namespace, painter: Painter) -> Display:
    if options.json:
        return Silent()
    return AsEvents() if options.jsonl else new_display(painter, origin=options.show_origin)


def _whole(text: str, runs: list[Run], ended: Ended) -> Json:
    """What `--json` prints: who wrote what is told as [text, writer, tokens]."""
    joined = list[list[Any]]()
    for run in runs:
        if joined and joined[-1][1] == run.origin:
            joined[-1][0] += run.text
            joined[-1][2] += run.tokens
        else:
            joined.append([run.text, run.origin, run.tokens])
    return {"text": text, "finish": ended.finish, "origins": joined, "figures": dict(ended.figures)}
