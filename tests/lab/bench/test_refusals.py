"""Wrong settings of `python -m lab` are refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.__main__ import main
from tests.support.refusals import refuse

CAPACITY, DEV = "bench capacity --target formula --drafts off", "certs dev --out out --name localhost"

REFUSED = f"""
validate --out v --num-prompts 0
validate --out v --max-tokens 1
{CAPACITY} --sessions 0
{CAPACITY} --repeats 0
{CAPACITY} --rounds 0
{CAPACITY} recorded
{CAPACITY} --policy x
bench daemon --clients 0
{DEV} --days 400
{DEV} --tenant a/b
{DEV} --device d1,
{DEV} --domain 'Ex ample'
"""


@pytest.mark.grpc
@pytest.mark.llama
@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_nonsense_is_refused_before_anything_is_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(main, line, tmp_path, monkeypatch, capsys)
