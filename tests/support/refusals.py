"""What all command lines hold: nonsense is refused before anything is done."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import wording


def refuse(
    main: Callable[[Sequence[str]], int],
    line: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run a line in an empty folder. It must say what is wrong, end with 2 and leave no file."""
    monkeypatch.chdir(folder)
    try:
        code: object = main(shlex.split(line))
    except SystemExit as ended:  # of argparse
        code = ended.code
    assert code == 2
    wording.keep(capsys.readouterr().err)
    assert not [*folder.iterdir()]
