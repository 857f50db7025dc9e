"""Defines findings, and checks packages, processor and the daemon's own files."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from common.errors import Code, ForerunError, UserError
from common.llama.library import extra_bufts_are_safe
from common.wire.free_port import check_free
from common.wire.grpc_options import host_and_port
from edge_client.network.channel import MORE
from edge_client.process import run_file as daemon_file
from edge_client.process.client import client_of
from edge_client.process.paths import EdgePaths, expand, read_token
from edge_client.settings import UNIX, ApiSection
from forerun.cli import version_of

PACKAGES = (
    "numpy",
    "grpcio",
    "protobuf",
    "llama-cpp-python",
    "starlette",
    "uvicorn",
    "jinja2",
    "platformdirs",
)
WORTH_HAVING = ("AVX2", "NEON")
"""Processor features without which llama.cpp computes several times slower."""

SAYS_IT = ""
"""The advice about an error whose own sentence says what to do."""

REMEDIES = {
    Code.UNAVAILABLE: "check that the verifier runs, and what lies between: firewall, tunnel, proxy",
    Code.DEADLINE_EXCEEDED: "check the link; a verifier that is busy or loads its model answers later",
    Code.RESOURCE_EXHAUSTED: "try later, or add another verifier (verifier.addresses)",
    Code.UNAUTHENTICATED: "get a new token from the issuer and for the audience that the verifier's operator "
    "names, and put it into verifier.token_file",
    Code.PERMISSION_DENIED: "ask the verifier's operator to let this device in",
}
"""What to do about an error of a verifier or of the link, by its code."""

OTHER_REMEDY = "see the verifier's log, and run the same release of Forerun on both sides"

BUSY = 1.0
"""Load average a processor from which on the times that follow are those of a busy machine."""


class Level(Enum):
    """Ranks a finding."""

    OK = "ok"
    WARN = "warn"  # works, and could be better
    FAIL = "fail"
    SKIP = "skip"  # unknown, and the words say why


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds the result of one check."""

    name: str
    level: Level
    words: str
    advice: str = ""  # what to do about it

    @property
    def line(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.level.value:4}  {self.name}: {self.words}{advice}"


def ok(name: str, words: str) -> Finding:
    return Finding(name, Level.OK, words)


def warn(name: str, words: str, advice: str = "") -> Finding:
    return Finding(name, Level.WARN, words, advice)


def fail(name: str, words: str, advice: str) -> Finding:
    return Finding(name, Level.FAIL, words, advice)


def refused(name: str, error: ForerunError) -> Finding:
    """Report an error of a verifier or of the link, with what to do about it."""
    return fail(name, str(error).removesuffix(MORE), REMEDIES.get(error.code, OTHER_REMEDY))


def skip(name: str, words: str) -> Finding:
    return Finding(name, Level.SKIP, words)


def check_python() -> Finding:
    """Check the interpreter and the packages."""
    versions = {name: version_of(name) for name in PACKAGES}
    words = ", ".join(f"{name} {each}" for name, each in versions.items() if each)
    words = f"{platform.python_version()}; {words}"
    if missing := [name for name, each in versions.items() if each is None]:
        return fail("python", f"{words}; missing: {', '.join(missing)}", "pip install 'forerun[edge]'")
    return ok("python", words)


def check_load() -> Finding:
    """Check that other programs leave processors for the times that are measured next."""
    try:
        load, processors = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):  # Windows has none
        return skip("load", "this system does not report it")
    words = f"{load:.1f} of {processors} processors were in use during the last minute"
    if load > BUSY * processors:
        return warn("load", f"{words}, so all times are too long", "stop other work and run doctor again")
    return ok("load", words)


def check_processor(system_info: str) -> Finding:
    """Check the features that llama.cpp reports (`llama_print_system_info`)."""
    features = [part.split()[-3] for part in system_info.split("|") if part.strip().endswith("= 1")]
    words = f"llama.cpp uses {', '.join(features) or 'no special instructions'}"
    if not extra_bufts_are_safe(system_info):
        return warn(
            "processor",
            f"{words}; repacked weights stay off, because builds with AMX may crash",
            "a build of llama-cpp-python without AMX may draft faster",
        )
    if not any(each in words for each in WORTH_HAVING):
        return warn("processor", words, "a build for this processor drafts several times faster")
    return ok("processor", words)


def check_token(api: ApiSection, paths: EdgePaths) -> Finding:
    """Check that only its owner can read the token file."""
    if not api.auth:
        return skip("token", "the API requires none (api.auth)")
    path = expand(api.token_file) if api.token_file else paths.token
    if not path.exists():
        return ok("token", f"{path} is made at the daemon's first start")
    try:
        read_token(path)
    except UserError as error:
        return fail("token", str(error), SAYS_IT)
    return ok("token", f"only its owner can read {path}")


def check_daemon(api: ApiSection, paths: EdgePaths) -> Finding:
    """Check that the daemon runs and answers, or that its address is free."""
    try:
        record = daemon_file.read(paths.daemon)
        if record is not None:
            client_of(record).get("/v1/status")
            return ok("daemon", f"runs as process {record.pid} at {record.listen}")
    except ForerunError as error:
        return fail("daemon", str(error), "see its log: forerun edge logs")
    try:
        _check_address(api.listen)
    except UserError as error:
        return fail("daemon", f"it does not run, and {error}", SAYS_IT)
    return ok("daemon", f"it does not run, and {api.listen} is free; {daemon_file.HOW_TO_START}")


def _check_address(listen: str) -> None:
    if not listen.startswith(UNIX):
        if host_and_port(listen) is not None:
            check_free("api.listen", listen)
        return
    path = Path(listen.removeprefix(UNIX))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return  # the next start replaces a socket without a server
    raise UserError(f"another program serves {path}; choose another api.listen")
