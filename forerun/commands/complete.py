"""Implements `forerun complete`: writes one text by the running daemon."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from common.errors import ForerunError, UserError
from edge_client.formats.detokenizer import TextSpan
from edge_client.texts.events import TextAdded, TextEnded, TextRestarted, origins_of
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
from forerun.chat.display import AsEvents, Display, Silent, legend, new_display, stats_line
from forerun.chat.following import Following
from forerun.chat.talk import Conversation
from forerun.options import read_prompt
from forerun.terminal import Painter, note

DESCRIPTION = """\
Continue a text by the running daemon (`forerun edge`):

  forerun complete 'def is_palindrome(text' --max-tokens 80 --temperature 0
  forerun complete - --json < prompt.txt

With --system the text is a question, and the model answers it as in a chat."""

MAX_TOKENS = 128


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "complete",
        help="continue a text by the running daemon",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", default="-", metavar="PROMPT", help="text; -: standard input")
    add_asking(parser, max_tokens=MAX_TOKENS)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object at the end")
    form.add_argument("--jsonl", action="store_true", help="print a JSON object a line, as the text arrives")
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
    spans, ended = _follow(following, _display(options, painter))
    if options.json:
        print(json.dumps(_whole(following.text, spans, ended)))
    elif not options.jsonl:
        print(painter.dim(stats_line(ended.figures)), file=sys.stderr)
    return 0


def _follow(following: Following, display: Display) -> tuple[list[TextSpan], TextEnded]:
    """Return the text's spans and its end. Ctrl-C also ends the text at the daemon."""
    spans, ended = list[TextSpan](), TextEnded("", {})
    try:
        for event in following.events():
            display.take(event)
            if isinstance(event, TextAdded):
                spans += event.spans
            elif isinstance(event, TextEnded):
                ended = event
            elif isinstance(event, TextRestarted):
                spans.clear()
    except (KeyboardInterrupt, BrokenPipeError):
        following.stop()
        raise
    except ForerunError:
        display.close()
        raise
    display.close()
    return spans, ended


def _prompt(options: argparse.Namespace) -> str:
    prompt = read_prompt(None if options.prompt == "-" else options.prompt)
    if not prompt:
        raise UserError("the prompt is empty; give a text, or pipe one to standard input")
    return prompt


def _request(asking: Asking, prompt: str, system: str) -> tuple[str, Json]:
    if system:
        return CHAT_PATH, asking.body({"messages": Conversation(system).messages(prompt)})
    return TEXT_PATH, asking.body({"prompt": prompt})


def _display(options: argparse.Namespace, painter: Painter) -> Display:
    if options.json:
        return Silent()
    return AsEvents() if options.jsonl else new_display(painter, origin=options.show_origin)


def _whole(text: str, spans: list[TextSpan], ended: TextEnded) -> Json:
    """Build the object that `--json` prints. `origins` are [text, writer, tokens]."""
    told = {"text": text, "finish": ended.finish, "origins": origins_of(spans)}
    return {**told, "figures": dict(ended.figures)}
