"""Implements `forerun completion`: a shell completes our commands and options with the Tab key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from argcomplete.shell_integration import shellcode

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print what lets a shell complete commands and options of forerun. Put the line of your shell into its start-up
file:

  source <(forerun completion bash)       # ~/.bashrc
  source <(forerun completion zsh)        # ~/.zshrc, below compinit
  forerun completion fish | source        # ~/.config/fish/config.fish"""


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Declares the shell."""

    shell: str = setting(REQUIRED, "bash, zsh or fish", choices=SHELLS, is_argument=True)


def add_parser(commands: Any) -> None:
    words = "let your shell complete commands and options"
    add_command(commands, "completion", words, _completion, CompletionOptions, DESCRIPTION)


def _completion(options: CompletionOptions) -> int:
    print(shellcode(["forerun"], shell=options.shell))
    return 0
