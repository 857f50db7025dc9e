"""Texts are read back as they were written, whatever else happens to the files of a log."""

import logging
import os
import stat
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from schemes.training_log.records import LoggedText, LogKey, LogReader, LogWriter, folder_of

NUM_TOKENS, WIDTH = 60, 20


def text_of(seed: int, num_prompt: int = 5) -> LoggedText:
    draw = np.random.default_rng(seed)
    logprobs = -np.sort(draw.exponential(3.0, (NUM_TOKENS, WIDTH))).astype(np.float16).astype(np.float32)
    return LoggedText(
        "target",
        bytes(range(32)),
        0.03,
        draw.integers(0, 50000, num_prompt, np.int32),
        draw.integers(0, 50000, NUM_TOKENS, np.int32),
        draw.integers(0, 50000, (NUM_TOKENS, WIDTH), np.int32),
        logprobs,
    )


def same(one: LoggedText, other: LoggedText) -> bool:
    arrays = ("prompt", "tokens", "best", "logprobs")
    about = (one.model, one.fingerprint, one.step_time) == (other.model, other.fingerprint, other.step_time)
    return about and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)


def key_in(folder: Path, digit: str = "a") -> LogKey:
    path = folder / f"key-{digit}"
    path.write_text(f"{digit * 64}\n")
    return LogKey(path)


def write(
    folder: Path, texts: list[tuple[str, LoggedText]], most_bytes: int = 1 << 20, key: LogKey | None = None
) -> None:
    times = count(1)
    writer = LogWriter(folder, most_bytes, key, clock=lambda: float(next(times)))
    for tenant, text in texts:
        writer._write(tenant, text)


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_newest_texts_are_read_back_in_order(tmp_path: Path, encrypted: bool) -> None:
    key = key_in(tmp_path) if encrypted else None
    texts = [text_of(seed, num_prompt=seed % 3) for seed in range(6)]
    tenants = ["acme", "", "../b", "acme", "ü/..", ".."]
    write(tmp_path / "log", list(zip(tenants, texts, strict=True)), key=key)
    reader = LogReader(tmp_path / "log", key)
    assert reader.num_since(2000) == 4
    assert reader.num_since(10**15) == 0
    newest, at = reader.newest(4)
    assert at == 6000
    assert all(same(*pair) for pair in zip(newest, texts[2:], strict=True))
    acme, _ = LogReader(tmp_path / "log" / folder_of("acme"), key).newest(10)
    assert [same(text, wanted) for text, wanted in zip(acme, [texts[0], texts[3]], strict=True)] == [True] * 2
    assert {path.parent.parent for path in tmp_path.rglob("*.texts")} == {tmp_path / "log"}


def test_only_the_owner_reads_the_files_and_a_key_hides_their_content(tmp_path: Path) -> None:
    text = replace(text_of(1), model="a model with a long name")
    write(tmp_path / "plain", [("", text)])
    write(tmp_path / "sealed", [("", text), ("", text)], key=key_in(tmp_path))
    (sealed,) = (tmp_path / "sealed").rglob("*.texts")
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "sealed").stat().st_mode) == 0o700
    (plain,) = (tmp_path / "plain").rglob("*.texts")
    content = plain.read_bytes()[28:]
    data = sealed.read_bytes()
    assert content[:40] not in data
    assert data[28 : len(data) // 2] != data[len(data) // 2 + 28 :], "a nonce of its own for each"


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_damaged_record_is_skipped_and_counted(tmp_path: Path, encrypted: bool) -> None:
    key = key_in(tmp_path) if encrypted else None
    texts = [text_of(seed) for seed in range(3)]
    write(tmp_path / "log", [("", text) for text in texts], key=key)
    (path,) = tmp_path.rglob("*.texts")
    whole = path.read_bytes()
    begin = whole.index(b"FTL1", 1)
    for place in [begin, begin + 4, begin + 7, begin + 8, begin + 12, begin + 17, begin + 100]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        reader = LogReader(tmp_path / "log", key)
        found, _ = reader.newest(10)
        assert [same(*pair) for pair in zip(found, [texts[0], texts[2]], strict=True)] == [True, True]
        assert reader.num_damaged == 1
    path.write_bytes(whole[:-1])
    reader = LogReader(tmp_path / "log", key)
    assert len(reader.newest(10)[0]) == 2
    assert reader.num_damaged == 1


def test_another_key_or_none_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "log", [("", text_of(1))], key=key_in(tmp_path, "a"))
    for key in (None, key_in(tmp_path, "b")):
        with pytest.raises(UserError):
            LogReader(tmp_path / "log", key).newest(10)
    write(tmp_path / "log", [("", text_of(2))], key=key_in(tmp_path, "b"))
    reader = LogReader(tmp_path / "log", key_in(tmp_path, "b"))
    assert len(reader.newest(10)[0]) == 1
    assert reader.num_closed == 1


@pytest.mark.parametrize("content", [b"", b"secret", b"ab" * 31, b"zz" * 32, b"\xff" * 64], ids=repr)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UserError):
        LogKey(tmp_path / "key")


def test_the_log_stays_below_its_bound_and_the_tenant_that_holds_most_loses_its_oldest(
    tmp_path: Path,
) -> None:
    most = 200_000
    quiet = [("quiet", text_of(0)), ("quiet", text_of(1))]
    texts = [text_of(seed) for seed in range(2, 100)]
    write(tmp_path / "log", quiet + [("loud", text) for text in texts], most_bytes=most)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.texts"))
    assert most // 2 < size <= most
    kept, _ = LogReader(tmp_path / "log").newest(1000)
    assert same(kept[0], quiet[0][1])
    assert same(kept[1], quiet[1][1])
    assert 10 < len(kept) < 100
    assert all(same(*pair) for pair in zip(kept[2:], texts[-len(kept[2:]) :], strict=True))


def test_a_folder_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError):
        LogWriter(tmp_path / "file", 1 << 20)
    with pytest.raises(UserError):
        LogReader(tmp_path / "file")


def test_a_lost_folder_is_told_once_and_writing_goes_on_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "log"
    writer = LogWriter(folder, 1 << 20)
    folder.rmdir()
    folder.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            writer.put("", text_of(seed))
        writer.close()
    assert len(caplog.records) == 1
    folder.unlink()
    writer.put("", text_of(7))
    writer.close()
    assert same(LogReader(folder).newest(10)[0][0], text_of(7))


def test_a_text_that_cannot_be_written_is_told_and_left_out_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LogWriter(tmp_path, 1 << 20)
    good, bad = text_of(1), replace(text_of(2), prompt=np.zeros((2, 2), np.int32))
    for text in (bad, good, bad, good):
        writer.put("acme", text)
    writer.close()
    texts, _ = LogReader(tmp_path).newest(9)
    assert [same(text, good) for text in texts] == [True, True]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_full_disk_leaves_no_part_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole = os.write
    writer = LogWriter(tmp_path / "log", 1 << 20)
    writer._write("", text_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write_whole(file, data[:100]))
        with pytest.raises(OSError, match="full"):
            writer._write("", text_of(2))
    writer._write("", text_of(3))
    reader = LogReader(tmp_path / "log")
    assert [len(reader.newest(10)[0]), reader.num_damaged] == [2, 0]
