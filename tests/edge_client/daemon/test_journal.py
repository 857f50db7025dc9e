"""Streams on disk come back as they were sent, whatever moment the daemon ended in."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.daemon.journal import Journal
from edge_client.text import Origin

HEAD = {"prompt": [1, 2, 3]}


def written(folder: Path, name: str = "talk") -> Path:
    """A stream of two events that has not ended; its file."""
    entry = Journal(folder).begin(name, 100.0, HEAD)
    entry.add("id: 1\ndata: é\n\n".encode(), (4, 5), (Origin.DRAFTED, Origin.SERVER))
    entry.add(b"id: 2\ndata: x\n\n", (6,), (Origin.DEVICE,))
    entry.abandon()
    (path,) = folder.iterdir()
    return path


def test_a_stream_comes_back(tmp_path: Path) -> None:
    written(tmp_path)
    (found,) = Journal(tmp_path).recorded()
    assert (found.name, found.started_at, found.head, found.done) == ("talk", 100.0, HEAD, False)
    assert found.frames == ("id: 1\ndata: é\n\n".encode(), b"id: 2\ndata: x\n\n")
    assert found.begun.tokens == (4, 5, 6)
    assert found.begun.origins == (Origin.DRAFTED, Origin.SERVER, Origin.DEVICE)


def test_it_goes_on_in_the_same_file(tmp_path: Path) -> None:
    written(tmp_path)
    entry = Journal(tmp_path).resume("talk")
    entry.add(b"data: [DONE]\n\n")
    entry.finish()
    (found,) = Journal(tmp_path).recorded()
    assert found.done
    assert found.frames[2:] == (b"data: [DONE]\n\n",)


def test_wherever_the_daemon_died_whole_events_are_left(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    path = next(tmp_path.iterdir())
    first_line = data.index(b"\n") + 1
    for length in range(first_line, len(data) + 1):
        path.write_bytes(data[:length])
        (found,) = Journal(tmp_path).recorded()
        assert len(found.frames) == data[first_line:length].count(b"\n")
        assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]\n", b'{"name": 5}\n', b"\xff\n", b"null\n"])
def test_a_file_that_is_none_is_dropped(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path)
    path.write_bytes(content)
    assert list(Journal(tmp_path).recorded()) == []
    assert not path.exists()


def test_it_is_its_owners_alone_and_named_after_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "../../etc/passwd")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.parent == tmp_path
    Journal(tmp_path).remove("../../etc/passwd")
    assert not path.exists()


def test_a_folder_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the journal"):
        Journal(tmp_path / "missing")
