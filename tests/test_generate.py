"""Generated files are fresh."""

from pathlib import Path

import pytest

from lab.tools import generate


@pytest.mark.parametrize("path", generate.files(), ids=lambda path: path.name)
def test_a_generated_file_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.files()[path], "stale: run `make generate`"
