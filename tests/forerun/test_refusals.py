"""Nonsense on the command line is refused with a sentence, before anything is loaded, fetched or written."""

from pathlib import Path

import pytest

from forerun.cli import main
from tests.support.refusals import refuse

VERIFY, RECORD = "verify --model none", "record --out a.jsonl"
DEV = "certs dev --out out --name localhost"

REFUSED = f"""
{VERIFY} --threads -1
{VERIFY} --deterministic
{VERIFY} --listen 50051
{VERIFY} --listen localhost:none
{VERIFY} --http 9464
{VERIFY} --http localhost:x
{VERIFY} --http localhost:²
{VERIFY} --tls-cert c
{VERIFY} --tls-key k
{VERIFY} --tls-client-ca a
{VERIFY} --tls-cert c --tls-key k
{VERIFY} --tenant-header k --tenant-certificate
{VERIFY} --tenant-header k --token-keys f
{VERIFY} --tenant-certificate --token-keys f
{VERIFY} --tenant-certificate
{VERIFY} --token-audience a
{VERIFY} --token-keys none.json --token-audience a
{VERIFY} --tenant-limits none.toml
{VERIFY} --denied none
{DEV} --days 400
{DEV} --tenant a/b
{DEV} --device d1,
{DEV} --domain 'Ex ample'
edge --draft d --small-draft s --second-draft s
edge --draft d --tokens t --second-draft s
local --target t
local --target t --draft pyproject.toml --verify "'"
local --target t --draft none.gguf
local --target t --draft d --verifier localhost:1
{RECORD} --candidates 9
{RECORD} --context 96
{RECORD} --out /nowhere/at/all.jsonl
{RECORD} --temperature -1
{RECORD} --prompt x --prompts y
{RECORD} --prompts none.json
top --interval 0
top --interval nan
top --interval inf
"""


@pytest.mark.grpc
@pytest.mark.llama
@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_nonsense_is_refused_before_anything_is_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(main, line, tmp_path, monkeypatch, capsys)
