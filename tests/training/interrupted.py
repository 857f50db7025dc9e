"""An interruption of a training, as by Ctrl-C."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def interrupted_after(num_updates: int) -> Iterator[None]:
    """Interrupt each training in the block before its next update."""
    from training.trainer import Trainer

    step = Trainer.step

    def interrupted(trainer: Trainer) -> list[float]:
        if trainer.done == num_updates:
            raise KeyboardInterrupt
        return step(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        yield
