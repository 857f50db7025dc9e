"""Logs of real engines, filled by a scheduler and no service."""

from collections.abc import Sequence
from pathlib import Path

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.engine_protocol import TargetEngine
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import Quota, Quotas
from common.messages import Open
from common.sampling import SamplingParams
from schemes.training_log.records import LogKey, LogWriter
from schemes.training_log.scheduler import LoggingScheduler
from tests.support.played import played
from training.prompts import bundled


def fill(
    folder: Path,
    engine: TargetEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    consent: str = "prompts",
    key: Path | None = None,
) -> list[list[int]]:
    """Let the engine write a text behind each prompt, and return the texts. They are then in the folder."""
    log = LogWriter(folder, 1 << 24, None if key is None else LogKey(key))
    scheduler = LoggingScheduler(engine.info, SchedulerConfig(), log)
    scheduler.on_quotas(Quotas(Quota(training_log=consent)), 0.0)
    for number, prompt in enumerate(prompts, 1):
        scheduler.on_open(number, Open(tuple(prompt), sampling, engine.info.fingerprint), 0.0, Caller("acme"))
    texts = played(scheduler, engine)
    log.close()
    return [texts[number] for number in range(1, 1 + len(prompts))]


def some_prompts(count: int) -> list[str]:
    """Return beginnings of small functions, all different."""
    texts = bundled()
    return [f"# {number}\n{texts[number % len(texts)]}" for number in range(count)]
