"""An index of files: what goes in, what a change costs, and that no damaged file is believed."""

from __future__ import annotations

import logging
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.errors import UserError
from common.prompt_lookup import PromptLookup, SharedTexts
from common.suffix_index import SuffixIndex
from edge_client.texts.index_file import DamagedIndex, read_index
from schemes.drafters import file_index
from schemes.drafters.file_index import IndexFiles, build, place_of
from tests import wording
from tests.edge_client.api.world import Letters

PRINT = b"print"


class Bytes(Letters):
    """Has a token for each byte."""

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        return bytes([token])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with texts, data, hidden files and a link out of it."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / "one.py").write_text("def alpha(): pass")
    (root / "sub" / "two.py").write_text("beta = 2")
    (root / ".env").write_text("SECRET=1")
    (root / ".hidden" / "three.py").write_text("gamma")
    (root / "picture.bin").write_bytes(b"\x00\x01")
    (root / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "outside.py").write_text("outside")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    return root


def indexed(path: Path, *roots: Path) -> int:
    """How many files did not fit."""
    return build(path, [str(root) for root in roots], Bytes(), PRINT)


def continued(text: str, files: Sequence[SuffixIndex]) -> str:
    words = Bytes()
    recall = PromptLookup(words.tokenize(text, False), SharedTexts(files=files))
    found = recall.guess(20, least=-9.0)
    return b"".join(words.piece(guess.token) for guess in found).decode()


def test_texts_of_a_folder_are_found_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "state" / "project.index"
    indexed(path, folder)
    assert read_index(path).about["num_files"] == 2
    assert continued("def al", [read_index(path).index]).startswith("pha(): pass")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_git_ignores_is_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / ".gitignore").write_text("sub/\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    indexed(tmp_path / "project.index", folder)
    assert read_index(tmp_path / "project.index").about["num_files"] == 1


def test_an_index_is_bounded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "project.index"
    monkeypatch.setattr(file_index, "MOST_TOKENS", 55)
    assert (indexed(path, folder), read_index(path).about["num_files"]) == (1, 1)
    monkeypatch.setattr(file_index, "LARGEST_FILE", 1)
    assert (indexed(path, folder), read_index(path).about["num_files"]) == (0, 0)
    assert continued("abc", [read_index(path).index]) == ""


def damaged(content: bytes) -> list[bytes]:
    last = content.index(b"PK", 4) - 1  # of the text
    return [
        b"",
        content[:-1],
        b"GGUF" + content[4:],
        content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :],
        content.replace(b"PK", b"PX"),
        content.replace(b"order.npy", b"other.npy"),
    ]


@pytest.mark.parametrize("fault", range(6))
def test_a_damaged_index_is_not_believed(
    fault: int, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    path.write_bytes(damaged(path.read_bytes())[fault])
    with pytest.raises(DamagedIndex):
        read_index(path)
    with caplog.at_level(logging.WARNING):
        assert IndexFiles([path], PRINT).indexes == ()
    assert "nothing of it is used" in caplog.text


def test_a_missing_index_and_one_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "project.index"
    with wording.raises(UserError):
        IndexFiles([path], PRINT)
    indexed(path, folder)
    with wording.raises(UserError):
        IndexFiles([path], b"other")


async def test_a_replaced_index_is_read_anew_and_one_that_cannot_be_read_stays_in_use(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    files = IndexFiles([path], PRINT)
    first = files.indexes
    await files.refresh()
    assert files.indexes == first
    (folder / "one.py").write_text("new delta: pass")
    indexed(path, folder)
    await files.refresh()
    assert continued("new d", files.indexes).startswith("elta")
    build(path, [str(folder)], Bytes(), b"other")
    await files.refresh()
    path.unlink()
    await files.refresh()
    assert continued("new d", files.indexes).startswith("elta")


def test_an_index_is_named_or_placed(tmp_path: Path) -> None:
    assert place_of("notes", tmp_path) == tmp_path / "notes.index"
    assert place_of("/a/b.index", tmp_path) == Path("/a/b.index")
    assert place_of("b.index", tmp_path) == Path("b.index")
