"""Present settings as options of a command.

Options of a program's schema stay texts, because `load_config` reads them as one layer of several and says
where each value came from. Options of a command alone are read at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from common.config.setting import (
    REQUIRED,
    Config,
    Entry,
    Schema,
    entries_of,
    plain,
    read_text,
    shown,
    what_is_wrong,
)
from common.errors import UserError

Options = TypeVar("Options")

# A schema's options -----------------------------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser, schema: Schema[Config], sections: Iterable[str] = ()) -> None:
    """Add the options of these sections' settings, or of all. Rarely used ones follow in a second group."""
    advanced = parser.add_argument_group("advanced options")
    for section in sections or schema.sections:
        for entry in schema.of(section):
            if entry.flags:
                group = parser if entry.setting.is_common else advanced
                nargs: Any = 0 if entry.kind is bool else "?" if entry.setting.alone is not None else None
                group.add_argument(
                    *_names(entry),
                    action=Flag,
                    entry=entry,
                    dest=argparse.SUPPRESS,
                    nargs=nargs,
                    const=entry.setting.alone,
                    **_described(entry),
                )


def flags_from(options: argparse.Namespace, schema: Schema[Config]) -> dict[str, object]:
    """Return the given options by the names of their settings, for `load_config`."""
    return {name: value for name, value in vars(options).items() if name in schema.by_name}


class Flag(argparse.Action):
    """The action keeps what the command line gives under its setting's name, and no default."""

    def __init__(self, option_strings: list[str], dest: str, entry: Entry, **more: Any) -> None:
        super().__init__(option_strings, dest, **more)
        self.entry = entry

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        if self.entry.kind is bool:
            values = not str(option).startswith("--no-")
        elif self.entry.kind is tuple:
            values = [*getattr(namespace, self.entry.name, ()), values]
        setattr(namespace, self.entry.name, values)


# A command's own options ------------------------------------------------------------------------------------


def add_command(
    commands: Any,
    name: str,
    words: str,
    run: Callable[[Any], int] | None = None,
    options: type[Any] | None = None,
    description: str = "",
) -> argparse.ArgumentParser:
    """Add a command. `run` takes its `options`, a dataclass of settings, or else the parsed namespace."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=words,
        description=description or f"{words[:1].upper()}{words[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if options is not None and run is not None:
        kind, carry_out = options, run
        add_options(parser, kind)
        parser.set_defaults(run=lambda parsed: carry_out(read_options(parsed, kind)))
    elif run is not None:
        parser.set_defaults(run=run)
    return parser


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Add an option for each setting of a dataclass, or an argument: `--name-of-the-field`."""
    groups = dict[str, argparse._ArgumentGroup]()
    for entry in options_of(options):
        title = entry.setting.group
        if title and title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups.get(title, parser), entry)


def read_options(parsed: argparse.Namespace, options: type[Options]) -> Options:
    """Make the options of a command from its parsed words. Raises `UserError` as their class does."""
    values = {entry.field: getattr(parsed, entry.field) for entry in options_of(options)}
    return options(**{name: tuple(each) if isinstance(each, list) else each for name, each in values.items()})


def options_of(options: type[Any]) -> tuple[Entry, ...]:
    """Return the settings of a command, each with its option; an argument has none."""

    def flag(entry: Entry) -> str:
        own = entry.setting.flag or f"--{entry.field}".replace("_", "-")
        return "" if entry.setting.is_argument else own

    settings = entries_of(options)  # type: ignore[arg-type]  # a type is hashable
    return tuple(replace(entry, flag=flag(entry)) for entry in settings)


def _add_option(group: argparse._ActionsContainer, entry: Entry) -> None:
    more = _described(entry)
    if not entry.setting.is_argument:
        more |= {"dest": entry.field, "required": entry.default is REQUIRED}
    if entry.kind is bool:
        more["action"] = argparse.BooleanOptionalAction if entry.default is not False else "store_true"
        for name in ("metavar", "choices"):
            del more[name]
    else:
        more["type"] = lambda text: _parsed(entry, text)
        if entry.setting.nargs:
            more["nargs"] = entry.setting.nargs
        elif entry.kind is tuple:
            more["action"] = "append"
    group.add_argument(*entry.flags or (entry.field,), **more)


def _parsed(entry: Entry, text: str) -> Any:
    """Read one value; of a list, one of its parts."""
    one = replace(entry, kind=entry.part) if entry.kind is tuple else entry
    try:
        value = entry.setting.read(text) if entry.setting.read else read_text(one, text)
        if value is not None and (wrong := what_is_wrong(one, value)):
            raise UserError(f"{entry.name} is {shown(value)}; {wrong}")
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return value


# Both -------------------------------------------------------------------------------------------------------


def _names(entry: Entry) -> list[str]:
    """Return all options of a setting; one that is on by default, or neither, can also be turned off."""
    if entry.kind is not bool or entry.default is False:
        return [each for each in (entry.setting.short, *entry.flags) if each]
    return [name for each in entry.flags for name in (each, f"--no-{each.removeprefix('--')}")]


def _described(entry: Entry) -> dict[str, Any]:
    """Return help, metavar, choices and default of an option."""
    default: Any = None if entry.default is REQUIRED else entry.default
    words = entry.setting.meaning
    shown = entry.setting.unset if default is None else _words(default)
    if default is not None and entry.setting.unit:
        shown += f" {entry.setting.unit}"
    if shown and default is not False and "default" not in words:
        words += f" (default: {shown})"
    return {
        "help": words.replace("%", "%%"),
        "metavar": _metavar(entry),
        "choices": entry.setting.choices or None,
        "default": list(default) if isinstance(default, tuple) else default,
    }


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_words, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return plain(value) if isinstance(value, float) else str(value)


def _metavar(entry: Entry) -> str | None:
    said = entry.setting
    if said.metavar:
        return said.metavar
    if said.choices:
        return "{" + ",".join(said.choices) + "}"
    if said.form and " " not in said.form:
        return said.form
    if entry.kind in (int, float):
        return "N"
    if said.is_path:
        return "FILE"
    return None if said.is_argument else entry.field.rpartition("_")[2].upper()
