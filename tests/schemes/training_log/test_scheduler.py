"""A verifier keeps the texts of tenants that agreed, and nothing else is another than without a log."""

import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.effects import Effect, Reply
from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.serving import identity_of, worker_of
from cloud_verifier.settings import IdentitySection, TargetSection, VerifierConfig
from common.errors import UserError
from common.messages import Commit, Open
from common.sampling import SamplingParams
from schemes.training_log.records import LoggedText, LogReader, LogWriter
from schemes.training_log.scheduler import MOST_PROMPT, LoggingScheduler, TrainingLog
from tests.support.tiny import EOS, TABLE, VOCABULARY, complete
from tests.worlds.models import FINGERPRINT, VOCAB, TinyTarget, target_alone, tiny_logits
from tests.worlds.seeds import check_laws, guessing, hinting, run, spec_of

INFO = TargetInfo("tiny", VOCAB, 4096, 8192, (0,), FINGERPRINT)
SAMPLING = SamplingParams(temperature=0.7, max_tokens=40, seed=3, ignore_eos=True)
PROMPT = (1, 2, 3)
CONSENTS = Quotas(tenants={name: Quota(training_log=name) for name in ("off", "texts", "prompts")})


def logging_scheduler(folder: Path, quotas: Quotas = CONSENTS) -> LoggingScheduler:
    scheduler = LoggingScheduler(INFO, SchedulerConfig(), LogWriter(folder, 1 << 24))
    scheduler.on_quotas(quotas, 0.0)
    return scheduler


def play(scheduler: LoggingScheduler, tenant: str, request: Open, most_steps: int = 1000) -> list[Effect]:
    engine, effects = TinyTarget(INFO), list[Effect]()
    scheduler.on_open(1, request, 0.0, Caller(tenant))
    for _ in range(most_steps):
        if (plan := scheduler.next_step(0.0)) is None:
            break
        scheduler.on_step_done(engine.evaluate(plan), 0.01)
        effects += scheduler.effects()
    return effects


def kept(scheduler: LoggingScheduler, folder: Path) -> list[LoggedText]:
    scheduler._log.close()
    return LogReader(folder).newest(100)[0]


@pytest.mark.parametrize("kind", ["plain", "guessing", "hinting"])
def test_every_message_of_a_world_is_the_same_with_a_log(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = Quotas(Quota(training_log="prompts"))
    num_kept = 0
    for seed in range(25):
        spec = spec_of(seed)
        spec = {"plain": spec, "guessing": guessing(spec, seed), "hinting": hinting(spec, seed)}[kind]
        trace = run(spec).trace
        folder = tmp_path / str(seed)

        def scheduler_of(
            info: TargetInfo, config: SchedulerConfig, folder: Path = folder
        ) -> LoggingScheduler:
            scheduler = LoggingScheduler(info, config, LogWriter(folder, 1 << 24))
            scheduler.on_quotas(agreed, 0.0)
            return scheduler

        with monkeypatch.context() as patch:
            patch.setattr("tests.worlds.world.VerifyScheduler", scheduler_of)
            world = run(spec)
        assert world.trace == trace
        check_laws(world)
        for host in world.hosts:
            assert isinstance(host.scheduler, LoggingScheduler)
            num_kept += len(kept(host.scheduler, folder))
    assert num_kept > 25


@pytest.mark.parametrize("asked", [None, 0, 3, 20])
def test_distributions_of_the_raw_logits_are_kept_whatever_the_edge_asked_for(
    tmp_path: Path, asked: int | None
) -> None:
    scheduler = logging_scheduler(tmp_path)
    committed = target_alone(PROMPT, SAMPLING, ())[:5]
    effects = play(
        scheduler, "prompts", Open(PROMPT, SAMPLING, FINGERPRINT, committed=committed, logprobs=asked)
    )
    (text,) = kept(scheduler, tmp_path)
    whole = target_alone(PROMPT, SAMPLING, ())
    assert (tuple(text.prompt), tuple(text.tokens)) == ((*PROMPT, *committed), whole[5:])
    before = [*PROMPT, *committed]
    for token, best, logprobs in zip(text.tokens, text.best, text.logprobs, strict=True):
        logits = tiny_logits(1, before).astype(np.float64)
        law = logits - np.log(np.exp(logits).sum())
        assert best.tolist() == np.argsort(-law, kind="stable").tolist()
        np.testing.assert_allclose(logprobs, law[best], atol=0.01)
        before.append(int(token))
    commits = [
        each.message for each in effects if isinstance(each, Reply) and isinstance(each.message, Commit)
    ]
    widths = {len(one.top) for commit in commits for one in commit.logprobs}
    assert widths == (set() if asked is None else {min(asked, VOCAB)})


def test_a_prompt_is_kept_with_consent_alone(tmp_path: Path) -> None:
    for tenant, prompts in (("prompts", [PROMPT]), ("texts", [()]), ("off", []), ("stranger", [])):
        folder = tmp_path / tenant
        scheduler = logging_scheduler(folder)
        play(scheduler, tenant, Open(PROMPT, SAMPLING, FINGERPRINT))
        assert [tuple(text.prompt) for text in kept(scheduler, folder)] == prompts
        assert bool([*folder.iterdir()]) is bool(prompts)


@pytest.mark.parametrize(("left", "prompts"), [("off", []), ("texts", [()])])
def test_consent_may_be_withdrawn_until_the_text_ends(
    tmp_path: Path, left: str, prompts: list[object]
) -> None:
    scheduler = logging_scheduler(tmp_path)
    play(scheduler, "prompts", Open(PROMPT, SAMPLING, FINGERPRINT), most_steps=10)
    scheduler.on_quotas(Quotas(Quota(training_log=left)), 0.0)
    scheduler.on_close(1, None, 0.0)
    scheduler.effects()
    assert [tuple(text.prompt) for text in kept(scheduler, tmp_path)] == prompts


def test_of_a_long_prompt_the_end_is_kept(tmp_path: Path) -> None:
    scheduler = logging_scheduler(tmp_path)
    prompt = tuple(place % 5 for place in range(MOST_PROMPT + 100))
    play(scheduler, "prompts", Open(prompt, SAMPLING, FINGERPRINT))
    (text,) = kept(scheduler, tmp_path)
    assert tuple(text.prompt) == prompt[-MOST_PROMPT:]


def test_an_engine_without_log_probabilities_loses_nothing_but_its_log(tmp_path: Path) -> None:
    scheduler, engine = logging_scheduler(tmp_path), TinyTarget(INFO)
    scheduler.on_open(1, Open(PROMPT, SAMPLING, FINGERPRINT), 0.0, Caller("prompts"))
    tokens = list[int]()
    while (plan := scheduler.next_step(0.0)) is not None:
        scheduler.on_step_done(replace(engine.evaluate(plan), logprobs=()), 0.01)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                tokens += effect.message.tokens
    assert tuple(tokens) == target_alone(PROMPT, SAMPLING, ())
    assert kept(scheduler, tmp_path) == []


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        IdentitySection(training_log=tmp_path)
    with pytest.raises(UserError):
        IdentitySection(tenant_limits=tmp_path / "limits", training_log_key=tmp_path / "key")
    with pytest.raises(UserError):
        Quota(training_log="everything")
    with pytest.raises(UserError):
        TrainingLog(tmp_path / "log", 1, tmp_path / "no key")


# A verifier that is set up with a training log: what travels to an edge, and what is kept.


SERVED = SamplingParams(temperature=0.7, max_tokens=60, seed=3, ignore_eos=True)
PROMPT_OF_COMPLETE = (1, 2, 3)  # of `complete`
LIMITS = '[default]\ntraining_log = "texts"\n[tenant.none]\ntraining_log = "off"\n'


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


async def served(tmp_path: Path, **identity: Any) -> tuple[tuple[int, ...], set[int], Any]:
    """Return a text, the sizes of the messages to its edge, and the scheduler that wrote it."""
    (tmp_path / "limits.toml").write_text(LIMITS)
    section = IdentitySection(tenant_limits=tmp_path / "limits.toml", **identity)
    config = VerifierConfig(TargetSection(model="tiny"), identity=section)
    worker = worker_of(config, TinyTarget(TargetInfo("tiny", VOCAB, 512, 4096, EOS, VOCABULARY.fingerprint)))
    sizes = defaultdict[int, list[int]](list)
    worker.monitor.note_sent = lambda key, message, size: sizes[key].append(size)  # type: ignore[method-assign]
    caller, files = identity_of(section)
    async with Server(worker, worker.scheduler.info, TABLE, "127.0.0.1:0", caller, None, files) as server:
        run = await complete(f"127.0.0.1:{server.port}", SERVED)
    return run.session.text, {size for one in sizes.values() for size in one}, worker.scheduler


@pytest.mark.grpc
async def test_the_same_text_in_messages_of_the_same_size_is_kept_with_consent(tmp_path: Path) -> None:
    plain, plain_sizes, _ = await served(tmp_path)
    text, sizes, scheduler = await served(tmp_path, training_log=tmp_path / "log")
    assert text == plain == target_alone(PROMPT_OF_COMPLETE, SERVED, ())
    assert sizes == plain_sizes
    assert isinstance(scheduler, LoggingScheduler)
    scheduler._log.close()
    (kept,) = LogReader(tmp_path / "log").newest(10)[0]
    assert (tuple(kept.tokens), kept.model, len(kept.prompt)) == (text, "tiny", 0)
    _, _, scheduler = await served(tmp_path, training_log=tmp_path / "other", tenant_header="tenant")
    scheduler._log.close()
    assert LogReader(tmp_path / "other").num_since(0) == 1, "the default of callers without a name"


def test_a_bad_folder_or_key_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    from forerun.commands.verify import check

    (tmp_path / "limits.toml").write_text(LIMITS)
    (tmp_path / "file").write_text("no key")
    for folder, key in (("file", None), ("log", tmp_path / "file")):
        section = IdentitySection(
            tenant_limits=tmp_path / "limits.toml", training_log=tmp_path / folder, training_log_key=key
        )
        with pytest.raises(UserError):
            check(VerifierConfig(TargetSection(model="lab/demo_models/target"), identity=section))
