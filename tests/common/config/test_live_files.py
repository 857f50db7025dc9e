"""Laws of files that are replaced while a program runs: what is new is taken, what is broken is not."""

import logging
import os
from pathlib import Path

import pytest

from common.config.live_files import LiveFiles, read_bytes
from common.errors import UserError
from tests import wording


def number(path: Path) -> int:
    try:
        return int(read_bytes(path, "the number", 8))
    except ValueError:
        raise UserError(f"{path} holds no number") from None


def live(path: Path) -> LiveFiles[int]:
    return LiveFiles("the number", (path,), lambda: number(path))


def replace(path: Path, text: str) -> None:
    """As programs do that mean well: whole, at once."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def test_a_file_that_stays_is_read_once(tmp_path: Path) -> None:
    path, reads = tmp_path / "n", list[int]()
    path.write_text("1")

    def counted() -> int:
        reads.append(1)
        return number(path)

    files = LiveFiles("the number", (path,), counted)
    assert (files.value, files.refresh(), files.refresh()) == (1, False, False)
    assert len(reads) == 1


def test_a_new_file_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    files = live(path)
    replace(path, "2")
    with caplog.at_level(logging.INFO):
        assert files.refresh()
    assert (files.value, files.num_reloads, files.num_failures) == (2, 1, 0)
    assert caplog.messages == ["the number was read anew"]


def test_a_file_behind_swapped_links_is_taken(tmp_path: Path) -> None:
    """As the kubelet does it: the file is a link into a folder that is a link itself, and that is swapped."""
    for name, text in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "n").symlink_to("..data/n")
    files = live(tmp_path / "n")
    (tmp_path / "..data_tmp").symlink_to("two")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    assert files.refresh()
    assert files.value == 2


def test_a_broken_file_is_told_once_and_the_one_before_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    files = live(path)
    replace(path, "secret")
    assert [files.refresh() for _ in range(3)] == [False] * 3
    assert (files.value, files.num_failures) == (1, 1)
    (told,) = caplog.messages
    assert told.startswith("! the number is not read anew, the one before stays: ")
    assert "secret" not in told
    path.unlink()
    assert not files.refresh()
    assert "cannot be read: No such file" in caplog.messages[-1]
    replace(path, "3")
    assert files.refresh()
    assert files.value == 3


def test_what_cannot_be_used_at_the_beginning_is_refused(tmp_path: Path) -> None:
    with wording.raises(UserError):
        live(tmp_path / "none")
    (tmp_path / "n").write_text("123456789")
    with wording.raises(UserError):
        live(tmp_path / "n")


def test_files_that_are_swapped_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    """Else a certificate would be joined with the key of the one before."""
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.write_text("1")
    swaps = ["2", "3"]

    def both() -> tuple[int, int]:
        first = number(paths[0])
        if swaps:
            text = swaps.pop(0)
            for path in paths:
                replace(path, text)
        return first, number(paths[1])

    assert LiveFiles("the pair", paths, both).value == (3, 3)
    swaps = ["4", "5", "6"]
    with wording.raises(UserError):
        LiveFiles("the pair", paths, both)
