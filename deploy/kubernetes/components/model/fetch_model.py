"""Fills a volume with a target model, and says whether it is whole. Standard library only: it runs in a Job.

    python fetch_model.py fetch --manifest FILE --into FOLDER         fetch what is missing, check every file
    python fetch_model.py check --manifest FILE --into FOLDER         whether `fetch` has finished (--wait S)

A manifest names each file with its address, size and SHA-256 (`lab.tools.model_manifest` makes one).
Only safetensors, JSON, text and chat templates, which edges render in a sandbox, are taken: other formats can
run code when they are loaded. A file stands under its name only after its hash was compared, and a last file
says that all are there.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

TAKEN = (".safetensors", ".json", ".txt", ".jinja")
"""Endings of names that are taken. None of these formats can hold code that runs when it is read."""

LONGEST_TEMPLATE = 1 << 18  # bytes of a chat template (.jinja); verifiers tell edges of no longer one

DONE = ".forerun-model.json"
"""Written last, with the manifest's hash."""

BLOCK = 1 << 20  # bytes read at once
LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
LONGEST_MANIFEST = 1 << 20  # bytes; a ConfigMap can hold no more
SILENCE = 60.0  # seconds without a byte after which a connection is given up
POLL = 2.0  # seconds between two looks of `check --wait`
LOG = "kubectl logs -l app.kubernetes.io/component=model"
SHA256 = re.compile(r"[0-9a-f]{64}")


class ModelError(Exception):
    """What went wrong, as a sentence for whoever reads the Job's log."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file of the model. Raises `ModelError` for a name, hash or size that cannot be meant."""

    path: str  # below the folder, with slashes
    url: str
    sha256: str  # 64 hex digits, lower case
    size: int  # bytes

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or any(part.startswith(".") for part in parts):
            raise ModelError(f"{self.path!r} is no name of a file below the model's folder")
        if PurePosixPath(self.path).suffix not in TAKEN:
            raise ModelError(
                f"{self.path} is refused: only {', '.join(TAKEN)} are taken, as other formats can run code "
                "when they are loaded; convert the weights to safetensors"
            )
        if not SHA256.fullmatch(self.sha256):
            raise ModelError(f"the sha256 of {self.path} is {self.sha256!r}; it must be 64 hex digits")
        if self.size <= 0:
            raise ModelError(f"the size of {self.path} is {self.size}; it must be a number of bytes above 0")
        if self.path.endswith(".jinja") and self.size > LONGEST_TEMPLATE:
            most = f"a chat template may have {LONGEST_TEMPLATE}: edges would not be told it; leave it out"
            raise ModelError(f"{self.path} has {self.size} bytes, and {most}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a model."""

    files: tuple[Wanted, ...]

    @property
    def identity(self) -> str:
        """SHA-256 of what the files are, wherever they come from."""
        lines = sorted(f"{each.sha256} {each.size} {each.path}\n" for each in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Raises `ModelError` if it is none."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(LONGEST_MANIFEST))
        entries = [
            Wanted(str(e["path"]), str(e["url"]), str(e["sha256"]).lower(), int(e["size"]))
            for e in told["files"]
        ]
    except OSError as error:
        raise ModelError(f"the manifest {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f'{path} is no manifest like {{"files": [{{"path", "url", "sha256", "size"}}, ...]}}: {error!r}'
        ) from error
    check_names(path, [each.path for each in entries])
    return Manifest(tuple(entries))


def check_names(path: Path, names: list[str]) -> None:
    """Raise `ModelError` unless these can be a model's files. `path`: who names them."""
    if len(set(names)) < len(names):
        raise ModelError(f"{path} names a file twice")
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ModelError(
            f"{path} names no model: config.json and at least one .safetensors file belong to one. "
            "Make it with: python -m lab.tools.model_manifest FOLDER --from https://HOST/PATH"
        )


# fetch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Web:
    """How files are asked for."""

    token: str = ""  # bearer token, told to the host of a file's own address and to no other
    plain: bool = False  # http: as well, for a mirror inside the cluster

    def open(self, url: str, begin: int) -> http.client.HTTPResponse:
        """The answer, from byte `begin` on if the server can. Raises `ModelError`, `OSError`."""
        self.check(url)
        request = urllib.request.Request(url, headers={"User-Agent": "forerun-model-job"})
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        opener = urllib.request.build_opener(_Redirects(self))
        answer: http.client.HTTPResponse = opener.open(request, timeout=SILENCE)
        return answer

    def check(self, url: str) -> None:
        """Raise `ModelError` for an address that is not asked."""
        if urllib.parse.urlsplit(url).scheme not in ({"https", "http"} if self.plain else {"https"}):
            raise ModelError(f"{url} is refused: files are fetched by https (--plain-http allows http, too)")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to addresses that would be asked, too; the token stays with the host that it is for."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        self._web.check(newurl)
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        here, there = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (
            following is not None
            and self._web.token
            and (here.scheme, here.netloc) == (there.scheme, there.netloc)
        ):
            following.add_unredirected_header("Authorization", f"Bearer {self._web.token}")
        return following


def fetch(manifest: Manifest, folder: Path, web: Web, say: Callable[[str], None]) -> None:
    """Every file that is not there as it should be. Raises `ModelError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for wanted in manifest.files:
        path = folder / wanted.path
        if path.is_file() and path.stat().st_size == wanted.size and hash_of(path) == wanted.sha256:
            say(f"{wanted.path} is there")
            continue
        fetch_one(wanted, path, web)
        say(f"{wanted.path} was fetched: {wanted.size} bytes, sha256 {wanted.sha256}")
    _write(folder / DONE, json.dumps({"manifest": manifest.identity, "files": len(manifest.files)}))


def fetch_one(wanted: Wanted, path: Path, web: Web) -> None:
    """By way of a file beside it, which a broken fetch leaves for the next one. Raises `ModelError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _pour(wanted, part, web)
    found = hash_of(part)
    if found != wanted.sha256:
        part.unlink()
        raise ModelError(f"{wanted.path} has the sha256 {found}, not {wanted.sha256}; it was thrown away")
    check_format(wanted.path, part)
    os.replace(part, path)


def _pour(wanted: Wanted, part: Path, web: Web) -> None:
    """What is missing of a file. Raises `ModelError` unless it then has its size."""
    begin = part.stat().st_size if part.is_file() else 0
    if begin == wanted.size:
        return
    begin = begin if begin < wanted.size else 0
    try:
        with web.open(wanted.url, begin) as answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb") as file:
                _copy(answer, file, wanted.size - (begin if resumed else 0))
    except urllib.error.HTTPError as error:
        raise ModelError(f"{wanted.url} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ModelError(f"{wanted.url} broke off: {error}; what came is kept for the next try") from error
    size = part.stat().st_size
    if size != wanted.size:
        raise ModelError(f"{wanted.path} broke off after {size} of {wanted.size} bytes; what came is kept")


def _copy(answer: http.client.HTTPResponse, file: IO[bytes], most: int) -> None:
    """At most `most` bytes. Raises `ModelError` if there are more: it is another file than was meant."""
    left = most
    while block := answer.read(min(BLOCK, left + 1)):
        if len(block) > left:
            raise ModelError(f"{answer.url} has more bytes than its manifest says")
        file.write(block)
        left -= len(block)


READERS: dict[str, tuple[str, Callable[[bytes], object]]] = {
    ".json": ("JSON", json.loads),
    ".jinja": ("text in UTF-8", bytes.decode),
}
"""Ending -> what such a file is, and what raises `ValueError` of another one."""


def check_format(name: str, path: Path) -> None:
    """Raise `ModelError` unless the file is what its name says."""
    if name.endswith(".safetensors"):
        _check_safetensors(name, path)
    elif (found := READERS.get(PurePosixPath(name).suffix)) is not None:
        kind, read = found
        try:
            read(path.read_bytes())
        except ValueError as error:
            raise ModelError(f"{name} is no {kind}: {error}") from error


def _check_safetensors(name: str, path: Path) -> None:
    """Its header alone; the verifier's loader reads the rest."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LONGEST_HEADER, path.stat().st_size - 8):
            raise ModelError(f"{name} is no safetensors file: its header would have {length} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ModelError(f"{name} is no safetensors file: its header is no JSON") from error
    if not isinstance(header, dict):
        raise ModelError(f"{name} is no safetensors file: its header names no tensors")


def hash_of(path: Path) -> str:
    """SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text + "\n", encoding="utf-8")
    os.replace(new, path)


# check ------------------------------------------------------------------------------------------------------


def missing(manifest: Manifest, folder: Path) -> str:
    """Why the model is not whole, empty if it is. Sizes only: hashes were compared when it came."""
    try:
        done = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{folder} is not filled yet; its Job says why ({LOG})"
    if done.get("manifest") != manifest.identity:
        return f"{folder} holds another model than the manifest names; run the Job again"
    for each in manifest.files:
        path = folder / each.path
        if not path.is_file() or path.stat().st_size != each.size:
            return f"{path} is not as it came; remove {DONE} and run the Job again"
    return ""


def wait_for(manifest: Manifest, folder: Path, until: float, say: Callable[[str], None]) -> str:
    """`missing`, again and again until there is nothing to say or `until` (monotonic seconds) is over."""
    told = ""
    while reason := missing(manifest, folder):
        if time.monotonic() >= until:
            return reason
        if reason != told:
            say(f"waiting: {reason}")
            told = reason
        time.sleep(min(POLL, max(until - time.monotonic(), 0.0)))
    return ""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("fetch", "check"):
        each = verbs.add_parser(verb)
        each.add_argument("--manifest", type=Path, required=True)
        each.add_argument("--into", type=Path, required=True, metavar="FOLDER")
        if verb == "check":
            each.add_argument("--wait", type=float, default=0.0, metavar="S", help="seconds to wait for it")
            continue
        each.add_argument("--token-file", type=Path, help="a bearer token for the host of each address")
        each.add_argument("--plain-http", action="store_true", help="allow http: addresses")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        return _run(options)
    except ModelError as error:
        _say(str(error))
        return 1


def _run(options: argparse.Namespace) -> int:
    manifest = read_manifest(options.manifest)
    if options.verb == "fetch":
        fetch(manifest, options.into, Web(_token(options.token_file), options.plain_http), _say)
        return 0
    reason = wait_for(manifest, options.into, time.monotonic() + options.wait, _say)
    if reason:
        raise ModelError(reason)
    return 0


def _token(path: Path | None) -> str:
    """Of a file that need not be there: most models ask for none."""
    return path.read_text(encoding="utf-8").strip() if path is not None and path.is_file() else ""


def _say(line: str) -> None:
    sys.stderr.write(f"fetch_model: {line}\n")
    sys.stderr.flush()


def _stop(*_: object) -> None:
    """SIGTERM. A pod's first process ignores it otherwise, and goes on beside the next Job for 30 s."""
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
