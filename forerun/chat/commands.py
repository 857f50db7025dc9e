"""What a line that begins with a slash does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from forerun.chat.stats import total_line
from forerun.chat.talk import Talk


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a command."""

    words: str = ""  # to be shown
    question: str = ""  # to be asked now
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One of them; `run` gets what stands after its name."""

    form: str
    meaning: str
    run: Callable[[Talk, str], Outcome]


def is_command(message: str) -> bool:
    """A message that begins with a space is none, whatever follows."""
    return message.startswith("/")


def run_command(talk: Talk, message: str) -> Outcome:
    """Raises `UserError` for an unknown one, and what it raises."""
    name, _, rest = message.partition(" ")
    if name not in COMMANDS:
        raise UserError(f"there is no {name}; /help tells what there is (a space before it makes it a text)")
    return COMMANDS[name].run(talk, rest.strip())


def _help(talk: Talk, rest: str) -> Outcome:
    lines = [f"  {each.form:14} {each.meaning}" for each in COMMANDS.values()]
    more = (
        'Several lines are one message between two """, or if all but the last end in a backslash.',
        "Ctrl-C stops an answer; Ctrl-D ends.",
    )
    return Outcome("\n".join([*lines, *more]))


def _clear(talk: Talk, rest: str) -> Outcome:
    talk.conversation.turns.clear()
    return Outcome("the conversation begins anew")


def _system(talk: Talk, rest: str) -> Outcome:
    talk.conversation.system = rest
    return Outcome("the model is told this from now on" if rest else "the model is told nothing beforehand")


def _model(talk: Talk, rest: str) -> Outcome:
    known = talk.models()
    if not rest:
        now = talk.asking.model or known[0]
        return Outcome("\n".join(f"{'*' if name == now else ' '} {name}" for name in known))
    if rest not in known:
        raise UserError(f"the daemon has no model {rest!r}; there are: {', '.join(known)}")
    talk.asking = replace(talk.asking, model=rest)
    return Outcome(f"{rest} answers from now on")


def _stats(talk: Talk, rest: str) -> Outcome:
    return Outcome(total_line(talk.figures))


def _save(talk: Talk, rest: str) -> Outcome:
    if not rest:
        raise UserError("name a file: /save FILE (JSON if it ends in .json)")
    talk.save(Path(rest).expanduser())
    return Outcome(f"saved as {rest}")


def _retry(talk: Talk, rest: str) -> Outcome:
    """Another answer to the last question, which may have none yet."""
    turns = talk.conversation.turns
    if not talk.last_question:
        raise UserError("nothing was asked yet")
    if turns and turns[-1].question == talk.last_question:
        turns.pop()
    same = "the seed is fixed, so the answer will be the same" if talk.asking.seed is not None else ""
    return Outcome(same, question=talk.last_question)


def _undo(talk: Talk, rest: str) -> Outcome:
    turn = talk.undo()
    return Outcome(f"taken back: {turn.question.splitlines()[0][:60] if turn.question else ''}")


def _quit(talk: Talk, rest: str) -> Outcome:
    return Outcome(ends=True)


COMMANDS: dict[str, Command] = {
    "/help": Command("/help", "this", _help),
    "/clear": Command("/clear", "forget what was said", _clear),
    "/system": Command("/system TEXT", "tell the model who it is; empty: nothing", _system),
    "/model": Command("/model NAME", "another model; without a name: which there are", _model),
    "/stats": Command("/stats", "how the answers went so far", _stats),
    "/save": Command("/save FILE", "the conversation as text, or as JSON (.json)", _save),
    "/retry": Command("/retry", "another answer to the last question", _retry),
    "/undo": Command("/undo", "take the last question and its answer back", _undo),
    "/quit": Command("/quit", "end, as Ctrl-D", _quit),
}
