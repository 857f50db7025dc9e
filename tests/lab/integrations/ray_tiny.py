"""The tiny target as an application of Ray Serve, for `tests.lab.integrations.ray_cluster`.

Its `model` is a folder. Each replica marks its steps in a file there, and holds every step while there is a
file `hold`.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetInfo
from cloud_verifier.settings import VerifierConfig
from common.wire.describe import TokenTable
from tests.support.tiny import EOS, TABLE, VOCABULARY
from tests.worlds.models import VOCAB, TinyTarget

APPLICATION = f"{__name__}:application"


def application(args: Mapping[str, Any]) -> Any:
    """As `forerun_ray.application.verifier`."""
    from forerun_ray.application import application as build

    return build(args, loading)


class Marked(TinyTarget):
    """The tiny target that works for the folder."""

    folder = Path()

    def evaluate(self, plan: StepPlan) -> StepResult:
        with (self.folder / f"replica-{os.getpid()}").open("a", encoding="ascii") as out:
            out.write(".")
        while (self.folder / "hold").exists():
            time.sleep(0.01)
        return super().evaluate(plan)


def loading(config: VerifierConfig) -> tuple[Marked, TokenTable]:
    """In place of `cloud_verifier.server.serving.load`, in a replica."""
    engine = Marked(TargetInfo("tiny", VOCAB, 512, config.target.slots or 16384, EOS, VOCABULARY.fingerprint))
    engine.folder = Path(config.target.path)
    return engine, TABLE
