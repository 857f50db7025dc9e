"""What tests of commands share: where a command looks for its daemon."""

from pathlib import Path

import pytest

from tests.forerun.beside import state_folder


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return state_folder(tmp_path, monkeypatch)
