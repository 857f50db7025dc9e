"""What one hostile client does: the words that strategies speak and runners carry out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Send:
    """Put these bytes on the stream as one message."""

    data: bytes


@dataclass(frozen=True)
class Step:
    """Let the verifier do something: a whole step, or the half of one that is left."""


@dataclass(frozen=True)
class Begin:
    """Let a step begin, so that what comes next meets it while it runs."""


@dataclass(frozen=True)
class Wait:
    """Let time pass. A live server is not waited for."""

    seconds: float


@dataclass(frozen=True)
class Leave:
    """Break the stream off; with `politely` only its own half of it, which is no goodbye (rule 9)."""

    politely: bool = False


Event = Send | Step | Begin | Wait | Leave


@dataclass(frozen=True)
class Limits:
    """Of the verifier, where a case may have one of its own."""

    num_slots: int = 600
    recall: bool = False
    prefix_cache: bool = True
    max_rows: int = 256
    promised_text: int = 512


@dataclass(frozen=True)
class Credential:
    """By what a call says who it is; which bytes that makes is told in `strangers`."""

    kind: str
    noise: bytes = b""
    at: int = 0  # where something is done to it


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
    limits: Limits = Limits()
    credential: Credential | None = None  # where the server asks for one


STEPS: st.SearchStrategy[Event] = st.sampled_from([Step(), Step(), Begin()])
ENDS: st.SearchStrategy[tuple[Event, ...]] = st.sampled_from([(), (), (Leave(),), (Leave(politely=True),)])
LIMITS = st.builds(
    Limits,
    num_slots=st.sampled_from([600, 160]),  # the second: sessions give way to each other
    recall=st.booleans(),
    prefix_cache=st.booleans(),
    max_rows=st.sampled_from([256, 2]),  # the second: not all tips fit a step, so tenants take turns
    promised_text=st.sampled_from([512, 2]),
)
HURRY = st.sampled_from([False, False, False, True])
DEADLINES = st.sampled_from([None, None, None, None, 30.0, 1e9, 0.05, 0.0])
