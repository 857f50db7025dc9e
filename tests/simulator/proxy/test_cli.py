"""Laws of the command: it says where it listens, runs until told to stop, and explains what is wrong."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from simulator.proxy.cli import main
from simulator.proxy.connection import Address

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--upstream"),
        (["--upstream", "nowhere"], "HOST:PORT"),
        (["--upstream", "h:1", "--latency", "-3"], "latency"),
        (["--upstream", "h:1", "--latency", "3", "--jitter", "-1"], "jitter"),
        (["--upstream", "h:1", "--rate", "0"], "rate"),
        (["--upstream", "h:1", "--latency", "3", "--rtt", "3"], "not allowed"),
    ],
)
def test_a_wrong_argument_is_explained(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
async def test_the_command_leads_bytes_through_and_ends_on_sigterm() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(4)).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    upstream = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    command = [sys.executable, "-m", "simulator.proxy", "--upstream", upstream, "--rtt", "2"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(120), server:
        first = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"listening on (\S+)\n", first)
        assert found, first
        address = Address.parse(found[1])
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"ping")
        assert await reader.read() == b"PING"
        writer.close()
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"up 4 bytes" in out
    assert b"down 4 bytes" in out
