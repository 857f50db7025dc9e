"""Keeps texts with the target's distributions in files: their format, writer and reader.

A tenant has a folder of its own, so that its texts can be deleted or trained on alone. A file holds records
one after the other, all numbers little endian:

    magic, 4 bytes | length of the payload, uint32 | CRC-32 of all that follows, uint32
    mark of the key, 4 bytes, 0 without one | time, uint64, milliseconds since 1970 | payload

The payload is a line of JSON and the arrays of `LoggedText` in order (int32, float16), deflated. With a key
it is sealed by AES-256-GCM: a random nonce of 12 bytes, then the text and its tag. The tag covers mark and
time, too.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import json
import logging
import os
import queue
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import FloatArray, IntArray
from common.config.live_files import read_bytes
from common.errors import UserError

logger = logging.getLogger(__name__)

MAGIC = b"FTL1"
HEAD, SEALED_WITH = struct.Struct("<4sII"), struct.Struct("<4sQ")
NONCE_BYTES, KEY_BYTES = 12, 32
NO_KEY = bytes(4)

SUFFIX = ".texts"
FILES_OF_A_LOG, MOST_FILE = 8, 1 << 25
"""A file takes this part of the bound, and so many bytes at most."""

MOST_PAYLOAD = 1 << 24  # bytes of a record as it is read, deflated or not; the longest text takes 0.3 MB
MOST_WAITING = 64
"""Texts that wait for the disk. Further ones are left out."""

CLOSING_TIME = 1.0  # seconds that an ending process waits for the disk


@dataclass(frozen=True, slots=True)
class LoggedText:
    """Holds a text of the target, and the distributions that its tokens were chosen from.

    Log-probabilities are in nats: log-softmax of the raw logits, before grammar, bias, penalties and
    temperature.
    """

    model: str  # as edges know the target
    fingerprint: bytes  # of its token table
    step_time: float  # seconds of its shortest step, with few or no drafts
    prompt: IntArray  # [P] the last tokens before the text; empty without consent
    tokens: IntArray  # [T]
    best: IntArray  # [T, K] the likeliest tokens in place of each, best first
    logprobs: FloatArray  # [T, K]

    def encoded(self) -> bytes:
        """Return the payload before it is sealed."""
        about = {"model": self.model, "fingerprint": self.fingerprint.hex(), "step_time": self.step_time}
        about |= {"sizes": [len(self.prompt), *self.best.shape]}
        numbers = np.concatenate((self.prompt, self.tokens, self.best.ravel())).astype("<i4")
        line = json.dumps(about).encode() + b"\n"
        return zlib.compress(line + numbers.tobytes() + self.logprobs.astype("<f2").tobytes(), 1)

    @classmethod
    def decoded(cls, payload: bytes) -> LoggedText:
        """Return the text of a payload. Raises `ValueError` or `zlib.error` for any other bytes."""
        line, _, rest = zlib.decompressobj().decompress(payload, MOST_PAYLOAD).partition(b"\n")
        try:
            about = json.loads(line)
            model, fingerprint, step_time, sizes = (
                str(about["model"]),
                bytes.fromhex(about["fingerprint"]),
                float(about["step_time"]),
                about["sizes"],
            )
            num_prompt, num_tokens, width = map(int, sizes)
        except (KeyError, TypeError) as error:
            raise ValueError("a record lacks a field") from error
        num_best = num_tokens * width
        count = num_prompt + num_tokens + num_best
        if min(num_prompt, num_tokens, width) < 0 or len(rest) != 4 * count + 2 * num_best:
            raise ValueError("a record's arrays have other sizes")
        numbers: NDArray[Any] = np.frombuffer(rest, "<i4", count).astype(np.int32)
        logprobs = np.frombuffer(rest, "<f2", num_best, 4 * count).astype(np.float32)
        prompt, tokens, best = np.split(numbers, (num_prompt, num_prompt + num_tokens))
        shape = num_tokens, width
        return cls(
            model, fingerprint, step_time, prompt, tokens, best.reshape(shape), logprobs.reshape(shape)
        )


class LogKey:
    """Seals and opens payloads. Raises `UserError` for a file that is no key, 64 hex digits."""

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            key = bytes.fromhex(read_bytes(path, "the key of the training log", 1024).decode("ascii"))
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise UserError(
                f"{path} is no key; write {2 * KEY_BYTES} hex digits to it: openssl rand -hex {KEY_BYTES}"
            )
        self.mark = blake2b(key, digest_size=len(NO_KEY), person=b"forerun log key").digest()
        self._cipher = AESGCM(key)

    def seal(self, payload: bytes, head: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, payload, head)

    def open(self, payload: bytes, head: bytes) -> bytes:
        """Return what was sealed with the same key and head. Raises `ValueError`."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(payload[:NONCE_BYTES], payload[NONCE_BYTES:], head)
        except InvalidTag as error:
            raise ValueError("a record was changed") from error


# Writing ----------------------------------------------------------------------------------------------------


class LogWriter:
    """Writes texts in a thread of its own, which `close` ends. An error of the disk is logged once, until a
    text is written again. No error reaches the caller.

    Args: folder, made if it is not there; most_bytes: of all its files. The oldest file of the tenant that
    holds most leaves first. Raises `UserError` for a folder that takes no files.
    """

    def __init__(
        self, folder: Path, most_bytes: int, key: LogKey | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self._most_bytes, self._key, self._clock = folder, most_bytes, key, clock
        self._paths = dict[str, Path]()  # the file that each tenant's next record goes to
        self._waiting: queue.Queue[tuple[str, LoggedText] | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._is_told = False  # what is wrong
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch(0o600)
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"the folder {folder} of the training log takes no files: {error.strerror}"
            ) from error

    def put(self, tenant: str, text: LoggedText) -> None:
        """Have a text written, unless the disk is far behind."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="training log", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        try:
            self._waiting.put_nowait((tenant, text))
        except queue.Full:
            self._tell("the disk is too slow")

    def close(self) -> None:
        """Wait for the texts that were put, `CLOSING_TIME` at most, and end the thread."""
        if self._thread is None:
            return
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSING_TIME)
        self._thread.join(CLOSING_TIME)
        self._thread = None

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._write(*item)
                self._is_told = False
            except OSError as error:
                self._tell(error.strerror or str(error))
            except Exception:  # outermost frame of a record
                logger.exception("! a text is left out of the training log %s", self.folder)

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning("! texts are left out of the training log %s: %s", self.folder, why)

    def _write(self, tenant: str, text: LoggedText) -> None:
        """Append one record. Raises `OSError`, and leaves no part of the record then."""
        payload, mark = text.encoded(), self._key.mark if self._key else NO_KEY
        head = SEALED_WITH.pack(mark, round(self._clock() * 1e3))
        body = head + (self._key.seal(payload, head) if self._key else payload)
        record = HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body
        sizes = self._make_room(len(record))
        path = self._paths.get(tenant)
        if path is None or sizes.get(path, 0) > min(self._most_bytes // FILES_OF_A_LOG, MOST_FILE):
            name = f"{time.time_ns():020d}-{os.getpid()}{SUFFIX}"  # several verifiers may share a folder
            path = self._paths[tenant] = self.folder / folder_of(tenant) / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            if os.write(file, record) != len(record):
                os.ftruncate(file, size)
                raise OSError("the disk is full")
        finally:
            os.close(file)

    def _make_room(self, num_bytes: int) -> dict[Path, int]:
        """Delete old files until `num_bytes` more fit. Return the sizes of the others."""
        sizes = dict[Path, int]()
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another verifier made room
                sizes[path] = path.stat().st_size
        while sizes and sum(sizes.values()) + num_bytes > self._most_bytes:
            held = Counter[Path]()
            for path, size in sizes.items():
                held[path.parent] += size
            most = max(held, key=lambda parent: held[parent])
            oldest = min(path for path in sizes if path.parent == most)
            oldest.unlink(missing_ok=True)
            del sizes[oldest]
        return sizes


def folder_of(tenant: str) -> str:
    """Return the name of a tenant's folder, which no name of a tenant can leave."""
    return f"tenant={quote(tenant, safe='')}"


# Reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Holds a record whose bytes are those that were written."""

    at: int  # milliseconds since 1970
    mark: bytes  # of its key
    head: bytes
    payload: bytes  # sealed, if there is a key


def records_of(data: bytes) -> Iterator[Record | None]:
    """Yield the records of a file, and None in place of each damaged part."""
    start = 0
    while 0 <= start < len(data):
        begin = start + HEAD.size
        if begin <= len(data):
            magic, length, checksum = HEAD.unpack_from(data, start)
            body = data[begin : begin + length]
            if magic == MAGIC and SEALED_WITH.size <= length == len(body) and zlib.crc32(body) == checksum:
                mark, at = SEALED_WITH.unpack_from(body)
                yield Record(at, mark, body[: SEALED_WITH.size], body[SEALED_WITH.size :])
                start = begin + length
                continue
        yield None
        start = data.find(MAGIC, start + 1)


class LogReader:
    """Reads a log, or the folder of one tenant in it. Needs no verifier. Raises `UserError` for another
    path."""

    def __init__(self, folder: Path, key: LogKey | None = None) -> None:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; give the one that forerun verify --training-log names")
        self._folder, self._key = folder, key
        self.num_damaged = 0  # of the last read: places that hold no whole record
        self.num_closed = 0  # of the last read: records of another key

    def num_since(self, at: int) -> int:
        """Return the number of records after a time, milliseconds since 1970."""
        self.num_damaged = 0
        return sum(record.at > at for record in self._records(at))

    def newest_at(self) -> int:
        """Return the time of the newest record, of whatever key; 0 without one."""
        return max((record.at for record in self._records()), default=0)

    def newest(self, most: int) -> tuple[list[LoggedText], int]:
        """Return the newest texts, the oldest of them first, and the time of the last. Damaged records are
        counted and skipped. Raises `UserError` if all records are of another key."""
        self.num_damaged = self.num_closed = 0
        records = heapq.nlargest(most, self._records(), key=lambda record: record.at)[::-1]
        texts = [text for record in records if (text := self._text(record)) is not None]
        if self.num_closed and not texts:
            wanted = "they need a key" if self._key is None else "this key is another one"
            raise UserError(
                f"{self.num_closed} texts in {self._folder} cannot be read: {wanted}; give the file that the "
                "verifier's training_log_key names"
            )
        return texts, max((record.at for record in records), default=0)

    def _records(self, since: int = 0) -> Iterator[Record]:
        """Yield the records of files that were written after a time, milliseconds since 1970."""
        for path in sorted(self._folder.rglob(f"*{SUFFIX}")):
            try:
                if path.stat().st_mtime * 1e3 + 1e3 < since:  # clocks of files tick coarsely
                    continue
                with path.open("rb") as file:
                    data = file.read(2 * MOST_FILE)
            except FileNotFoundError:  # the verifier made room
                continue
            for record in records_of(data):
                if record is None:
                    self.num_damaged += 1
                else:
                    yield record

    def _text(self, record: Record) -> LoggedText | None:
        key = self._key if record.mark != NO_KEY else None
        if record.mark != (key.mark if key else NO_KEY):
            self.num_closed += 1
            return None
        try:
            return LoggedText.decoded(key.open(record.payload, record.head) if key else record.payload)
        except (ValueError, zlib.error):
            self.num_damaged += 1
            return None
