"""Requests a file over HTTP and follows redirects without leaking the token to another origin."""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

from common.errors import ForerunError, PeerError, UnavailableError, UserError
from common.wire.options import is_loopback

TIMEOUT = 30.0
"""Seconds without a byte before a request fails."""

MOST_REDIRECTS = 10
REDIRECTS = (301, 302, 303, 307, 308)
SHA256 = re.compile(r"[0-9a-f]{64}")
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")
AGENT = "forerun"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Holds a token and the only origin that may receive it."""

    token: str
    url: str  # any of that origin

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the token's header; empty for another origin and for plain text over a network."""
        if not self.token or _origin(url) != _origin(self.url) or not is_private(url):
            return {}
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class FileSource:
    """Describes a file by the headers of a server's response."""

    response: Any  # to `read` from and to `close`
    start: int  # the first byte that comes
    size: int | None  # of the whole file, if announced
    sha256: str  # of the whole file, if announced; else empty
    identity: str  # changes with the file; empty if the server sends no such header
    commit: str  # of the hub's repository, if announced
    ends_before: bool = False  # the file has no bytes beyond `start`


def open_source(url: str, start: int, credentials: Credentials) -> FileSource:
    """Ask for a file from byte `start` on, through redirects.

    Raises `UnavailableError` if a retry may help, else `UserError`.
    """
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    told: dict[str, str] = {}
    for _ in range(MOST_REDIRECTS):
        response = _open(url, {**headers, **credentials.headers_for(url)})
        for name, value in response.headers.items():
            told.setdefault(name.lower(), value)  # the hub's headers come first, its storage's last
        if response.status not in REDIRECTS:
            return _source(response, url, start, told)
        url = _next(url, response)
    raise PeerError(f"{url} is redirected more than {MOST_REDIRECTS} times")


def is_private(url: str) -> bool:
    """Tell whether a connection is safe from eavesdroppers: over TLS, or within this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


class StayHere(urllib.request.HTTPRedirectHandler):
    """Returns redirects to the caller and follows none."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _open(url: str, headers: dict[str, str]) -> Any:
    """Return the response. Raises for a status that the caller cannot use."""
    opener = urllib.request.build_opener(StayHere)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code in (*REDIRECTS, 416):
            return error
        with error:
            raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if "CERTIFICATE_VERIFY_FAILED" in str(reason):
            raise UserError(f"{url}: the server's certificate is not trusted ({reason})") from error
        raise UnavailableError(f"{url} cannot be reached: {reason}") from error


def _refusal(url: str, error: urllib.error.HTTPError) -> ForerunError:
    if error.code in (401, 403):
        return UserError(
            f"{url} refuses access ({error.code}); if it is gated, accept its terms and set HF_TOKEN"
        )
    if error.code in (404, 410):
        return UserError(f"{url} is not there ({error.code}); check organisation, repository, file, revision")
    if error.code == 429 or error.code >= 500:
        return UnavailableError(f"{url} answered {error.code} {error.reason}; try again later")
    return UserError(f"{url} answered {error.code} {error.reason}")


def _next(url: str, response: Any) -> str:
    """Return a redirect's target: never from TLS to plain text, to this machine or out of HTTP."""
    with response:
        there: str = urljoin(url, response.headers.get("Location", ""))
    if urlsplit(there).scheme not in ("https", "http") or (is_private(url) and not is_private(there)):
        raise PeerError(f"{url} is redirected to {there}, which is not followed: it is not encrypted")
    if _is_this_machine(there) and not _is_this_machine(url):
        raise PeerError(f"{url} is redirected to {there}, which is not followed: it is this very machine")
    return there


def _is_this_machine(url: str) -> bool:
    """Tell whether an address, in any spelling that `connect` takes, is of this machine."""
    name = (urlsplit(url).hostname or "").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        found = ip_address(socket.inet_ntoa(socket.inet_aton(name)) if ":" not in name else name)
    except (OSError, ValueError):
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


def _source(response: Any, url: str, start: int, told: Mapping[str, str]) -> FileSource:
    headers: Message = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise PeerError(f"{url} came compressed ({headers['Content-Encoding']}), which was not requested")
    found = CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    length = headers.get("Content-Length", "")
    size = int(length) if response.status == 200 and length.isdigit() else None
    if response.status in (206, 416):
        size = int(found[2]) if found else None
    begins = int(found[1]) if response.status == 206 and found and found[1] else 0
    sha256, tag = _hash_told(told), headers.get("ETag", "")
    if tag.startswith("W/"):  # a weak tag: the same meaning, not the same bytes (RFC 9110 8.8.1)
        tag = ""
    # Any of many machines may serve the bytes, so the hub's tag is preferred to theirs.
    identity = sha256 or tag or headers.get("Last-Modified", "")
    ended = response.status == 416
    commit = told.get("x-repo-commit", "")
    return FileSource(response, start if ended else begins, size, sha256, identity, commit, ended)


def _hash_told(told: Mapping[str, str]) -> str:
    """Return the hub's hash of a large file. Tags of other servers may only look like hashes."""
    if "x-repo-commit" not in told:
        return ""
    for name in ("x-linked-etag", "etag"):
        tag = told.get(name, "").removeprefix("W/").strip('"').lower()
        if SHA256.fullmatch(tag):
            return tag
    return ""


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
