"""An index of files: what goes in, what a change costs, and that no damaged file is believed."""

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


def repository(path: Path, ignored: str) -> Path:
    """A repository that ignores one file, with that file and another."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    (path / ".gitignore").write_text(f"{ignored}\n")
    (path / ignored).write_text("private")
    (path / "open.txt").write_text("open")
    return path


def num_indexed(tmp_path: Path, *roots: Path) -> int:
    """How many files an index holds, none of which are ignored ones."""
    indexed(tmp_path / "made.index", *roots)
    index = read_index(tmp_path / "made.index")
    assert not continued("priv", [index.index]).startswith("ate")
    return int(index.about["num_files"])


def test_what_git_ignores_is_left_out_of_repositories_below_a_folder(tmp_path: Path) -> None:
    outer = repository(tmp_path / "src" / "deep" / "outer", "secret.txt")
    repository(outer / "inner", "hidden.txt")
    (tmp_path / "src" / "plain.txt").write_text("plain")
    assert num_indexed(tmp_path, tmp_path / "src") == 3
    assert num_indexed(tmp_path, outer) == 2
    assert continued("op", [read_index(tmp_path / "made.index").index]).startswith("en")


def test_what_git_ignores_is_left_out_where_it_is_named_itself(tmp_path: Path) -> None:
    root = repository(tmp_path / "project", "build")  # a folder in place of the file
    (root / "build").unlink()
    (root / "build").mkdir()
    (root / "build" / "secret.txt").write_text("private")
    assert num_indexed(tmp_path, root / "build", root / "open.txt") == 1
    assert num_indexed(tmp_path, root / "build" / "secret.txt") == 0


def test_another_repositorys_variables_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "project", "secret.txt")
    monkeypatch.setenv("GIT_DIR", str(repository(tmp_path / "other", "else.txt") / ".git"))
    assert num_indexed(tmp_path, root) == 1


FAILURES = {"damaged": "", "absent": "", "slow": "#!/bin/sh\nexec sleep 60\n"}
"""Ways in which git's answer may lack, and a program in place of git."""


@pytest.mark.parametrize("failure", FAILURES)
def test_a_repository_that_git_cannot_list_is_not_indexed(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "plain.txt").write_text("plain")
    root = repository(tmp_path / "src" / "project", "secret.txt")
    if failure == "damaged":
        (root / ".git" / "HEAD").unlink()
    else:
        program = tmp_path / "bin" / "git"
        program.parent.mkdir()
        if FAILURES[failure]:
            program.write_text(FAILURES[failure])
            program.chmod(0o755)
            monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
            monkeypatch.setattr(file_index, "GIT_TIMEOUT", 0.2)
        else:
            monkeypatch.setenv("PATH", str(program.parent))
    with wording.raises(UserError):
        indexed(tmp_path / "made.index", root)
    with caplog.at_level(logging.WARNING):
        assert num_indexed(tmp_path, tmp_path / "src") == 1
    assert str(root) in caplog.text


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
