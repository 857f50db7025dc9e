"""A verifier that is set up with a training log: what travels to an edge, and what is kept."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.serving import identity_of, worker_of
from cloud_verifier.settings import IdentitySection, TargetSection, VerifierConfig
from common.errors import UserError
from common.sampling import SamplingParams
from schemes.training_log.records import LogReader
from schemes.training_log.scheduler import LoggingScheduler
from tests.support.tiny import EOS, TABLE, VOCABULARY, complete
from tests.worlds.models import VOCAB, TinyTarget, target_alone

SAMPLING = SamplingParams(temperature=0.7, max_tokens=60, seed=3, ignore_eos=True)
PROMPT = (1, 2, 3)  # of `complete`
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
        run = await complete(f"127.0.0.1:{server.port}", SAMPLING)
    return run.session.text, {size for one in sizes.values() for size in one}, worker.scheduler


@pytest.mark.grpc
async def test_the_same_text_in_messages_of_the_same_size_is_kept_with_consent(tmp_path: Path) -> None:
    plain, plain_sizes, _ = await served(tmp_path)
    text, sizes, scheduler = await served(tmp_path, training_log=tmp_path / "log")
    assert text == plain == target_alone(PROMPT, SAMPLING, ())
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
