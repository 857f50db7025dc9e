"""Digests come from registries that were asked as registries are, and are of what was sent."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ports import refusing
from tests.registry import FakeRegistry, digest_of, index, serving
from tools import pin_bases
from tools.pin_bases import HUB, Image, Manifest, PinError, Registries

PYTHON = Image.parse("python:3.12-bookworm")
BODY = index("linux/amd64", "linux/arm64")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as found:
        found.manifests["library/python:3.12-bookworm"] = BODY
        yield found


def asking(registry: FakeRegistry) -> Registries:
    return Registries({HUB: registry.address})


@pytest.mark.parametrize(
    ("name", "host", "repository", "tag"),
    [
        ("python:3.12", HUB, "library/python", "3.12"),
        ("nvidia/cuda:13.0.2-base", HUB, "nvidia/cuda", "13.0.2-base"),
        ("nvcr.io/nvidia/l4t-cuda:12.6", "nvcr.io", "nvidia/l4t-cuda", "12.6"),
        ("localhost/x:1", "localhost", "x", "1"),
        ("host:5000/a/b:1", "host:5000", "a/b", "1"),
    ],
)
def test_names_say_where_images_are(name: str, host: str, repository: str, tag: str) -> None:
    assert Image.parse(name) == Image(name, host, repository, tag)


@pytest.mark.parametrize("name", ["python", "host:5000/x"])
def test_a_base_without_a_tag_is_refused(name: str) -> None:
    with pytest.raises(PinError, match="has no tag"):
        Image.parse(name)


@pytest.mark.parametrize("token_key", ["token", "access_token"])
def test_a_digest_is_of_what_the_registry_sent(registry: FakeRegistry, token_key: str) -> None:
    registry.token_key = token_key
    expected = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    assert asking(registry).manifest(PYTHON) == Manifest(expected, ("linux/amd64", "linux/arm64"))
    paths = [path.partition("?")[0] for _, path in registry.asked]
    assert paths == ["/v2/library/python/manifests/3.12-bookworm", "/token", paths[0]]


def test_the_digest_is_the_one_that_the_registry_tells_by_head(registry: FakeRegistry) -> None:
    registry.wants_token = False
    url = f"{registry.address}/v2/library/python/manifests/3.12-bookworm"
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        told = answer.headers["Docker-Content-Digest"]
    assert asking(registry).manifest(PYTHON).digest == told


def test_an_image_of_one_platform_is_pinned_too(registry: FakeRegistry) -> None:
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    body = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []}).encode()
    registry.manifests["library/python:3.12-bookworm"] = body
    assert asking(registry).manifest(PYTHON) == Manifest(digest_of(body), ())


def test_a_registry_that_calls_its_bytes_otherwise_is_not_believed(registry: FakeRegistry) -> None:
    registry.called = f"sha256:{'a' * 64}"
    with pytest.raises(PinError, match=f"says sha256:{'a' * 64}, and what it sent is sha256:"):
        asking(registry).manifest(PYTHON)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "python:3.12-bookworm is not there: .*look for a tag that is"),
        (403, "is not for anonymous readers: .* answers 403"),
        (429, "was asked too often"),
        (302, "has no digest: .* answers 302"),
        (500, "has no digest: .* answers 500"),
    ],
)
def test_what_a_registry_refuses_is_told(registry: FakeRegistry, status: int, said: str) -> None:
    registry.status = status
    with pytest.raises(PinError, match=said):
        asking(registry).manifest(PYTHON)


@pytest.mark.parametrize("challenge", ['Basic realm="x"', 'Bearer realm="ftp://host/token"', "nothing"])
def test_a_login_that_is_not_for_everybody_is_told(registry: FakeRegistry, challenge: str) -> None:
    registry.challenge = challenge
    with pytest.raises(PinError, match="wants a login of another kind"):
        asking(registry).manifest(PYTHON)


def test_a_token_that_is_not_taken_is_told(registry: FakeRegistry) -> None:
    registry.challenge = f'Bearer realm="{registry.address}/token",service="somebody.else"'
    with pytest.raises(PinError, match=r"is not for anonymous readers: .* answers 401"):
        asking(registry).manifest(PYTHON)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "is no manifest"),
        (b"[]", "is no manifest"),
        (b'{"schemaVersion": 1}', "is no manifest that is known"),
        (index("linux/amd64", mediaType="application/x"), "is no manifest that is known"),
        (b" " * (pin_bases.LONGEST + 1), "more than 4 MiB"),
    ],
)
def test_what_is_no_manifest_is_not_pinned(registry: FakeRegistry, body: bytes, said: str) -> None:
    registry.manifests["library/python:3.12-bookworm"] = body
    with pytest.raises(PinError, match=said):
        asking(registry).manifest(PYTHON)


def test_a_registry_that_is_not_there_is_told_with_what_to_do() -> None:
    with (
        refusing() as gone,
        pytest.raises(PinError, match=f"cannot be reached .*--mirror {HUB}=URL"),
    ):
        Registries({HUB: f"http://{gone}"}).manifest(PYTHON)


# --- the file -----------------------------------------------------------------------------------------------


@pytest.fixture
def bases(tmp_path: Path) -> Path:
    path = tmp_path / "bases.env"
    path.write_text(f"# why\n\nA_DIGEST=python:3.12-bookworm\nB_DIGEST=nvcr.io/n/x:1 sha256:{'b' * 64}\n")
    return path


def pin(bases: Path, registry: FakeRegistry) -> int:
    mirrors = [f"--mirror={host}={registry.address}" for host in ("docker.io", "nvcr.io")]
    return pin_bases.main([f"--file={bases}", *mirrors])


def test_all_is_written_and_told(
    bases: Path, registry: FakeRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    other = index("linux/arm64")
    registry.manifests["n/x:1"] = other
    assert pin(bases, registry) == 0
    text = bases.read_text()
    assert text.splitlines() == [
        *("# why", ""),
        f"A_DIGEST=python:3.12-bookworm {digest_of(BODY)}",
        f"B_DIGEST=nvcr.io/n/x:1 {digest_of(other)}",
    ]
    assert capsys.readouterr().out.splitlines()[0] == (
        f"python:3.12-bookworm {digest_of(BODY)} (new) linux/amd64 linux/arm64"
    )
    assert pin(bases, registry) == 0
    assert bases.read_text() == text
    assert capsys.readouterr().out.count("(as before)") == 2
    assert [each.name for each in bases.parent.iterdir()] == ["bases.env"]


def test_one_that_fails_leaves_the_file_as_it_was(
    bases: Path, registry: FakeRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bases.read_text()
    assert pin(bases, registry) == 1
    assert bases.read_text() == before
    assert "bases.env is as it was: nvcr.io/n/x:1 is not there" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["A=python:3", "A_DIGEST=python:3 latest", "A_DIGEST = python:3"])
def test_a_line_that_names_no_base_is_told(
    bases: Path, registry: FakeRegistry, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bases.write_text(f"{line}\n")
    assert pin(bases, registry) == 1
    assert "is not ARGUMENT=IMAGE:TAG DIGEST" in capsys.readouterr().err
