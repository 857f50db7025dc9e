"""An index of files: what goes in, what a change costs, and that no damaged file is believed."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from common.errors import UserError
from common.prompt_lookup import PromptLookup, SharedTexts
from common.suffix_index import SuffixIndex
from edge_client.texts import datastore
from edge_client.texts.datastore import (
    ALIGNED,
    HEAD,
    LOOK_AFTER,
    DamagedIndex,
    IndexFiles,
    place_of,
    read,
    update,
)
from tests import wording
from tests.edge_client.api.world import Letters

PRINT = b"print"


class Counted(Letters):
    """Has a token for each byte, and keeps the texts that it has read."""

    def __init__(self) -> None:
        self.texts = list[str]()

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        self.texts.append(text)
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


def indexed(path: Path, *roots: Path, words: Counted | None = None) -> datastore.Update:
    return update(path, [str(root) for root in roots], words or Counted(), PRINT)


def names(path: Path) -> list[str]:
    return [Path(file.path).name for file in read(path).files]


def continued(text: str, files: Sequence[SuffixIndex]) -> str:
    words = Counted()
    recall = PromptLookup(words.tokenize(text, False), SharedTexts(files=files))
    found = recall.guess(20, least=-9.0)
    return b"".join(words.piece(guess.token) for guess in found).decode()


def test_texts_of_a_folder_are_found_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "state" / "project.index"
    assert indexed(path, folder) == datastore.Update(num_new=2)
    assert names(path) == ["one.py", "two.py"]
    assert continued("def al", [read(path).index]).startswith("pha(): pass")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_what_has_changed_is_tokenized_again(folder: Path, tmp_path: Path) -> None:
    path, words = tmp_path / "project.index", Counted()
    indexed(path, folder, words=words)
    before = path.stat().st_ino
    assert indexed(path, folder, words=words) == datastore.Update()
    assert path.stat().st_ino == before, "nothing is written"
    os.utime(folder / "one.py", ns=(1, 1))
    assert not indexed(path, folder, words=words).has_changed, "the content is the same"
    assert len(words.texts) == 2
    (folder / "one.py").write_text("new delta: pass")
    (folder / "sub" / "two.py").unlink()
    (folder / "four.py").write_text("epsilon")
    assert indexed(path, folder, words=words) == datastore.Update(num_new=1, num_changed=1, num_gone=1)
    assert words.texts[2:] == ["epsilon", "new delta: pass"]
    assert continued("new d", [read(path).index]).startswith("elta: pass")


def test_what_git_ignores_is_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / ".gitignore").write_text("sub/\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    indexed(tmp_path / "project.index", folder)
    assert names(tmp_path / "project.index") == ["one.py"]


def test_an_index_is_bounded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore, "MOST_TOKENS", 55)
    path = tmp_path / "project.index"
    assert indexed(path, folder) == datastore.Update(num_new=1, num_left_out=1)
    monkeypatch.setattr(datastore, "LARGEST_FILE", 10)
    (folder / "one.py").write_text("much longer than that")
    assert indexed(path, folder) == datastore.Update(num_new=1, num_gone=1)


def test_an_index_of_nothing_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / "empty.index"
    indexed(path, tmp_path / "empty")
    assert continued("abc", [read(path).index]) == ""


def damaged(content: bytes) -> list[bytes]:
    last = len(content) - 1
    return [
        b"",
        content[:10],
        content[:-1],
        content + b"x",
        b"GGUF" + content[4:],
        content[: HEAD.size] + b"x" + content[HEAD.size + 1 :],
        content[:ALIGNED] + b"x" + content[ALIGNED + 1 :],
        content[:last] + bytes([content[last] ^ 1]),
        content.replace(b'"version": 1', b'"version": 2'),
        content.replace(b'"num_tokens"', b'"num_tokenz"'),
    ]


@pytest.mark.parametrize("fault", range(10))
def test_a_damaged_index_is_not_believed(
    fault: int, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    path.write_bytes(damaged(path.read_bytes())[fault])
    with pytest.raises(DamagedIndex):
        read(path)
    with caplog.at_level(logging.WARNING):
        assert IndexFiles([path], PRINT).indexes == ()
    assert "it is set aside as" in caplog.text
    assert path.with_name("project.index.damaged").exists()
    assert indexed(path, folder).num_new == 2, "and made anew"


def test_a_missing_index_and_one_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "project.index"
    with wording.raises(UserError):
        IndexFiles([path], PRINT)
    indexed(path, folder)
    with wording.raises(UserError):
        IndexFiles([path], b"other")


def test_an_index_of_another_tokenizer_is_made_anew(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    assert update(path, [str(folder)], Counted(), b"other").num_new == 2


async def test_a_replaced_index_is_read_anew_and_a_removed_one_stays_in_use(
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
    path.unlink()
    await files.refresh()
    assert continued("new d", files.indexes).startswith("elta")


async def test_an_index_that_another_tokenizer_replaced_is_not_taken(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    files = IndexFiles([path], PRINT)
    update(path, [str(folder)], Counted(), b"other")
    before = files.indexes
    await files.refresh()
    assert files.indexes == before


@pytest.mark.parametrize(
    ("change", "is_seen"),
    [
        (lambda folder: None, False),
        (lambda folder: (folder / "one.py").write_text("changed = 1"), True),
        (lambda folder: (folder / "sub" / "two.py").unlink(), True),
        (lambda folder: (folder / "four.py").write_text("new"), True),
        (lambda folder: (folder / ".hidden" / "four.py").write_text("hidden"), False),
        (lambda folder: folder.rename(folder.with_name("away")), False),
    ],
    ids=["nothing", "changed", "gone", "new", "hidden", "not there now"],
)
async def test_an_index_is_updated_once_its_files_have_changed(
    change: Callable[[Path], object], is_seen: bool, folder: Path, tmp_path: Path
) -> None:
    path, now, renewed = tmp_path / "project.index", [0.0], list[Path]()
    indexed(path, folder)

    async def renew(path: Path) -> None:
        renewed.append(path)

    files = IndexFiles([path], PRINT, renew, clock=lambda: now[0])
    await files.refresh()
    await files.settled()
    assert renewed == [path], "nobody knows what has changed before"
    change(folder)
    await files.refresh()
    await files.settled()
    assert len(renewed) == 1, "it has looked a moment ago"
    now[0] = LOOK_AFTER
    await files.refresh()
    await files.settled()
    assert len(renewed) == 1 + is_seen
    await files.close()


async def test_a_failed_update_costs_no_text(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "project.index"
    indexed(path, folder)
    (folder / "one.py").write_text("new delta: pass")

    async def renew(path: Path) -> None:
        raise UserError("the disk is full")

    files = IndexFiles([path], PRINT, renew)
    await files.refresh()
    await files.settled()
    assert continued("def al", files.indexes).startswith("pha(): pass")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_index_is_named_or_placed(tmp_path: Path) -> None:
    assert place_of("notes", tmp_path) == tmp_path / "notes.index"
    assert place_of("/a/b.index", tmp_path) == Path("/a/b.index")
    assert place_of("b.index", tmp_path) == Path("b.index")
