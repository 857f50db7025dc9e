"""Follows a verifier's log of texts: trains a draft or heads on new texts, for good, and publishes what is
better (Online Speculative Decoding, Liu et al. 2023, arXiv 2310.07177).

A round begins when `--texts` new texts are in the log. It trains what was published last, on the newest
texts; if a verifier rolled that back, what is in force. It publishes if the share of the target's choices
that are the draft's has risen by `--margin`, on texts held out of every round. Another round starts from what
was published, so a failed one costs time alone.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from common.config.live_files import read_bytes
from common.errors import UserError
from common.llama.load_trial import KeptTable
from edge_client.draft.canary import VERDICTS, Verdict, Verdicts
from edge_client.draft.updated_draft import newest
from forerun.terminal import note
from simulator.documents import write_whole
from training.logged_texts import LogOptions, TooFewTextsError

Options = TypeVar("Options", bound=LogOptions)

LOOK_EVERY = 10.0  # seconds between two looks into the log

KEPT = 3
"""Published files that stay. An edge or verifier whose file leaves goes back to what it was started with, so
those stay that may be in force: the newest, and the ones before it where it was rolled back. What a verifier
kept last in the folder stays, too."""

STATE, UNFINISHED = ".following.json", ".unfinished-"
"""Names in the folder, and the beginning of names, that edges and verifiers do not look at."""

PUBLISHED = "learnt-"  # the beginning of names that they do look at


@dataclass(frozen=True, slots=True)
class Round:
    """Tells what a training came to."""

    before: float  # share of choices held out, with what was published before
    after: float
    published: Path | None  # None: the rise was below the margin


class Follower(Generic[Options]):
    """Trains in rounds. The folder `--out` holds its state, so it goes on after a restart.

    Args: options; train: trains into a file, and returns the report of `--json`.
    """

    def __init__(self, options: Options, train: Callable[[Options], dict[str, Any]]) -> None:
        self._options, self._train = options, train
        self._reader = options.reader()
        self._until = _until(options.out / STATE)  # time of the last text that a round has seen
        self._num_refused = 0  # new texts that were too few to train on

    def look(self) -> Round | None:
        """Train if there are enough new texts. Return None otherwise."""
        options = self._options
        num_new = self._reader.num_since(self._until)
        if num_new < options.texts or num_new == self._num_refused:
            return None
        verdicts = Verdicts(KeptTable(options.out / VERDICTS))
        place, _ = newest(str(options.out), "", options.SUFFIX)
        if place and verdicts.of(place) is Verdict.WORSE:
            place = verdicts.last_kept()
        start: Path | None = Path(place) if place else getattr(options, options.START)
        until = self._reader.newest_at()
        begun: dict[str, Any] = {options.START: start}
        part = replace(options, follow=False, out=self._unfinished(start, until), **begun)
        try:
            report = self._train(part)
        except TooFewTextsError as error:
            note(str(error))
            self._num_refused = num_new
            return None
        before, after = (float(report[name]["coupled"]) for name in ("before", "after"))
        published: Path | None = None
        if after - before >= options.margin and after > before:
            published = options.out / time.strftime(
                f"{PUBLISHED}%Y%m%d-%H%M%S{options.SUFFIX}", time.gmtime()
            )
            part.out.replace(published)
            in_force = Path(verdicts.last_kept()).name
            for old in sorted(options.out.glob(f"{PUBLISHED}*{options.SUFFIX}"))[:-KEPT]:
                if old.name != in_force:
                    old.unlink(missing_ok=True)
        self._until = until
        write_whole(options.out / STATE, json.dumps({"until": until}))
        part.out.unlink(missing_ok=True)
        return Round(before, after, published)

    def _unfinished(self, start: Path | None, until: int) -> Path:
        """Return the file of a round that begins. An interrupted round with the same options and texts goes
        on there; files of other rounds are deleted."""
        told = f"{self._options} {start} {start and start.stat().st_mtime_ns} {until}"
        path = self._options.out / f"{UNFINISHED}{zlib.crc32(told.encode()):08x}{self._options.SUFFIX}"
        for other in self._options.out.glob(f"{UNFINISHED}*"):
            if not other.name.startswith(path.name):
                other.unlink(missing_ok=True)
        return path


def follow(options: Options, train: Callable[[Options], dict[str, Any]]) -> int:
    """Follow the log at the lowest priority until SIGTERM or SIGINT comes, and return 0."""
    os.nice(19)  # before torch starts its threads
    follower = Follower(options, train)
    note(f"waiting for {options.texts} new texts in {options.log}")
    try:
        with _left_by_signals():
            while True:
                if (done := follower.look()) is None:
                    time.sleep(LOOK_EVERY)
                else:
                    print(_shown(done, options.json), flush=True)
    except _Left:
        note("ended; the same command goes on from here")
        return 0


@contextmanager
def _left_by_signals() -> Iterator[None]:
    """Raise `_Left` in the block at SIGTERM and SIGINT. Files are written aside and renamed, so none is left
    half."""

    def leave(*_: object) -> None:
        raise _Left

    before = {name: signal.signal(name, leave) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


class _Left(BaseException):
    """A signal came."""


def _until(path: Path) -> int:
    """Return the time that the state names, 0 without one. Raises `UserError`."""
    if not path.exists():
        return 0
    try:
        return int(json.loads(read_bytes(path, "the state", 1024))["until"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete it to train on all texts again") from error


def _shown(done: Round, as_json: bool) -> str:
    if as_json:
        published = None if done.published is None else str(done.published)
        return json.dumps({"before": done.before, "after": done.after, "published": published})
    words = "nothing is published" if done.published is None else f"published {done.published}"
    return f"{done.before:.1%} of the target's choices before, {done.after:.1%} after: {words}"
