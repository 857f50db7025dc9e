"""The state file is whole or what it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.standing import Stream
from edge_client.fleet.store import StateFile


def test_what_was_saved_is_loaded_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "new" / "folder")
    assert state.load() == Memory()
    for epoch in (1, 2):
        state.save(Memory(epoch=epoch, revs={Stream.KILL: 5}))
    assert state.load() == Memory(epoch=2, revs={Stream.KILL: 5})
    assert state.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state.path.parent.iterdir()] == ["fleet.json"]


def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    state.path.write_text('{"format": "forerun fleet state"')
    with pytest.raises(UserError, match="old orders could be played again"):
        state.load()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        StateFile(tmp_path / "file").save(Memory())
