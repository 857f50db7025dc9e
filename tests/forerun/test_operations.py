"""What `forerun verify` serves for those who watch it: nothing unless it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cloud_verifier.server.serving import watched
from cloud_verifier.server.worker import Worker
from cloud_verifier.settings import OperationsSection
from forerun.cli import build_parser
from forerun.commands.verify import config_of
from tests.cloud_verifier.configured import configured
from tests.cloud_verifier.telemetry.desk import make
from tests.cloud_verifier.telemetry.test_http_server import get


def operations(*words: str) -> OperationsSection:
    return configured(*words).operations


async def listening(worker: Worker, *words: str) -> Mapping[str, str]:
    async with watched(operations(*words), worker) as found:
        return found


async def test_nothing_listens_unless_asked_for() -> None:
    assert await listening(make()) == {}


async def test_what_was_asked_for_answers_on_one_port() -> None:
    async with watched(operations("--http", "127.0.0.1:0"), make()) as found:
        port = int(found["http"].rpartition(":")[2])
        answers = [await get(port, path) for path in ("/metrics", "/livez", "/readyz", "/sessions")]
    assert [answer.status for answer in answers] == [200] * 4


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (["verify", "--model", "x"], None),
        (["--log-level", "error", "verify", "--model", "x"], "error"),
        (["verify", "--model", "x", "--log-level", "debug"], "debug"),
        (["--log-level", "error", "verify", "--model", "x", "--log-level", "debug"], "debug"),
    ],
)
def test_the_level_may_stand_before_or_behind_the_command(words: list[str], level: str | None) -> None:
    assert config_of(build_parser().parse_args(words)).operations.log_level == level
