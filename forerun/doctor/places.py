"""The daemon's own places: its token, its address, and whether it runs."""

from __future__ import annotations

import socket
from pathlib import Path

from common.address import host_and_port
from common.errors import ForerunError, UserError
from edge_client import daemon_file
from edge_client.config.sections import ApiSection
from edge_client.local_client import client_of
from edge_client.paths import EdgePaths, expand
from edge_client.token_file import read_token
from forerun.doctor.finding import Finding, fail, ok, skip
from forerun.options import check_free

UNIX = "unix:"


def check_token(api: ApiSection, paths: EdgePaths) -> Finding:
    """That only its owner can read it."""
    if not api.auth:
        return skip("token", "the API asks for none (api.auth)")
    path = expand(api.token_file) if api.token_file else paths.token
    if not path.exists():
        return ok("token", f"{path} is made at the daemon's first start")
    try:
        read_token(path)
    except UserError as error:
        return fail("token", str(error))
    return ok("token", f"{path} is its owner's alone")


def check_daemon(api: ApiSection, paths: EdgePaths) -> Finding:
    """It runs and answers, or its address is free."""
    try:
        record = daemon_file.read(paths.daemon)
        if record is not None:
            client_of(record).get("/v1/status")
            return ok("daemon", f"runs as process {record.pid} at {record.listen}")
    except ForerunError as error:
        return fail("daemon", str(error), "its log may tell why: forerun edge logs")
    try:
        _check_address(api.listen)
    except UserError as error:
        return fail("daemon", f"it does not run, and {error}")
    return ok("daemon", f"it does not run; {api.listen} is free (start it with: forerun edge)")


def _check_address(listen: str) -> None:
    if listen.startswith(UNIX):
        _check_socket(Path(listen.removeprefix(UNIX)))
    elif host_and_port(listen) is not None:
        check_free("api.listen", listen)


def _check_socket(path: Path) -> None:
    """A socket that nobody serves makes way at the next start."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise UserError(f"another program serves {path}; choose another api.listen")
