"""A model comes whole or not at all, over servers of all manners; and the token goes to the hub alone."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import re
import ssl
import urllib.response
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

import pytest

from benchmarks.ports import refusing
from common.errors import CapacityError, PeerError, UnavailableError, UserError
from edge_client.fetch import MOST_FAILURES, SPARE, Surroundings, fetch
from edge_client.model_name import parse_name
from edge_client.model_store import Manifest, ModelStore, parts_of, read_manifest
from edge_client.web import Credentials, _next
from tests.edge_client.small_server import Handler, serving

MODEL = b"GGUF" + bytes(range(256)) * 4096  # a megabyte
SHA256 = hashlib.sha256(MODEL).hexdigest()
NAME = "hf://o/r/f.gguf"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@dataclass
class Files:
    """A file server that can do what real ones do, and notes what it was asked."""

    data: bytes = MODEL
    ranges: bool = True
    etag: str = '"tag"'
    hub: bool = False  # redirects to /blob and tells the hash, as the hub does
    elsewhere: str = ""  # where to, if not to itself
    breaks_after: list[int] = field(default_factory=list)  # bytes of the next answers, until one is whole
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, token

    def __call__(self, request: Handler) -> None:
        self.seen.append((request.path, request.headers.get("Range"), request.headers.get("Authorization")))
        if self.hub and "/resolve/" in request.path:
            tag = f'"{hashlib.sha256(self.data).hexdigest()}"'
            more = {"X_Linked_Etag": tag, "X_Repo_Commit": "c0ffee"}
            request.reply(302, b"see there", Location=f"{self.elsewhere}/blob", **more)
            return
        start = self._start(request)
        if start is not None and start >= len(self.data):
            request.reply(416, Content_Range=f"bytes */{len(self.data)}", ETag=self.etag)
            return
        rest = self.data[start or 0 :]
        headers = {"Content_Length": str(len(rest)), **({"ETag": self.etag} if self.etag else {})}
        if start is not None:
            headers["Content_Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        request.begin(200 if start is None else 206, **headers)
        request.wfile.write(rest[: self.breaks_after.pop(0)] if self.breaks_after else rest)

    def _start(self, request: Handler) -> int | None:
        found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        return int(found[1]) if found and self.ranges else None

    @property
    def ranges_asked(self) -> list[str | None]:
        return [asked for _, asked, _ in self.seen]


@dataclass
class World:
    """A store, its surroundings, and a server."""

    store: ModelStore
    files: Files
    address: str
    pauses: list[float] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)
    free: int = 1 << 40
    token: str = "hf_canary"

    @property
    def path(self) -> Path:
        return self.store.path_of(parse_name(NAME))

    @property
    def part(self) -> Path:
        return parts_of(self.path)[0]

    def fetch(self, sha256: str = "", name: str = NAME) -> Manifest:
        hub = f"http://{self.address}"
        told = Surroundings(
            lambda: "2026-01-02T03:04:05+00:00",
            self.pauses.append,
            lambda done, total: self.progress.append((done, total)),
            lambda folder: self.free,
        )
        parsed = parse_name(name, hub)
        return fetch(parsed, self.store.path_of(parsed), Credentials(self.token, hub), told, sha256)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    files = Files()
    with serving(files) as address:
        yield World(ModelStore(tmp_path / "models"), files, address)


def left(world: World) -> list[str]:
    return sorted(path.name for path in world.path.parent.iterdir())


def test_a_file_comes_whole_with_a_note_of_where_from(world: World) -> None:
    manifest = world.fetch()
    assert world.path.read_bytes() == MODEL
    assert left(world) == ["f.gguf", "f.gguf.forerun.json"]
    assert manifest == read_manifest(world.path)
    assert (manifest.name, manifest.sha256, manifest.size) == (NAME, SHA256, len(MODEL))
    assert (manifest.checked, manifest.fetched_at) == ("", "2026-01-02T03:04:05+00:00")
    assert (len(MODEL), len(MODEL)) in world.progress
    assert world.store.find(NAME) == world.path
    assert not world.pauses


def test_the_hubs_hash_is_held_against_what_came(world: World) -> None:
    world.files.hub = True
    manifest = world.fetch()
    assert (manifest.checked, manifest.commit, manifest.sha256) == ("hub", "c0ffee", SHA256)
    assert [path for path, *_ in world.files.seen] == ["/o/r/resolve/main/f.gguf", "/blob"]


def test_a_given_hash_is_held_against_what_came(world: World) -> None:
    assert world.fetch(SHA256.upper()).checked == "given"


@pytest.mark.parametrize("hub", [False, True])
def test_the_token_is_told_to_the_hub_alone(world: World, hub: bool) -> None:
    other = Files()
    with serving(other) as address:
        port = address.rpartition(":")[2]
        world.files.hub, world.files.elsewhere = True, "" if hub else f"http://localhost:{port}"
        world.fetch()
        assert world.files.seen[0][2] == "Bearer hf_canary"
        assert [token for *_, token in other.seen] == ([] if hub else [None])
    if hub:
        assert world.files.seen[1][2] == "Bearer hf_canary"


def test_a_url_of_another_host_gets_no_token(world: World) -> None:
    other = Files()
    with serving(other) as address:
        world.fetch(name=f"http://{address}/f.gguf")
    assert [token for *_, token in other.seen] == [None]


def test_no_redirect_leads_from_safety_to_plain_text(world: World) -> None:
    world.files.hub, world.files.elsewhere = True, "http://10.1.2.3"
    with pytest.raises(PeerError, match=r"http://10.1.2.3/blob, which is not followed: it is not encrypted"):
        world.fetch()
    world.files.elsewhere = "file:///etc/passwd#"
    with pytest.raises(PeerError, match="is not followed"):
        world.fetch()


def test_redirects_in_a_circle_end(tmp_path: Path) -> None:
    with (
        serving(lambda request: request.reply(302, Location="/again")) as address,
        pytest.raises(PeerError, match="more than 10 times"),
    ):
        World(ModelStore(tmp_path), Files(), address).fetch()


def test_plain_text_over_a_network_needs_a_hash(world: World) -> None:
    with pytest.raises(UserError, match="not encrypted: anybody may change it on its way; give its --sha256"):
        world.fetch(name="http://10.1.2.3/f.gguf")


@pytest.mark.parametrize(
    ("hub", "url", "told"),
    [
        ("https://hub.example", "https://hub.example/o/r", True),
        ("https://hub.example", "https://hub.example:443/o/r", True),
        ("https://hub.example", "https://cdn.hub.example/o/r", False),
        ("https://hub.example", "https://hub.example.evil/o/r", False),
        ("https://hub.example", "https://hub.example:8443/o/r", False),
        ("https://hub.example", "http://hub.example/o/r", False),
        ("http://mirror.example", "http://mirror.example/o/r", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/o/r", True),
    ],
)
def test_the_token_is_for_one_origin_and_never_in_plain_text(hub: str, url: str, told: bool) -> None:
    assert bool(Credentials("canary", hub).headers_for(url)) is told
    assert not Credentials("", hub).headers_for(url)


@pytest.mark.api
def test_a_certificate_that_nobody_knows_is_not_asked_again(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    files = Files()
    with serving(files, tls=context) as address:
        world = World(ModelStore(tmp_path), files, address)
        with pytest.raises(UserError, match="the server's certificate is not trusted"):
            world.fetch(name=f"https://{address}/f.gguf")
    assert not files.seen
    assert not world.pauses


# what breaks off --------------------------------------------------------------------------------------------


def test_what_broke_off_is_taken_up_where_it_broke(world: World) -> None:
    world.files.breaks_after = [300_000, 400_000]
    world.fetch(SHA256)
    assert world.path.read_bytes() == MODEL
    assert world.files.ranges_asked == [None, "bytes=300000-", "bytes=700000-"]


def test_the_next_command_goes_on_where_the_last_gave_up(world: World) -> None:
    world.files.breaks_after = [300_000] + [0] * MOST_FAILURES
    with pytest.raises(UnavailableError, match="300,000 bytes are kept, and the same command goes on"):
        world.fetch()
    assert world.part.read_bytes() == MODEL[:300_000]
    assert world.pauses == [1.0, 1.0, 2.0, 4.0]
    world.files.seen.clear()
    world.fetch()
    assert world.files.ranges_asked == ["bytes=300000-"]
    assert world.path.read_bytes() == MODEL
    assert left(world) == ["f.gguf", "f.gguf.forerun.json"]


def interrupted(world: World) -> None:
    world.files.breaks_after = [300_000] + [0] * MOST_FAILURES
    with pytest.raises(UnavailableError):
        world.fetch()
    world.files.seen.clear()


@pytest.mark.parametrize("hub", [False, True])
def test_a_file_that_changed_meanwhile_is_fetched_anew(world: World, hub: bool) -> None:
    world.files.hub = hub
    interrupted(world)
    world.files.data, world.files.etag = MODEL[:4] + MODEL[:3:-1], '"other"'
    world.fetch()
    assert world.path.read_bytes() == world.files.data


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_a_file_that_cannot_be_told_from_another_is_fetched_anew(world: World, etag: str) -> None:
    world.files.etag = etag
    interrupted(world)
    world.fetch()
    assert world.files.ranges_asked == [None]
    assert world.path.read_bytes() == MODEL


def test_a_server_that_always_breaks_off_and_answers_ranges_wrongly_is_given_up(world: World) -> None:
    def answer(request: Handler) -> None:
        world.files.seen.append((request.path, request.headers.get("Range"), None))
        if request.headers.get("Range"):
            request.reply(
                206, MODEL, Content_Range=f"bytes 5-{len(MODEL) + 4}/{len(MODEL) + 5}", ETag='"tag"'
            )
        else:
            request.begin(200, Content_Length=str(len(MODEL)), ETag='"tag"')
            request.wfile.write(MODEL[: 1000 + len(world.files.seen)])

    with serving(answer) as address, pytest.raises(UnavailableError):
        World(world.store, world.files, address).fetch()
    assert len(world.files.seen) <= 3 * MOST_FAILURES


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(world: World) -> None:
    world.files.ranges, world.files.breaks_after = False, [300_000, 200_000] * 50
    with pytest.raises(UnavailableError):
        world.fetch()
    assert len(world.files.seen) <= MOST_FAILURES + 1


def test_a_server_that_cannot_begin_in_the_middle_begins_anew(world: World) -> None:
    interrupted(world)
    world.files.ranges = False
    world.fetch()
    assert world.files.ranges_asked == ["bytes=300000-"]
    assert world.path.read_bytes() == MODEL


def test_a_part_that_is_whole_is_only_hashed(world: World) -> None:
    interrupted(world)
    world.part.write_bytes(MODEL)
    world.fetch(SHA256)
    assert world.path.read_bytes() == MODEL


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(world: World) -> None:
    interrupted(world)
    world.part.write_bytes(MODEL + b"more")
    world.fetch(SHA256)
    assert world.path.read_bytes() == MODEL


def test_a_note_that_is_damaged_costs_the_part_and_nothing_else(world: World) -> None:
    interrupted(world)
    parts_of(world.path)[1].write_text("[]")
    world.fetch()
    assert world.files.ranges_asked == [None]


# what is refused --------------------------------------------------------------------------------------------


def test_a_wrong_hash_is_refused_and_nothing_is_removed(world: World) -> None:
    with pytest.raises(UserError, match=f"has the SHA-256 {SHA256}, not 0+; it is not used and left"):
        world.fetch("0" * 64)
    assert world.part.read_bytes() == MODEL
    assert world.store.find(NAME) is None


def test_a_hash_that_the_hub_contradicts_costs_no_byte(world: World) -> None:
    world.files.hub = True
    with pytest.raises(UserError, match="nothing was fetched"):
        world.fetch("0" * 64)
    assert not list(world.path.parent.iterdir())


def test_bytes_that_the_hub_did_not_promise_are_refused(world: World) -> None:
    other = Files(data=MODEL[:-1] + b"!")
    with serving(other) as address:
        world.files.hub, world.files.elsewhere = True, f"http://{address}"
        with pytest.raises(UserError, match="it is not used"):
            world.fetch()


def test_a_file_without_a_size_stops_before_the_disk_is_full_and_is_removed(world: World) -> None:
    def answer(request: Handler) -> None:
        request.begin(200)
        for _ in range(8):
            request.wfile.write(MODEL)

    def free(folder: Path) -> int:
        return SPARE + 3 * len(MODEL) - world.part.stat().st_size

    with serving(answer) as address:
        name, hub = parse_name(NAME, f"http://{address}"), Credentials("", f"http://{address}")
        told = Surroundings(lambda: "", world.pauses.append, lambda done, total: None, free)
        with pytest.raises(CapacityError, match="does not say how large it is"):
            fetch(name, world.path, hub, told)
    assert not list(world.path.parent.iterdir())


def test_a_symbolic_link_in_the_place_of_the_part_is_not_followed(world: World, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    world.part.parent.mkdir(parents=True)
    world.part.symlink_to(victim)
    with pytest.raises(UserError, match="symbolic link"):
        world.fetch()
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("here", "there", "is_followed"),
    [
        ("https://hub.example/f", "http://127.0.0.1:8080/x", False),
        ("https://hub.example/f", "https://127.1/x", False),
        ("https://hub.example/f", "https://2130706433/x", False),
        ("https://hub.example/f", "https://localhost./x", False),
        ("https://hub.example/f", "https://[::1]/x", False),
        ("https://hub.example/f", "https://[::ffff:127.0.0.1]/x", False),
        ("https://hub.example/f", "https://0.0.0.0/x", False),
        ("http://10.1.2.3/f", "http://127.0.0.1/x", False),
        ("http://127.0.0.1:1/f", "http://localhost:2/x", True),
        ("https://hub.example/f", "https://cdn.example/x", True),
        ("https://hub.example/f", "https://10.1.2.3/x", True),
    ],
)
def test_only_this_machine_redirects_to_this_machine(here: str, there: str, is_followed: bool) -> None:
    response = urllib.response.addinfourl(io.BytesIO(), Message(), here, 302)
    response.headers["Location"] = there
    if is_followed:
        assert _next(here, response) == there
    else:
        with pytest.raises(PeerError, match="is not followed"):
            _next(here, response)


@pytest.mark.parametrize("data", [b"<html>log in first</html>", b"GG", b"version https://git-lfs"])
def test_what_is_no_gguf_is_refused_and_not_kept(world: World, data: bytes) -> None:
    world.files.data = data
    with pytest.raises(UserError, match="is not a GGUF file"):
        world.fetch()
    assert not list(world.path.parent.iterdir())


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, UserError, "accept its terms and set HF_TOKEN"),
        (403, UserError, "accept its terms and set HF_TOKEN"),
        (404, UserError, "is not there"),
        (400, UserError, "answered 400 Bad Request"),
        (429, UnavailableError, "answered 429 Too Many Requests; try again later"),
        (503, UnavailableError, "answered 503"),
    ],
)
def test_a_refusal_is_a_sentence(status: int, kind: type[Exception], words: str, tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: Handler) -> None:
        asked.append(request.path)
        request.reply(status, b"no")

    with serving(answer) as address:
        world = World(ModelStore(tmp_path), Files(), address)
        with pytest.raises(kind, match=words):
            world.fetch()
    assert len(asked) == (MOST_FAILURES if kind is UnavailableError else 1)
    assert "hf_canary" not in words


def test_nobody_there_is_a_sentence(tmp_path: Path) -> None:
    with (
        refusing() as gone,
        pytest.raises(UnavailableError, match=r"cannot be reached: .*Connection refused"),
    ):
        World(ModelStore(tmp_path), Files(), gone).fetch()


def test_a_disk_that_is_too_small_is_told_before_a_byte_is_written(world: World) -> None:
    world.free = len(MODEL)
    with pytest.raises(CapacityError, match=r"needs 1,048,580 bytes more, and .* has 1,048,580 free"):
        world.fetch()
    assert not list(world.path.parent.iterdir())


def test_a_folder_that_cannot_be_written_is_told(world: World) -> None:
    world.store.root.write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        world.fetch()


def test_more_bytes_than_were_promised_are_not_waited_for(world: World, tmp_path: Path) -> None:
    def chunks(request: Handler) -> None:
        request.begin(206, Content_Range="bytes 0-9/10", Transfer_Encoding="chunked")
        request.wfile.write(b"14\r\n" + MODEL[:20] + b"\r\n0\r\n\r\n")

    with serving(chunks) as address, pytest.raises(PeerError, match="more bytes came than the server said"):
        World(ModelStore(tmp_path / "m"), Files(), address).fetch()


def test_packed_bytes_are_refused(tmp_path: Path) -> None:
    with (
        serving(lambda request: request.reply(200, MODEL, Content_Encoding="gzip")) as address,
        pytest.raises(PeerError, match=r"came packed \(gzip\)"),
    ):
        World(ModelStore(tmp_path), Files(), address).fetch()


def test_two_fetches_of_one_file_do_not_meet(world: World) -> None:
    world.part.parent.mkdir(parents=True)
    with world.part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being fetched by another command"):
            world.fetch()


# the store --------------------------------------------------------------------------------------------------


def test_the_store_lists_and_removes(world: World) -> None:
    world.fetch()
    world.fetch(name=f"{NAME}@v1")
    assert [each.manifest.name for each in world.store.all()] == [NAME, f"{NAME}@v1"]
    about = (world.path.parent / "f.gguf.forerun.json").stat().st_size
    assert world.store.remove(NAME) == len(MODEL) + about
    assert [each.manifest.name for each in world.store.all()] == [f"{NAME}@v1"]
    assert not world.path.parent.exists()
    world.store.remove(f"{NAME}@v1")
    assert not list(world.store.root.iterdir())
    with pytest.raises(UserError, match="is not in"):
        world.store.remove(NAME)


def test_remove_takes_what_an_unfinished_fetch_left(world: World) -> None:
    interrupted(world)
    world.store.remove(NAME)
    assert not list(world.store.root.iterdir())


def test_a_manifest_that_is_damaged_is_none(world: World) -> None:
    world.fetch()
    about = world.path.with_name("f.gguf.forerun.json")
    about.write_text(json.dumps({"name": 1}))
    assert not list(world.store.all())
    with pytest.raises(UserError, match="forerun pull"):
        world.store.get(NAME)
