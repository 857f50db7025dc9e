"""Which privacy holds on a stream, seen from the edge's end: what comes is measured, not believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from common.messages import Open
from common.privacy import Privacy
from common.rpc.frames import down_size


@dataclass(frozen=True, slots=True)
class Held:
    """Of one stream, from `Opened` on. `down` is off from the first frame that had a size of its own."""

    up: Privacy
    down: Privacy
    interval: float = 0.0  # seconds from frame to frame where it is strict

    def as_json(self) -> dict[str, Any]:
        """For status pages."""
        cadence = round(self.interval * 1e3, 1) if self.interval else None
        return {"up": self.up.title, "down": self.down.title, "cadence_ms": cadence}


class Holding:
    """Keeps it. Driven by the stream: `opened` once, and `came` for each frame, that of `Opened` included.

    `on_opened` is called when there is something to tell.
    """

    def __init__(self, on_opened: Callable[[Holding], None] = lambda holding: None) -> None:
        self.held: Held | None = None  # until the verifier has opened
        self._on_opened = on_opened
        self._size = 0  # bytes of a frame down; 0: none that it must have

    def opened(self, asked: Open, told: Privacy | None, up: Privacy, interval: float) -> None:
        """The verifier said what holds (None: it does not know what that is); `up` is what this side does."""
        down = told or Privacy.OFF
        self._size = 0 if down is Privacy.OFF else down_size(asked, down)
        self.held = Held(up, down, interval)
        self._on_opened(self)

    def came(self, size: int) -> None:
        """A frame of so many bytes."""
        if self._size and size != self._size and self.held is not None:
            self._size = 0
            self.held = replace(self.held, down=Privacy.OFF)
