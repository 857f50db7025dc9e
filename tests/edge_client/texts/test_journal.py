"""Streams on disk come back as they were sent, whatever moment the daemon ended in."""

from __future__ import annotations

import contextlib
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.texts.detokenizer import TokenOrigin
from edge_client.texts.journal import Journal
from edge_client.texts.text_request import Begun
from tests import wording

HEAD = {"prompt": [1, 2, 3]}


def written(folder: Path, name: str = "talk") -> Path:
    """A stream of two events that has not ended; its file."""
    entry = Journal(folder).begin(name, 100.0, HEAD)
    entry.add(["id: 1\ndata: é\n\n".encode()], Begun((4, 5), (TokenOrigin.DRAFTED, TokenOrigin.SERVER)))
    entry.add([b"id: 2\ndata: x\n\n"], Begun((6,), (TokenOrigin.DEVICE,)))
    entry.abandon()
    (path,) = folder.iterdir()
    return path


@contextlib.contextmanager
def room(most: int) -> Iterator[None]:
    """A file takes so many bytes, as on a disk that is nearly full: a write over the limit is cut short, the
    next one fails. Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_stream_comes_back_and_goes_on_in_the_same_file(tmp_path: Path) -> None:
    written(tmp_path)
    (found,) = Journal(tmp_path).recorded()
    assert (found.name, found.started_at, found.head, found.done) == ("talk", 100.0, HEAD, False)
    assert found.frames == ("id: 1\ndata: é\n\n".encode(), b"id: 2\ndata: x\n\n")
    (begun,) = found.begun
    assert begun.tokens == (4, 5, 6)
    assert begun.origins == (TokenOrigin.DRAFTED, TokenOrigin.SERVER, TokenOrigin.DEVICE)
    Journal(tmp_path).resume("talk").add([b"id: 3\ndata: y\n\n", b"data: [DONE]\n\n"], ends=True, done=True)
    (found,) = Journal(tmp_path).recorded()
    assert (found.done, found.ended) == (True, frozenset({0}))
    assert found.frames[2:] == (b"id: 3\ndata: y\n\n", b"data: [DONE]\n\n")


def test_each_choice_has_its_own_tokens_and_end(tmp_path: Path) -> None:
    entry = Journal(tmp_path).begin("talk", 100.0, HEAD)
    for choice, token in ((1, 5), (0, 4), (1, 6)):
        entry.add([b"x\n\n"], Begun((token,), (TokenOrigin.SERVER,)), choice, ends=token == 6)
    entry.abandon()
    (found,) = Journal(tmp_path).recorded()
    assert [begun.tokens for begun in found.begun] == [(4,), (5, 6)]
    assert (found.done, found.ended) == (False, frozenset({1}))


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
    with wording.raises(UserError):
        Journal(tmp_path / "missing")


@pytest.mark.parametrize("spare", [0, 1, 10])
def test_a_disk_that_is_full_leaves_no_part_of_a_stream_even_if_room_comes_back(
    tmp_path: Path, spare: int
) -> None:
    """A prefix, or a line glued to a torn one, would be gone on from at the next start."""
    size = written(tmp_path).stat().st_size
    entry = Journal(tmp_path).resume("talk")
    with room(size + spare):
        entry.add([b"id: 3\ndata: x\n\n"], Begun((6,), (TokenOrigin.SERVER,)))
    assert entry.failure
    entry.add([b"id: 4\ndata: x\n\n"], Begun((6,), (TokenOrigin.SERVER,)), done=True)
    assert list(Journal(tmp_path).recorded()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_cannot_begin_on_disk_leaves_no_older_one_of_its_name(tmp_path: Path) -> None:
    written(tmp_path)
    with room(10):
        entry = Journal(tmp_path).begin("talk", 100.0, HEAD)
    assert entry.failure
    assert list(tmp_path.iterdir()) == []
