"""What `forerun verify` serves for those who watch it: nothing unless it was asked for."""

from __future__ import annotations

import argparse
import urllib.request
from asyncio import to_thread

import pytest

from cloud_verifier.worker import Worker
from common.errors import UserError
from forerun.cli import build_parser, main
from forerun.operations import check_operations, watched
from forerun.top import AdminChannel
from tests.cloud_verifier.telemetry.desk import make
from tests.cloud_verifier.test_probes import probe


def options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["verify", "--model", "none", *words])


async def listening(worker: Worker, *words: str) -> dict[str, str]:
    async with watched(worker, options(*words)) as found:
        return found


async def test_nothing_listens_unless_asked_for() -> None:
    assert await listening(make()) == {}


@pytest.mark.grpc
async def test_what_was_asked_for_answers() -> None:
    asked = options("--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--health", "127.0.0.1:0")
    async with watched(make(), asked) as found:
        assert set(found) == {"metrics", "admin", "health"}
        assert await probe(found["health"], "readiness") == "SERVING"
        page = await to_thread(urllib.request.urlopen, f"http://{found['metrics']}/metrics")
        assert b"forerun_sessions_opened_total" in page.read()
        async with AdminChannel(found["admin"]) as channel:
            assert (await channel.overview()).model == "tiny"


async def test_one_that_cannot_listen_leaves_none_behind() -> None:
    async with watched(make(), options("--metrics", "127.0.0.1:0")) as found:
        with pytest.raises(UserError, match="in use"):
            await listening(make(), "--admin", "127.0.0.1:0", "--metrics", found["metrics"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--metrics", "9464"], "--metrics is '9464'; it must be HOST:PORT"),
        (["--metrics", "localhost:x"], "it must be HOST:PORT"),
        (["--health", "50052"], "--health is '50052'; it must be HOST:PORT"),
        (["--metrics", "localhost:²"], "it must be HOST:PORT"),
        (["--admin", "50061"], "it must be unix:PATH or HOST:PORT"),
        (["--admin", "0.0.0.0:50061"], "give an address of this machine only"),
        (["--metrics-tenants", "-1"], "--metrics-tenants is -1"),
    ],
)
def test_nonsense_is_refused_before_a_model_is_loaded(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--model", "none", *words]) == 2
    assert sentence in capsys.readouterr().err


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
    assert build_parser().parse_args(words).log_level == level


def test_good_options_are_good() -> None:
    check_operations(options("--metrics", "[::1]:9464", "--admin", "unix:/tmp/x", "--metrics-tenants", "5"))
