"""Digests of the base images, `deploy/docker/bases.env`: `python -m tools.pin_bases` asks their registries.

It speaks what registries speak (`/v2/` of the OCI distribution specification, with a token for anonymous
readers where one is asked for), so no container engine is needed, and no package beyond Python's own. A
digest is the SHA-256 of the manifest's bytes as they came; a registry that calls them by another one is not
believed. Either all digests are written or none.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASES = Path(__file__).resolve().parent.parent / "deploy" / "docker" / "bases.env"

HUB = "registry-1.docker.io"  # where `docker.io`, which image names leave out, answers
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""First those of several platforms: a build for two needs the digest that stands for both."""

LONGEST = 4 << 20  # bytes of an answer; the specification's own limit of a manifest
SILENCE = 30.0  # seconds without a byte after which a registry is given up
LINE = re.compile(
    r"(?P<argument>[A-Z0-9_]+_DIGEST)=(?P<image>[\w./:-]+)(?: (?P<digest>sha256:[0-9a-f]{64}))?"
)


class PinError(Exception):
    """A digest cannot be had; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image's name, taken apart. Raises `PinError` from `parse`."""

    name: str  # as it was written
    host: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, name: str) -> Image:
        path, _, tag = name.rpartition(":")
        if not path or "/" in tag:
            raise PinError(f"{name} has no tag; bases.env names each base as IMAGE:TAG")
        first, _, rest = path.partition("/")
        if rest and ("." in first or ":" in first or first == "localhost"):
            return cls(name, first, rest, tag)
        return cls(name, HUB, path if rest else f"library/{path}", tag)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a registry has under a tag."""

    digest: str
    platforms: tuple[str, ...]  # empty: it is of one, and does not say which


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A manifest is where it was asked for; a token is told to nobody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Registries:
    """Asks registries. `mirrors`: host -> address of what answers in its place."""

    def __init__(self, mirrors: Mapping[str, str] | None = None) -> None:
        self._mirrors = dict(mirrors or {})
        self._opener = urllib.request.build_opener(_NoRedirects)

    def manifest(self, image: Image) -> Manifest:
        """Of its tag. Raises `PinError`."""
        base = self._mirrors.get(image.host, f"https://{image.host}").rstrip("/")
        url = f"{base}/v2/{image.repository}/manifests/{image.tag}"
        accept = {"Accept": ", ".join(MANIFESTS)}
        try:
            try:
                headers, body = self._get(url, accept)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.UNAUTHORIZED:
                    raise
                token = self._token(image, base, error.headers.get("WWW-Authenticate", ""))
                headers, body = self._get(url, {**accept, "Authorization": f"Bearer {token}"})
        except urllib.error.HTTPError as error:
            raise PinError(_refusal(image, url, error)) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise PinError(
                f"{url} cannot be reached ({why}); pins are made where the registries answer, or with "
                f"--mirror {image.host}=URL"
            ) from error
        return _manifest_of(image, headers.get("Docker-Content-Digest", ""), body)

    def _get(self, url: str, headers: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
        request = urllib.request.Request(url, headers=dict(headers))
        with self._opener.open(request, timeout=SILENCE) as answer:
            body: bytes = answer.read(LONGEST + 1)
            if len(body) > LONGEST:
                raise PinError(f"{url} answers with more than {LONGEST >> 20} MiB, which is no manifest")
            return answer.headers, body

    def _token(self, image: Image, base: str, challenge: str) -> str:
        """For an anonymous reader, from where the registry sends us. Raises `PinError`, `OSError`."""
        scheme, _, rest = challenge.partition(" ")
        said = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = urllib.parse.urlsplit(said.get("realm", ""))
        if scheme.lower() != "bearer" or realm.scheme not in {"https", urllib.parse.urlsplit(base).scheme}:
            raise PinError(f"{image.name}: {base} wants a login of another kind: {challenge!r}")
        scope = said.get("scope") or f"repository:{image.repository}:pull"
        query = {"scope": scope} | ({"service": said["service"]} if "service" in said else {})
        _, body = self._get(f"{realm.geturl()}?{urllib.parse.urlencode(query)}", {})
        try:
            told = json.loads(body)
            return str(told.get("token") or told["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise PinError(f"{image.name}: {realm.netloc} gives no token to anonymous readers") from error


def _refusal(image: Image, url: str, error: urllib.error.HTTPError) -> str:
    if error.code == http.HTTPStatus.NOT_FOUND:
        return f"{image.name} is not there: {url} answers 404; look for a tag that is, and change bases.env"
    if error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
        return f"{image.host} was asked too often from this address (429); try again in some hours"
    if error.code in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return f"{image.name} is not for anonymous readers: {error.url} answers {error.code}"
    return f"{image.name} has no digest: {error.url} answers {error.code} {error.reason}"


def _manifest_of(image: Image, called: str, body: bytes) -> Manifest:
    """Raises `PinError` for bytes that are none, or that the registry calls by another digest."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if called and called != digest:
        raise PinError(f"{image.name}: the registry says {called}, and what it sent is {digest}")
    try:
        told = json.loads(body)
        kind = str(told["mediaType"]) if "mediaType" in told else MANIFESTS[0]
        of = [each.get("platform", {}) for each in told.get("manifests", [])]
    except (ValueError, TypeError, AttributeError) as error:
        raise PinError(f"{image.name}: what the registry sent is no manifest ({error})") from error
    if kind not in MANIFESTS or told.get("schemaVersion") != 2:
        raise PinError(f"{image.name}: what the registry sent is no manifest that is known ({kind})")
    names = (f"{each.get('os')}/{each.get('architecture')}" for each in of)
    return Manifest(digest, tuple(dict.fromkeys(each for each in names if each != "unknown/unknown")))


def pinned(text: str, registries: Registries) -> tuple[str, list[str]]:
    """The file with the digests of now, and what to tell of each. Raises `PinError`."""
    lines, told = [], []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            lines.append(line)
            continue
        found = LINE.fullmatch(line)
        if found is None:
            raise PinError(f"bases.env: {line!r} is not ARGUMENT=IMAGE:TAG DIGEST")
        manifest = registries.manifest(Image.parse(found["image"]))
        lines.append(f"{found['argument']}={found['image']} {manifest.digest}")
        news = "as before" if found["digest"] == manifest.digest else "new"
        told.append(f"{found['image']} {manifest.digest} ({news}) {' '.join(manifest.platforms)}".rstrip())
    return "\n".join(lines) + "\n", told


def _mirror(text: str) -> tuple[str, str]:
    host, _, address = text.partition("=")
    if not host or urllib.parse.urlsplit(address).scheme not in ("https", "http"):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST=URL")
    return HUB if host == "docker.io" else host, address


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pin_bases", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--file", type=Path, default=BASES, help="(%(default)s)")
    parser.add_argument(
        "--mirror", type=_mirror, action="append", default=[], metavar="HOST=URL", help="asked in its place"
    )
    options = parser.parse_args(arguments)
    try:
        text, told = pinned(options.file.read_text(encoding="utf-8"), Registries(dict(options.mirror)))
        new = options.file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        os.replace(new, options.file)
    except (PinError, OSError) as error:
        print(f"{options.file.name} is as it was: {error}", file=sys.stderr)
        return 1
    print("\n".join(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
