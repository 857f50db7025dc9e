"""Plays attacks one after the other, and judges each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import ForerunError, UnavailableError
from tests.attacks.honest import Honest, Text
from tests.attacks.stages import TOKENS, NoStage, Stage, VerifierStage, resident
from tests.attacks.table import STAGES, Attack
from tests.fuzz.laws import Broken

MOST_RATIO = 3.0
"""Of the 95th percentile of gaps, under attack to undisturbed."""

LEAST_PATIENCE = 30.0
"""Seconds for the honest text under attack, at least."""

DYING = 0.5
"""Seconds in which a process that was killed is seen to be gone."""

LONGEST = 150.0
"""Seconds that one attack may take, beside the honest text."""


@dataclass(slots=True)
class Verdict:
    """How an attack went. `why` is empty if all held."""

    name: str
    against: str
    why: str = ""
    skipped: str = ""
    seconds: float = 0.0
    p95_ms: float | None = None  # of the honest text's gaps
    undisturbed_ms: float | None = None
    peak_mib: int | None = None  # of the processes of the stage

    @property
    def ratio(self) -> float | None:
        """Of the honest text's pace."""
        if self.p95_ms is None or not self.undisturbed_ms:
            return None
        return round(self.p95_ms / self.undisturbed_ms, 2)


class Run:
    """Attacks in one folder. An async context manager; `play` may be called once.

    `tokens`: of the honest text beside each attack.
    """

    def __init__(self, folder: Path, tokens: int = TOKENS) -> None:
        self._folder, self._tokens = folder, tokens
        self._stack = contextlib.AsyncExitStack()
        self._behind: VerifierStage | None = None  # a verifier for daemons
        self._numbers = itertools.count(1)
        self._honest: Honest

    async def __aenter__(self) -> Run:
        self._honest = await Honest.start()
        self._stack.push_async_callback(self._honest.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def play(
        self, attacks: Sequence[Attack], tell: Callable[[Verdict], None] = lambda _: None
    ) -> list[Verdict]:
        """All of them, those that meet the same stage one behind the other."""
        found = list[Verdict]()

        def note(verdict: Verdict) -> None:
            found.append(verdict)
            tell(verdict)

        for attack in (each for each in attacks if each.skipped):
            note(Verdict(attack.name, attack.against, skipped=attack.skipped))
        playing = [each for each in attacks if not each.skipped]
        for against, group in itertools.groupby(playing, key=lambda each: each.against):
            await self._on_one_stage(against, list(group), note)
        return found

    async def _on_one_stage(
        self, against: str, attacks: Sequence[Attack], note: Callable[[Verdict], None]
    ) -> None:
        """The stage is built anew after an attack that broke something."""
        todo = list(attacks)
        while todo:
            async with self._stage(against) as stage:
                undisturbed = await self._undisturbed(stage) if todo[0].beside else Text()
                held = True
                while todo and held:
                    if todo[0].beside and not undisturbed.gaps:
                        undisturbed = await self._undisturbed(stage)
                    verdict = await self._one(todo.pop(0), stage, undisturbed)
                    held = not verdict.why
                    note(verdict)
                if held:
                    note(await self._drained(against, stage))

    async def _undisturbed(self, stage: Stage) -> Text:
        text = await stage.text(self._tokens)
        if text.error:
            raise ForerunError(f"the honest text failed before any attack: {text.error}")
        return text

    async def _one(self, attack: Attack, stage: Stage, undisturbed: Text) -> Verdict:
        """One attack. It is played again if only the honest text's pace was wrong: machines have moments."""
        verdict = await self._once(attack, stage, undisturbed)
        if attack.paced and not verdict.why and (verdict.ratio or 0.0) >= MOST_RATIO:
            undisturbed = await self._undisturbed(stage)
            verdict = await self._once(attack, stage, undisturbed)
            if not verdict.why and (verdict.ratio or 0.0) >= MOST_RATIO:
                verdict.why = f"the honest text's p95 was {verdict.ratio} times its undisturbed value"
        return verdict

    async def _once(self, attack: Attack, stage: Stage, undisturbed: Text) -> Verdict:
        verdict, over, began = Verdict(attack.name, attack.against), asyncio.Event(), time.monotonic()
        for each in stage.subjects:
            each.peak = resident(each.program.pid)
        playing = asyncio.ensure_future(attack.play(stage, over))
        try:
            if attack.beside:
                patience = max(LEAST_PATIENCE, 2 * MOST_RATIO * sum(undisturbed.gaps))
                text = await stage.text(self._tokens, patience)
                over.set()
                verdict.p95_ms, verdict.undisturbed_ms = (
                    round(each.p95 * 1e3, 1) for each in (text, undisturbed)
                )
                _compare(text, undisturbed)
            else:
                over.set()
            async with asyncio.timeout(LONGEST):
                await playing
            if not any(each.program.code == 0 for each in stage.subjects):  # drained by the attack itself
                stage.check()
        except (Broken, ForerunError) as error:
            verdict.why = str(error)
        except TimeoutError:
            verdict.why = f"the attack was not over after {LONGEST:g} s"
        except Exception as error:  # noqa: BLE001 - whatever an attack meets that it did not expect is a finding
            verdict.why = f"{type(error).__name__}: {error}"
        finally:
            over.set()
            playing.cancel()
            await asyncio.wait([playing])
        if verdict.why:
            verdict.why = await _also_dead(stage, verdict.why)
        _measure(verdict, stage)
        verdict.seconds = round(time.monotonic() - began, 1)
        return verdict

    async def _drained(self, against: str, stage: Stage) -> Verdict:
        """After the attacks: told to go while an honest text is written, the processes go in time."""
        verdict, began = Verdict("gone when told to", against), time.monotonic()
        if isinstance(stage, NoStage) or any(each.program.code == 0 for each in stage.subjects):
            verdict.skipped = "no process is left"
            return verdict
        text = None if stage.lies else asyncio.ensure_future(stage.text(self._tokens))
        await asyncio.sleep(0.5)
        try:
            await stage.drain()
        except Broken as error:
            verdict.why = str(error)
        if text is not None:
            await text
        verdict.seconds = round(time.monotonic() - began, 1)
        return verdict

    @contextlib.asynccontextmanager
    async def _stage(self, against: str) -> AsyncIterator[Stage]:
        folder = self._folder / f"{next(self._numbers)}-{against.replace(' ', '-').replace(',', '')}"
        folder.mkdir(parents=True)
        behind = VerifierStage(folder, self._honest)
        if against.startswith("daemon"):
            behind = await self._verifier()
        async with STAGES[against](folder, self._honest, behind) as stage:
            yield stage

    async def _verifier(self) -> VerifierStage:
        """The one behind all daemons."""
        if self._behind is None or self._behind.verifier.program.code is not None:
            stage = VerifierStage(self._folder / f"{next(self._numbers)}-behind", self._honest)
            self._behind = await self._stack.enter_async_context(stage)
        return self._behind


def _compare(text: Text, undisturbed: Text) -> None:
    if text.error:
        raise Broken(f"the honest text failed: {text.error}")
    if text.text != undisturbed.text:
        raise Broken("the honest text is another one than without the attack")


async def _also_dead(stage: Stage, why: str) -> str:
    """A process that died, or is about to, explains whatever else was seen."""
    for each in stage.subjects:
        with contextlib.suppress(UnavailableError):
            await each.program.gone(DYING)
    try:
        stage.check()
    except Broken as error:
        return str(error) if str(error) in why else f"{error}; {why}"
    return why


def _measure(verdict: Verdict, stage: Stage) -> None:
    if stage.subjects:
        verdict.peak_mib = max(each.peak for each in stage.subjects) >> 20
