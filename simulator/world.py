"""Defines the parts of a world. Values are checked on construction; times in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from cloud_verifier.core.limits import SchedulerConfig
from common.errors import LocalError, UserError
from common.estimators import WidthTimes
from common.llama.model import LlamaSettings
from common.offers import offered
from edge_client.core.draft_times import DraftTimes
from simulator.arrivals import Arrival, Arrivals
from simulator.drafts import BetaDraft, Draft
from simulator.events import Draws, DrawStream
from simulator.heads import HeadsSpec
from simulator.link_spec import LinkSpec


@dataclass(frozen=True, slots=True)
class SmallDraft:
    """Describes a smaller draft in front of the device's draft, which evaluates its chains in one batch.

    At each position its token is the larger draft's best with the same chance, however sure that is.
    """

    time: float  # of one token, seconds
    agreement: float  # chance that its token is the larger draft's best
    tokens: int = 4  # of a chain

    def __post_init__(self) -> None:
        _not_negative("device small", self, "time")
        if not 0 <= self.agreement <= 1 or self.tokens < 1:
            raise UserError(
                f"device small has agreement {self.agreement} and tokens {self.tokens}; they must lie in "
                "[0, 1] and be at least 1"
            )


ROWS_WITH_MASKS = LlamaSettings("-").max_rows
"""Rows up to which a draft step has masks."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Describes a device's step times.

    A step of `rows` nodes takes fixed + per_node * (rows - 1), or the time in a table, and longer where the
    power does not suffice. The first step waits until the prompt is read. Each step reads what the verifier
    wrote meanwhile.
    """

    draft_time: float = 0.005
    draft_time_per_node: float = 0.0003  # for each node beyond the first
    draft_times: tuple[tuple[int, float], ...] = ()  # by rows, rising; in place of the two above
    read_times: tuple[tuple[int, float], ...] = ()  # that reading so many committed tokens adds
    wake_time: float = 0.0  # that a step after a rest takes longer
    max_draft_steps_per_second: float = 0.0  # what its power budget allows; 0 = any number
    recall: bool = False  # also proposes what the text repeats of itself, which is nothing in a drawn text
    draft_waits: bool = False  # until the first Commit, as where both ends share a machine
    prompt_time: float = 0.0  # until the draft has read the prompt; 0 = as `read_times` says
    small: SmallDraft | None = None
    levels: int = 1  # of the tree that a draft step buys: its own, and that of each mask of a parallel draft

    def __post_init__(self) -> None:
        if self.levels < 1 or (self.levels > 1 and self.small is not None):
            raise UserError(
                f"device levels is {self.levels}; it must be at least 1, and a draft with a smaller one in "
                "front has one level"
            )
        _not_negative("device", self, "draft_time", "draft_time_per_node", "prompt_time", "wake_time")
        _not_negative("device", self, "max_draft_steps_per_second")
        _rising("device", self, "draft_times", "read_times")

    def draft_step_time(self, rows: int, small_steps: int = 0) -> float:
        """Return a step's seconds, 0 for no rows: then a chain held them all. Without power left, a step
        lasts until the next one may begin."""
        if not rows:
            return 0.0
        rows = min(rows * self.levels, max(rows, ROWS_WITH_MASKS))
        time = self.draft_time + self.draft_time_per_node * (rows - 1)
        if self.draft_times:
            time = _table(self.draft_times).predict(rows)
        if self.small is not None:
            time += self.small.time * small_steps
        rate = self.max_draft_steps_per_second
        return max(time, 1.0 / rate) if rate else time

    def read_time(self, num_tokens: int) -> float:
        """Return the seconds that reading so many committed tokens adds to a draft step."""
        return _table(self.read_times).predict(num_tokens) if self.read_times else 0.0

    def time_to_read(self, prompt_tokens: int) -> float:
        """Return the seconds of reading a prompt."""
        return self.prompt_time or self.read_time(prompt_tokens - 1)

    def pace(self) -> DraftTimes:
        """Return a device's prior knowledge of its pace: its tables, if it has any."""
        pace = DraftTimes()
        if self.draft_times:
            pace.rows.measured({rows: time / self.levels for rows, time in self.draft_times})
        if self.read_times:
            rest = self.draft_step_time(1) * (1 - 1 / self.levels)
            pace.reads.measured({tokens: time + rest for tokens, time in self.read_times})
        return pace


@dataclass(frozen=True, slots=True)
class StepChange:
    """Sets the time of a one-row target step to `step_time` seconds from `at` on, seconds of the world."""

    at: float
    step_time: float

    def __post_init__(self) -> None:
        _not_negative("step change", self, "at", "step_time")
        if not self.step_time > 0:
            raise UserError("step change step_time is 0; a target that takes no time needs no draft")


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """Describes target steps: fixed + per_node * (rows - 1) + per_context * committed slots read, and a hop
    between each two machines that share the target's layers. A table may stand for the first two; the
    scheduler then knows it from the start, as that of a GGUF target does."""

    step_time: float = 0.030
    step_time_per_node: float = 0.00005  # for each row beyond the first, prefill included
    step_time_per_context: float = 0.0  # for each committed token that a session in the step has
    step_times: tuple[tuple[int, float], ...] = ()  # by rows, rising from 1
    max_nodes_per_session: int = 64  # by default the product's scheduler takes 16, and 256 rows in all: for
    max_rows: int = 1024  # published schemes with wide trees or long blocks that would be too few
    max_slowdown: float = 0.02  # share of its rate that a session may lose by drafts of others
    recall: bool = False  # also guesses what the text repeats of itself
    nodes: int = 1  # machines that hold a part of the layers each, and are passed one after the other
    hop_time: float = 0.0  # from one of them to the next
    replicas: int = 1  # verifiers with a GPU each, among which the sessions are dealt out in turn
    step_changes: tuple[StepChange, ...] = ()  # of `step_time`, in order of time
    draft: DeviceSpec | None = None  # of a draft beside the target; None = as fast as the devices'
    heads: HeadsSpec | None = None  # the verifier's own drafter, in all schemes that run its scheduler
    hint_at: float = 0.0  # share of a step after which its likely tokens are told to the edges; 0 = never
    hint_skill: float = 0.5  # chance that a hint's first token is right; each further one: half the rest

    def __post_init__(self) -> None:
        _not_negative(
            "verifier", self, "step_time", "step_time_per_node", "step_time_per_context", "hop_time"
        )
        if not self.step_time > 0:
            raise UserError("verifier step_time is 0; a target that takes no time needs no draft")
        _rising("verifier", self, "step_times")
        if self.step_times and self.step_times[0] != (1, self.step_time):
            raise UserError("verifier step_times must begin with one row, which takes step_time")
        if any(a.at > b.at for a, b in pairwise(self.step_changes)):
            raise UserError("verifier step_changes are not in order of time")
        if not self.max_slowdown > 0:
            raise UserError(f"verifier max_slowdown is {self.max_slowdown}; it must be above 0")
        if not (0 <= self.hint_at < 1 and 0 <= self.hint_skill <= 1):
            raise UserError(
                f"verifier hint_at is {self.hint_at} and hint_skill {self.hint_skill}; they must lie in "
                "[0, 1) and [0, 1]"
            )
        for name in ("max_nodes_per_session", "max_rows", "nodes", "replicas"):
            if getattr(self, name) < 1:
                raise UserError(f"verifier {name} is {getattr(self, name)}; it must be at least 1")

    def with_product_limits(self) -> VerifierSpec:
        """Return this specification with the limits on a step that `forerun verify` has."""
        product = SchedulerConfig()
        return replace(self, max_nodes_per_session=product.max_nodes_per_session, max_rows=product.max_rows)

    def time(self, rows: int, context: int, now: float = 0.0) -> float:
        """Return the seconds of one step that begins at `now`."""
        step = self.step_time
        for change in self.step_changes:
            if change.at > now:
                break
            step = change.step_time
        if self.step_times:
            step *= _table(self.step_times).predict(rows) / self.step_times[0][1]
        else:
            step += self.step_time_per_node * (rows - 1)
        return step + self.hop_time * (self.nodes - 1) + self.step_time_per_context * context


@dataclass(frozen=True, slots=True)
class VerifierSite:
    """Describes one verifier of several, and the path to it.

    A device's round trip is the link's and up to `spread` seconds more, drawn evenly. A trace begins at a
    drawn place for each device.
    """

    verifier: VerifierSpec = field(default_factory=VerifierSpec)
    link: LinkSpec = field(default_factory=LinkSpec)
    spread: float = 0.0

    def __post_init__(self) -> None:
        _not_negative("verifiers", self, "spread")
        if self.verifier.replicas > 1:
            raise UserError("one of several verifiers has no replicas; list each verifier")

    def path(self, draws: Draws, place: int) -> LinkSpec:
        """Return the link of the device with these draws to this verifier, which is number `place`."""
        more = self.spread * draws.uniform(DrawStream.SITE, 2 * place)
        trace = self.link.trace
        if trace is not None:
            offset = trace.duration * draws.uniform(DrawStream.SITE, 2 * place + 1)
            trace = replace(trace, offset=offset, rtts=tuple(rtt + more for rtt in trace.rtts))
        return replace(self.link, rtt=self.link.rtt + more, trace=trace)


NEAREST = "nearest"
"""The association of devices with several verifiers that takes the shortest round trip."""

ASSOCIATIONS = "forerun.associations"
"""Entry points of the others: `Associate`, by the name that a world gives."""


@dataclass(frozen=True, slots=True)
class World:
    """Combines a verifier, `clients` devices with a session each, and their links. One seed decides.

    All sessions begin at 0, unless `arrivals` sets their times and number. With `sites` there are several
    verifiers, which take the place of `verifier` and `link`.
    """

    link: LinkSpec = field(default_factory=LinkSpec)
    device: DeviceSpec = field(default_factory=DeviceSpec)
    verifier: VerifierSpec = field(default_factory=VerifierSpec)
    draft: Draft = field(default_factory=BetaDraft)
    tokens: int = 600  # of each session's text
    prompt_tokens: int = 64
    clients: int = 1
    seed: int = 1
    arrivals: Arrivals | None = None
    sites: tuple[VerifierSite, ...] = ()
    association: str = NEAREST  # of devices with sites

    def __post_init__(self) -> None:
        for name in ("tokens", "prompt_tokens", "clients"):
            if getattr(self, name) < 1:
                raise UserError(f"world {name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.seed < 2**64:
            raise UserError(f"world seed is {self.seed}; it must lie in [0, 2**64)")
        if self.arrivals is not None and self.clients != 1:
            raise UserError(
                f"world clients is {self.clients} and its arrivals tell how many sessions there are, too; "
                "leave one of them out"
            )
        if self.association != NEAREST and self.association not in offered(ASSOCIATIONS):
            names = ", ".join([NEAREST, *offered(ASSOCIATIONS)])
            raise UserError(f"world association is {self.association!r}; it can be {names}")
        if not self.sites and self.association != NEAREST:
            raise UserError(f"association {self.association} needs several verifiers; list [[verifiers]]")
        alone = LinkSpec(), VerifierSpec(), None
        if self.sites and (self.link, self.verifier, self.arrivals) != alone:
            raise UserError(
                "several verifiers have their own links and steps, and their sessions begin together; leave "
                "out the world's link, verifier and arrivals"
            )

    @property
    def looks_up(self) -> bool:
        """Return whether device or verifier drafts by looking up earlier text."""
        verifiers = self.verifier, *(site.verifier for site in self.sites)
        return self.device.recall or any(verifier.recall for verifier in verifiers)

    @property
    def num_verifiers(self) -> int:
        """Return the number of verifiers, each of which serves its own sessions."""
        return len(self.sites) or self.verifier.replicas

    def at_verifier(self, place: int, key: int | None = None) -> World:
        """Return the world of verifier number `place`; with `key`, that of its session `key`."""
        if not self.sites:
            return self
        site = self.sites[place]
        link = self.link if key is None else site.path(Draws(self.seed, key), place)
        return replace(self, sites=(), association=NEAREST, verifier=site.verifier, link=link)

    def session_place(self, key: int) -> int:
        """Number session `key` over all seeds: those of seed 1 are the first, those of seed 2 follow."""
        return (self.seed - 1) * self.num_sessions + key

    @property
    def num_sessions(self) -> int:
        return self.clients if self.arrivals is None else self.arrivals.num_sessions

    def own(self, session: Arrival) -> World:
        """Return the same world with the lengths of one of its sessions."""
        return replace(self, prompt_tokens=session.prompt_tokens, tokens=session.tokens)

    def sessions(self) -> tuple[Arrival, ...]:
        """Return all sessions in order of time."""
        if self.arrivals is None:
            return (Arrival(0.0, self.prompt_tokens, self.tokens),) * self.clients
        return self.arrivals.plan(self.seed, self.prompt_tokens, self.tokens)


# Sessions among verifiers.

Associate = Callable[["World", list[list[float]]], Sequence[int]]
"""Returns the number of the verifier of each device of a world; gets round trips [device][verifier], s."""


def dealt(world: World) -> list[list[int]]:
    """Return the keys of the sessions that each verifier serves, rising."""
    if not world.sites:
        count = world.num_verifiers
        return [list(range(place, world.num_sessions, count)) for place in range(count)]
    served = associated(world)
    return [[key for key, at in enumerate(served) if at == place] for place in range(world.num_verifiers)]


@lru_cache(maxsize=64)
def associated(world: World) -> tuple[int, ...]:
    """Return the number of the verifier of each session of a world with several sites."""
    paths = [
        [site.path(Draws(world.seed, key), place) for place, site in enumerate(world.sites)]
        for key in range(world.num_sessions)
    ]
    rtts = [[link.rtt if link.trace is None else fmean(link.trace.rtts) for link in each] for each in paths]
    if world.association == NEAREST:
        return tuple(each.index(min(each)) for each in rtts)
    associate: Associate = offered(ASSOCIATIONS)[world.association].load()
    return tuple(associate(world, rtts))


@lru_cache(maxsize=64)
def _table(points: tuple[tuple[int, float], ...]) -> WidthTimes:
    """Return the table through these points, to be read only: a world asks it at every draft step."""
    return WidthTimes(dict(points))


def _rising(what: str, spec: object, *names: str) -> None:
    """Raise `UserError` unless each of these tables has rising counts and times above 0."""
    for name in names:
        table = getattr(spec, name)
        rises = all(before[0] < after[0] for before, after in pairwise(table))
        if not rises or any(width < 1 or not 0 < time < math.inf for width, time in table):
            raise UserError(
                f"{what} {name} is {table}; it needs rising counts from 1, each with a time above 0"
            )


def _not_negative(what: str, value: object, *names: str) -> None:
    for name in names:
        number = getattr(value, name)
        if not (math.isfinite(number) and number >= 0):
            raise UserError(f"{what} {name} is {number}; it must be finite and 0 or more")


# A line through measured step times: what worlds call a step's time and the time of each further row.


class StepTimeLine(NamedTuple):
    """Holds the line fixed + per_row * (rows - 1), seconds."""

    fixed: float
    per_row: float


def fit_line(groups: Iterable[tuple[float, int, float]]) -> StepTimeLine:
    """Fit by least squares over steps in groups of (rows, number of steps, total seconds).

    More rows never take less time: a line that falls becomes flat. Raises `LocalError` for no steps.
    """
    measured = [group for group in groups if group[1] > 0]
    count = sum(number for _, number, _ in measured)
    if not count:
        raise LocalError("there are no step times to fit")
    mean_rows = sum(rows * number for rows, number, _ in measured) / count
    mean_time = sum(seconds for *_, seconds in measured) / count
    squares = sum(number * (rows - mean_rows) ** 2 for rows, number, _ in measured)
    products = sum((rows - mean_rows) * (seconds - number * mean_time) for rows, number, seconds in measured)
    per_row = max(0.0, products / squares) if squares else 0.0
    fixed = mean_time - per_row * (mean_rows - 1.0)
    return StepTimeLine(fixed, per_row) if fixed > 0 else StepTimeLine(mean_time, 0.0)
