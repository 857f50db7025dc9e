"""What one hostile client does."""

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Send:
    """Put these bytes on the stream as one message."""

    data: bytes


@dataclass(frozen=True)
class Listen:
    """Wait a moment for an answer."""


@dataclass(frozen=True)
class Leave:
    """Break the stream off; with `politely` only its own half of it, which is no goodbye (rule 9)."""

    politely: bool = False


Event = Send | Listen | Leave


@dataclass(frozen=True)
class Case:
    """One or two streams of one client, played side by side."""

    streams: tuple[tuple[Event, ...], ...]
    tenant: str = "hostile"
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    time_left: float | None = None  # seconds, the deadline of its calls
    method: str = "Session"
    squeezed: bool = False  # gzip
    hurried: bool = False  # says all without listening between


ENDS: st.SearchStrategy[tuple[Event, ...]] = st.sampled_from([(), (), (Leave(),), (Leave(politely=True),)])
HURRY = st.sampled_from([False, False, False, True])
DEADLINES = st.sampled_from([None, None, None, None, 30.0, 1e9, 0.05, 0.0])
