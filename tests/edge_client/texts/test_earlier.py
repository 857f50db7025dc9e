"""Earlier texts outlive the daemon if the user wants that, and no file stops it."""

import logging
import stat
from pathlib import Path

import pytest

from common.prompt_lookup import PromptLookup, SharedTexts
from edge_client.texts.earlier import SAVE_AFTER, EarlierTexts
from tests.support.clock import Clock

PRINT = b"print"


def write_text(texts: EarlierTexts, *tokens: int) -> None:
    lookup = PromptLookup((90, 91), SharedTexts(texts.index))
    for token in tokens:
        lookup.append(token)
    lookup.close()
    texts.text_ended()


def continued(texts: EarlierTexts, *tokens: int) -> list[int]:
    found = PromptLookup(tokens, SharedTexts(texts.index)).guess(8, least=-9.0)
    return [guess.token for guess in found]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def spoil(path: Path, fault: str) -> None:
    content = path.read_bytes()
    match fault:
        case "cut off":
            path.write_bytes(content[:-2])
        case "a folder":
            path.unlink()
            path.mkdir()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "earlier" / "default.index"


async def saved(path: Path, *tokens: int) -> None:
    texts = EarlierTexts(1000, path, PRINT)
    write_text(texts, *tokens)
    await texts.close()


async def test_texts_are_found_again_after_a_restart(path: Path) -> None:
    await saved(path, 1, 2, 3, 4)
    await saved(path, 5, 6, 7)
    again = EarlierTexts(1000, path, PRINT)
    assert continued(again, 1, 2) == [3, 4]
    assert continued(again, 5, 6) == [7]
    assert continued(again, 90, 91)[0] in (1, 5), "prompts are compared and not proposed"
    assert [mode_of(path), mode_of(path.parent)] == [0o600, 0o700]
    assert list(path.parent.iterdir()) == [path]


async def test_only_the_newest_tokens_are_kept(path: Path) -> None:
    await saved(path, *range(100, 900))
    again = EarlierTexts(100, path, PRINT)
    assert len(again.index) == 100
    assert continued(again, 850, 851)[0] == 852
    assert continued(again, 150, 151) == []
    write_text(again, 5, 6)
    await again.close()
    assert len(EarlierTexts(1000, path, PRINT).index) == 102


async def test_a_daemon_without_a_text_leaves_the_file_alone(path: Path) -> None:
    await saved(path, 1, 2, 3)
    await EarlierTexts(1000, path, b"other").close()
    assert continued(EarlierTexts(1000, path, PRINT), 1, 2) == [3]


async def test_a_crash_loses_only_the_newest_texts(path: Path) -> None:
    clock = Clock()
    texts = EarlierTexts(1000, path, PRINT, clock)
    write_text(texts, 1, 2, 3)
    assert not path.parent.exists()
    clock.now += SAVE_AFTER
    write_text(texts, 4, 5, 6)
    assert texts._saving is not None
    await texts._saving
    write_text(texts, 7, 8, 9)
    after = EarlierTexts(1000, path, PRINT)
    assert (continued(after, 1, 2), continued(after, 4, 5), continued(after, 7, 8)) == ([3], [6], [])
    await texts.close()
    assert continued(EarlierTexts(1000, path, PRINT), 7, 8) == [9]


@pytest.mark.parametrize("fault", ["cut off", "of another tokenizer", "a folder"])
async def test_a_file_that_cannot_be_used_is_reported_and_replaced(
    fault: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await saved(path, 1, 2, 3)
    spoil(path, fault)
    with caplog.at_level(logging.WARNING):
        texts = EarlierTexts(1000, path, b"other" if fault == "of another tokenizer" else PRINT)
    assert str(path) in caplog.text
    assert continued(texts, 1, 2) == []
    write_text(texts, 4, 5, 6)
    await texts.close()
    if fault == "a folder":
        assert "in memory alone" in caplog.text
    else:
        again = EarlierTexts(1000, path, texts._fingerprint)
        assert (continued(again, 1, 2), continued(again, 4, 5)) == ([], [6])
