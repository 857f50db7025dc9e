"""The process that updates an index beside a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from common.vocabulary import Vocabulary
from edge_client.texts.datastore import read, update
from edge_client.texts.index_child import renew_in_child
from lab import demo_models
from tests import wording

pytestmark = pytest.mark.llama

DRAFT = str(demo_models.DRAFT_GGUF)


async def test_an_index_takes_in_what_has_changed(tmp_path: Path) -> None:
    from common.llama.model import LlamaModel, LlamaSettings

    folder, path = tmp_path / "project", tmp_path / "project.index"
    folder.mkdir()
    (folder / "one.py").write_text("alpha = 1")
    with LlamaModel(LlamaSettings(DRAFT), weights=False) as words:
        update(path, [str(folder)], words, Vocabulary(words.token_table()).fingerprint)
    (folder / "two.py").write_text("beta = 2")
    await renew_in_child(DRAFT, path)
    assert [Path(file.path).name for file in read(path).files] == ["one.py", "two.py"]


async def test_a_failure_is_told(tmp_path: Path) -> None:
    with wording.raises(UserError):
        await renew_in_child(DRAFT, tmp_path / "none.index")
