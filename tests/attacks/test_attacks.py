"""A few of the known attacks, and that the command sees what an attack breaks. `make attacks` plays all."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.attacks.run import Verdict
    from tests.attacks.table import Attack

pytestmark = [
    pytest.mark.api,
    pytest.mark.grpc,
    pytest.mark.torch,
    pytest.mark.grammar,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded and watched as on Linux"),
]


async def played(folder: Path, *attacks: Attack) -> dict[str, Verdict]:
    """How they went, whatever the pace was: machines that run tests are busy."""
    from tests.attacks.run import Run

    async with Run(folder, tokens=30) as run:
        verdicts = await run.play([replace(each, paced=False) for each in attacks])
    return {verdict.name: verdict for verdict in verdicts}


def named(*names: str) -> list[Attack]:
    from tests.attacks.table import ATTACKS

    return [attack for attack in ATTACKS if attack.name in names]


async def test_known_attacks_on_a_verifier_break_nothing(tmp_path: Path) -> None:
    found = await played(tmp_path, *named("compressed padding", "forged tokens"))
    assert list(found) == ["compressed padding", "forged tokens", "gone when told to"]
    assert not [verdict for verdict in found.values() if verdict.why]
    assert (found["compressed padding"].peak_mib or 0) > 50, "the memory was watched"


async def test_known_attacks_on_files_break_nothing(tmp_path: Path) -> None:
    found = await played(tmp_path, *named("damaged target"))
    assert not [verdict for verdict in found.values() if verdict.why]


async def test_what_an_attack_breaks_is_told(tmp_path: Path) -> None:
    from tests.attacks.stages import VerifierStage, expect
    from tests.attacks.table import NOTHING, PLAIN, Attack

    async def kill(stage: VerifierStage, over: asyncio.Event) -> None:
        stage.verifier.program.send(signal.SIGKILL)
        await over.wait()

    async def succeed(stage: Any, over: asyncio.Event) -> None:
        expect(False, "somebody came in")

    async def fail(stage: Any, over: asyncio.Event) -> None:
        raise ValueError("the attack itself is wrong")

    found = await played(
        tmp_path,
        Attack("kill", PLAIN, kill, "all"),
        Attack("succeed", NOTHING, succeed, "nobody comes in", beside=False),
        Attack("fail", NOTHING, fail, "all", beside=False),
        Attack("later", NOTHING, fail, "all", skipped="not yet"),
    )
    assert "ended with code -9" in found["kill"].why
    assert found["succeed"].why == "somebody came in"
    assert found["fail"].why.startswith("ValueError")
    assert (found["later"].why, found["later"].skipped) == ("", "not yet")


async def test_a_process_beyond_its_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.benchmarks.processes import LoggedProcess
    from tests.attacks import stages
    from tests.fuzz.laws import Broken

    monkeypatch.setattr(stages, "LIMIT", 1 << 20)
    log = tmp_path / "log"
    under = stages.Subject(LoggedProcess("client", module="tests.attacks.honest", log=log), log)
    try:
        await under.start()
        async with asyncio.timeout(60):
            await under.program.gone()
        with pytest.raises(Broken, match="was killed"):
            under.check()
    finally:
        await under.kill()
