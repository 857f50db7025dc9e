"""Implements `forerun complete`: writes one text by the running daemon."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from edge_client.formats.detokenizer import TextSpan, text_of
from edge_client.texts.events import TextAdded, TextEnded, origins_of
from forerun.chat.answer import answer
from forerun.chat.asking import CHAT_PATH, TEXT_PATH, AskOptions
from forerun.chat.display import Display, legend, stats_line
from forerun.options import read_prompt
from forerun.terminal import Painter, note

DESCRIPTION = """\
Continue a text by the running daemon (`forerun edge`):

  forerun complete 'def is_palindrome(text' --max-tokens 80 --temperature 0
  forerun complete - --json < prompt.txt

With --system the text is a question, and the model answers it as in a chat."""


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(AskOptions):
    """Declares the text and its form."""

    prompt: str = setting("-", "text; -: standard input", "PROMPT", nargs="?", is_argument=True)
    max_tokens: int | None = setting(128, "most tokens", "N", low=1)
    json: bool = setting(False, "print one JSON object at the end")


def add_parser(commands: Any) -> None:
    words = "continue a text by the running daemon"
    add_command(commands, "complete", words, run, CompleteOptions, DESCRIPTION)


def run(options: CompleteOptions) -> int:
    prompt = read_prompt(None if options.prompt == "-" else options.prompt)
    if not prompt:
        raise UserError("the prompt is empty; give a text, or pipe one to standard input")
    request = TEXT_PATH, options.body({"prompt": prompt})
    if options.system_text:
        asked = options.conversation({"role": "user", "content": prompt})
        request = CHAT_PATH, options.body(asked)
    painter = Painter(sys.stdout)
    if options.show_origin and not options.json:
        note(legend(painter))
    display = None if options.json else Display(painter, sys.stdout, origin=options.show_origin)
    spans, ended = list[TextSpan](), TextEnded("", {})
    try:
        with closing(answer(options.daemon(), *request)) as events:
            for event in events:
                if display is not None:
                    display.take(event)
                if isinstance(event, TextAdded):
                    spans += event.spans
                elif isinstance(event, TextEnded):
                    ended = event
    finally:
        if display is not None:
            display.close()
    if display is None:
        told = {"text": text_of(spans), "finish": ended.finish, "origins": origins_of(spans)}
        print(json.dumps({**told, "figures": dict(ended.figures)}))  # origins: [text, writer, tokens]
    else:
        print(painter.dim(stats_line(ended.figures)), file=sys.stderr)
    return 0
