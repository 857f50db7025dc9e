"""What an attack meets: a verifier, or a daemon with one behind it, set up as the attack needs it."""

import contextlib
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from common.errors import UnavailableError
from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import encode_request
from common.wire.service import VerifierStub
from edge_client.network.client_tls import TlsSettings
from lab.benchmarks.http_stream import BrokenError, HttpClient
from lab.benchmarks.processes import LoggedProcess, attempts, free_port, own_places
from lab.demo_models import DRAFT_GGUF, TARGET_DIR
from lab.rig import VERIFIER, Processes
from tests.attacks.honest import PATIENCE, Honest, Text
from tests.fuzz.laws import Broken
from tests.support.town import AUDIENCE, ISSUER, Town

LIMIT = 2 << 30
"""Bytes that a process under attack may have, its children included."""

INTERVAL = 0.05
"""Seconds between two looks at a process's memory."""

LATE = 4.0
"""Seconds after its grace in which a process must be gone: two are promised, two are for a busy machine."""

PAGE = resource.getpagesize()


class Subject:
    """A process, from its start to its end. `files`: descriptors that it may have; 0: as this process."""

    def __init__(self, program: LoggedProcess, log: Path, files: int = 0) -> None:
        self.program, self.log = program, log
        self.peak = 0  # resident bytes of it and its children
        self.killed = False  # by the watcher, over the limit
        self._files = files
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    async def start(self) -> None:
        """Start it, and watch its memory."""
        await self.program.spawn()
        pid = self.program.pid
        if self._files:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (self._files, self._files))
        self._over.clear()
        self._watcher = threading.Thread(target=self._watch, args=(pid, self._over), daemon=True)
        self._watcher.start()

    def check(self) -> None:
        """Raise `Broken` unless the process lives and has kept to its limit."""
        if self.killed:
            raise Broken(f"the {self.program.name} had more than {LIMIT >> 20} MiB and was killed")
        try:
            self.program.check()
        except UnavailableError as error:
            raise Broken(f"{error}; {self._last_words()}") from None

    async def drain(self, grace: float) -> None:
        """Tell it to go. Raises `Broken` unless it is gone in time and says that all went well."""
        self.check()
        self.program.send(signal.SIGTERM)
        began = time.monotonic()
        try:
            await self.program.gone(grace + LATE)
        except UnavailableError:
            raise Broken(
                f"not gone {time.monotonic() - began:.0f} s after SIGTERM, grace {grace:g} s"
            ) from None
        if self.program.code:
            raise Broken(f"it ended with code {self.program.code} when told to go; {self._last_words()}")

    async def kill(self) -> None:
        """End it at once, and stop watching."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        await self.program.close()

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(INTERVAL):
            now = resident(pid)
            self.peak = max(self.peak, now)
            if now > LIMIT:
                self.killed = True
                for each in family(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = list[int](), [pid]
    while todo:
        found.append(todo.pop())
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return found


def resident(pid: int) -> int:
    """Bytes of a process and all below it."""
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE
    return total


GRACE = 3.0
"""Seconds that a verifier which drains waits for its sessions."""

HONEST, HOSTILE = "honest", "hostile"
"""Two tenants."""


class Stage(Processes):
    """Processes and the way to an honest text. An async context manager."""

    def __init__(self, folder: Path, honest: Honest) -> None:
        super().__init__(pin=False)
        self.folder = folder
        self.subjects: list[Subject] = []
        self._honest = honest

    async def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def asked(self) -> dict[str, Any]:
        """What the honest client is told."""
        raise NotImplementedError

    async def text(self, tokens: int, patience: float = PATIENCE) -> Text:
        """An honest text, to its end or for `patience` seconds."""
        return await self._honest.text(tokens=tokens, patience=patience, **self.asked())

    def check(self) -> None:
        """Raise `Broken` unless every process lives and has kept to its limit."""
        for each in self.subjects:
            each.check()

    async def drain(self) -> None:
        """Tell all processes to go, those in front first. Raises `Broken` for one that stays."""
        for each in reversed(self.subjects):
            await each.drain(GRACE)

    async def _subject(self, program: LoggedProcess, log: Path, files: int = 0) -> Subject:
        subject = Subject(program, log, files)
        self._stack.push_async_callback(subject.kill)
        await subject.start()
        self.subjects.append(subject)
        return subject


class VerifierStage(Stage):
    """A verifier. With `has_tokens` it knows its callers by tokens."""

    def __init__(self, folder: Path, honest: Honest, *, has_tokens: bool = False) -> None:
        super().__init__(folder, honest)
        self._has_tokens = has_tokens
        self.town: Town | None = None
        self.tls: TlsSettings | None = None  # of an honest edge
        self.address = ""
        self.described = pb.DescribeResponse()

    @property
    def verifier(self) -> Subject:
        return self.subjects[0]

    def asked(self) -> dict[str, Any]:
        """See `Stage`."""
        found: dict[str, Any] = {"kind": "verifier", "address": self.address}
        if self.tls is not None:
            names = ("ca", "cert", "key", "token_file")
            given = {name: getattr(self.tls, name) for name in names}
            found["tls"] = {name: str(path) for name, path in given.items() if path is not None}
        return found

    def channel(self, tls: TlsSettings | None = None) -> grpc.aio.Channel:
        """A connection of its own, with the honest edge's certificate unless another is given."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        tls = tls or self.tls
        if tls is None:
            return grpc.aio.insecure_channel(self.address, options)
        return grpc.aio.secure_channel(self.address, tls.credentials(), options)

    def metadata(self, tenant: str = HOSTILE) -> tuple[tuple[str, str], ...]:
        """What a call of this tenant brings."""
        if self._has_tokens:
            assert self.town is not None, "made at the start"
            return (("authorization", f"Bearer {self.town.token(tenant)}"),)
        return ()

    def opening(self, tokens: int = 100, grammar: str = "") -> bytes:
        """An `Open` on the wire."""
        sampling = SamplingParams(1.0, seed=1, max_tokens=tokens, ignore_eos=not grammar, grammar=grammar)
        return encode_request(Open((1, 2, 3), sampling, self.described.fingerprint)).SerializeToString()

    async def _begin(self) -> None:
        await super()._begin()
        log = self.folder / "verifier.log"
        program = LoggedProcess(
            "verifier", "--model", str(TARGET_DIR.resolve()), "--listen", "127.0.0.1:0",
            "--json", "--threads", "1", "--step-floor", "30", "--grace", str(GRACE), "--deterministic",
            *self._identity_flags(),
            log=log,
            module=VERIFIER,
        )  # fmt: skip
        await self._subject(program, log)
        async for _ in attempts():
            program.check()
            found = [line for line in log.read_text("utf-8").splitlines() if line.startswith('{"listening')]
            if found:
                self.address = json.loads(found[-1])["listening"]
                break
        async with self.channel() as channel:
            stub = VerifierStub(channel)
            self.described = await stub.Describe(
                pb.DescribeRequest(include_vocabulary=True, include_chat_template=True),
                metadata=self.metadata(HONEST),
            )

    def _identity_flags(self) -> list[str]:
        if not self._has_tokens:
            return []
        town = self.town = Town(self.folder)
        self.tls = town.bearer(town.token(HONEST))
        limits = self.folder / "limits.toml"
        limits.write_text(
            f"[tenant.{HOSTILE}]\nmax_sessions = 2\nsessions_per_second = 5\nsession_burst = 10\n"
        )
        keys = str(self.folder / "keys.json")
        tokens = ["--token-keys", keys, "--token-audience", AUDIENCE, "--token-issuer", ISSUER]
        flags = ["--tls-cert", str(self.folder / "tls.crt"), "--tls-key", str(self.folder / "tls.key")]
        return [*flags, *tokens, "--tenant-limits", str(limits)]


class DaemonStage(Stage):
    """A daemon before the verifier of `behind`."""

    def __init__(
        self,
        folder: Path,
        honest: Honest,
        behind: VerifierStage,
        *flags: str,
        files: int = 0,
    ) -> None:
        super().__init__(folder, honest)
        self.behind = behind
        self.address = f"127.0.0.1:{free_port()}"
        self._flags, self._files = flags, files

    @property
    def daemon(self) -> Subject:
        return self.subjects[0]

    @property
    def state(self) -> Path:
        """The daemon's own folder."""
        return self.folder / "state" / "forerun"

    @property
    def token(self) -> str:
        """Of its API."""
        return (self.state / "token").read_text("ascii").strip()

    def asked(self) -> dict[str, Any]:
        """See `Stage`."""
        return {"kind": "daemon", "address": self.address, "token": self.token}

    def http(self) -> HttpClient:
        """A connection with the token."""
        return HttpClient(self.address, self.token)

    async def ask(self, path: str, body: object = None) -> tuple[int, dict[str, str], bytes]:
        """One request: status, headers and body."""
        async with self.http() as http:
            found = await http.ask("GET" if body is None else "POST", path, body)
            return found.status, found.headers, await http.body()

    async def ready(self) -> None:
        """Wait until the daemon answers and has heard of its verifier."""
        async for _ in attempts():
            self.daemon.program.check()
            try:
                status, _, body = await self.ask("/v1/status")
            except (BrokenError, FileNotFoundError):
                continue
            health = [each["health"] for each in json.loads(body)["verifiers"]] if status == 200 else []
            if health and all(each == "ready" for each in health):
                return

    async def _begin(self) -> None:
        await super()._begin()
        log = self.folder / "daemon.log"
        program = LoggedProcess(
            "daemon", "edge", "--verifier", self.behind.address, "--draft", str(DRAFT_GGUF.resolve()),
            "--policy", "off", "--threads", "1", "--listen", self.address,
            "--service-stop-timeout", str(GRACE), *self._flags,
            log=log,
            environment={**own_places(self.folder), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        await self._subject(program, log, self._files)
        await self.ready()


def raise_file_limit() -> None:
    """Allow this process all the files that it may have: attackers hold thousands of connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def log_bytes(subject: Subject) -> int:
    """How much a process has logged."""
    return os.path.getsize(subject.log)


def expect(holds: bool, words: str) -> None:
    """Raise `Broken` with these words unless it holds."""
    if not holds:
        raise Broken(words)
