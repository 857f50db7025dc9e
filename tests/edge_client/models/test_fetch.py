"""A model comes whole or not at all, over servers of all manners; and the token goes to the hub alone."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import re
import ssl
import urllib.response
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import CapacityError, PeerError, UnavailableError, UserError
from common.llama.store import ModelManifest, ModelStore, is_remote, parse_name, parts_of, read_manifest
from edge_client.models.fetch import MOST_FAILURES, SPARE, FetchSurroundings, fetch
from edge_client.models.web import Credentials, _next
from tests import wording
from tests.edge_client.small_server import Handler, serving
from tests.ports import refusing

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

    def fetch(self, sha256: str = "", name: str = NAME) -> ModelManifest:
        hub = f"http://{self.address}"
        told = FetchSurroundings(
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
    assert world.fetch(SHA256.upper()).checked == "given"


@pytest.mark.parametrize("hub", [False, True])
def test_the_token_is_told_to_the_hub_alone(world: World, hub: bool) -> None:
    other = Files()
    with serving(other) as address:
        port = address.rpartition(":")[2]
        world.files.hub, world.files.elsewhere = True, "" if hub else f"http://localhost:{port}"
        world.fetch()
        world.fetch(name=f"http://{address}/f.gguf")  # a URL of another host
    assert [token for *_, token in world.files.seen] == ["Bearer hf_canary"] * (2 if hub else 1)
    assert [token for *_, token in other.seen] == [None] * (1 if hub else 2)


@pytest.mark.parametrize("elsewhere", ["http://10.1.2.3", "file:///etc/passwd#"])
def test_no_redirect_leads_from_safety_to_plain_text(world: World, elsewhere: str) -> None:
    world.files.hub, world.files.elsewhere = True, elsewhere
    with wording.raises(PeerError):
        world.fetch()


def test_plain_text_over_a_network_needs_a_hash(world: World) -> None:
    with wording.raises(UserError):
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
def test_a_certificate_that_nobody_knows_is_not_asked_again(world: World) -> None:
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with serving(world.files, tls=context) as address, wording.raises(UserError):
        world.fetch(name=f"https://{address}/f.gguf")
    assert not world.files.seen
    assert not world.pauses


# what breaks off --------------------------------------------------------------------------------------------


def test_what_broke_off_is_taken_up_where_it_broke(world: World) -> None:
    world.files.breaks_after = [300_000, 400_000]
    world.fetch(SHA256)
    assert world.path.read_bytes() == MODEL
    assert world.files.ranges_asked == [None, "bytes=300000-", "bytes=700000-"]


def test_the_next_command_goes_on_where_the_last_gave_up(world: World) -> None:
    world.files.breaks_after = [300_000] + [0] * MOST_FAILURES
    with wording.raises(UnavailableError):
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


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_part_that_is_whole_is_only_hashed_and_a_longer_one_fetched_anew(world: World, more: bytes) -> None:
    interrupted(world)
    world.part.write_bytes(MODEL + more)
    world.fetch(SHA256)
    assert world.path.read_bytes() == MODEL
    assert None in world.files.ranges_asked or not more


def test_a_note_that_is_damaged_costs_the_part_and_nothing_else(world: World) -> None:
    interrupted(world)
    parts_of(world.path)[1].write_text("[]")
    world.fetch()
    assert world.files.ranges_asked == [None]


# what is refused --------------------------------------------------------------------------------------------


def test_a_wrong_hash_is_refused_and_nothing_is_removed(world: World) -> None:
    with wording.raises(UserError):
        world.fetch("0" * 64)
    assert world.part.read_bytes() == MODEL
    assert world.store.find(NAME) is None


def test_a_hash_that_the_hub_contradicts_costs_no_byte(world: World) -> None:
    world.files.hub = True
    with wording.raises(UserError):
        world.fetch("0" * 64)
    assert not list(world.path.parent.iterdir())


def test_bytes_that_the_hub_did_not_promise_are_refused(world: World) -> None:
    other = Files(data=MODEL[:-1] + b"!")
    with serving(other) as address:
        world.files.hub, world.files.elsewhere = True, f"http://{address}"
        with wording.raises(UserError):
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
        told = FetchSurroundings(lambda: "", world.pauses.append, lambda done, total: None, free)
        with wording.raises(CapacityError):
            fetch(name, world.path, hub, told)
    assert not list(world.path.parent.iterdir())


def test_a_symbolic_link_in_the_place_of_the_part_is_not_followed(world: World, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    world.part.parent.mkdir(parents=True)
    world.part.symlink_to(victim)
    with wording.raises(UserError):
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
        with wording.raises(PeerError):
            _next(here, response)


@pytest.mark.parametrize("data", [b"<html>log in first</html>", b"GG", b"version https://git-lfs"])
def test_what_is_no_gguf_is_refused_and_not_kept(world: World, data: bytes) -> None:
    world.files.data = data
    with wording.raises(UserError):
        world.fetch()
    assert not list(world.path.parent.iterdir())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UserError),
        (403, UserError),
        (404, UserError),
        (400, UserError),
        (429, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_a_refusal_is_a_sentence_and_asked_again_only_if_that_may_help(
    status: int, kind: type[Exception], tmp_path: Path
) -> None:
    asked: list[str] = []

    def answer(request: Handler) -> None:
        asked.append(request.path)
        request.reply(status, b"no")

    with serving(answer) as address, wording.raises(kind) as refused:
        World(ModelStore(tmp_path), Files(), address).fetch()
    assert len(asked) == (MOST_FAILURES if kind is UnavailableError else 1)
    assert "hf_canary" not in str(refused.value)


def circle(request: Handler) -> None:
    request.reply(302, Location="/again")


def packed(request: Handler) -> None:
    request.reply(200, MODEL, Content_Encoding="gzip")


def more_than_promised(request: Handler) -> None:
    request.begin(206, Content_Range="bytes 0-9/10", Transfer_Encoding="chunked")
    request.wfile.write(b"14\r\n" + MODEL[:20] + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("answer", [circle, packed, more_than_promised])
def test_a_server_that_cannot_be_believed_is_refused(
    answer: Callable[[Handler], None], tmp_path: Path
) -> None:
    with serving(answer) as address, wording.raises(PeerError):
        World(ModelStore(tmp_path), Files(), address).fetch()


def test_nobody_there_is_a_sentence(tmp_path: Path) -> None:
    with refusing() as gone, wording.raises(UnavailableError):
        World(ModelStore(tmp_path), Files(), gone).fetch()


def test_a_disk_that_is_too_small_is_told_before_a_byte_is_written(world: World) -> None:
    world.free = len(MODEL)
    with wording.raises(CapacityError):
        world.fetch()
    assert not list(world.path.parent.iterdir())


def test_a_folder_that_cannot_be_written_is_told(world: World) -> None:
    world.store.root.write_text("a file")
    with wording.raises(UserError):
        world.fetch()


def test_two_fetches_of_one_file_do_not_meet(world: World) -> None:
    world.part.parent.mkdir(parents=True)
    with world.part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with wording.raises(UserError):
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
    interrupted(world)
    world.store.remove(NAME)
    assert not list(world.store.root.iterdir()), "what an unfinished fetch left goes, too"
    with wording.raises(UserError):
        world.store.remove(NAME)


def test_a_manifest_that_is_damaged_is_none(world: World) -> None:
    world.fetch()
    about = world.path.with_name("f.gguf.forerun.json")
    about.write_text(json.dumps({"name": 1}))
    assert not list(world.store.all())
    with wording.raises(UserError):
        world.store.get(NAME)


# names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url", "place"),
    [
        ("hf://o/r/f.gguf", "https://huggingface.co/o/r/resolve/main/f.gguf", "o/r/main/f.gguf"),
        ("hf://o/r/q 8/f.gguf@v1", "https://huggingface.co/o/r/resolve/v1/q%208/f.gguf", "o/r/v1/q 8/f.gguf"),
        (
            "hf://o/r/f.gguf@refs/pr/1",
            "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/f.gguf",
            "o/r/refs%2Fpr%2F1/f.gguf",
        ),
        ("https://h/a/b.gguf", "https://h/a/b.gguf", "url/h/a/b.gguf"),
        ("https://h:8443/b%20c.gguf", "https://h:8443/b%20c.gguf", "url/h-8443/b c.gguf"),
    ],
)
def test_a_name_is_taken_apart(text: str, url: str, place: str) -> None:
    name = parse_name(text)
    assert (name.text, name.url, str(name.place)) == (text, url, place)


def test_a_mirror_serves_the_same_names_to_the_same_places() -> None:
    name = parse_name("hf://o/r/f.gguf", "https://mirror.example/hub/")
    assert name.url == "https://mirror.example/hub/o/r/resolve/main/f.gguf"
    assert name.place == parse_name("hf://o/r/f.gguf").place


def test_queries_tell_files_apart() -> None:
    first, second = (parse_name(f"https://h/f.gguf?id={number}").place for number in (1, 2))
    assert first != second
    assert first.suffix == ".gguf"


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://o", "hf://o/r", "hf://o/r/", "hf:///r/f", "hf://o/r/../f", "hf://o/r/f@", "hf://o/r/a\\b",
     "hf://../r/f", "https://", "https://h", "https://h/", "https://h/a/../b", "https://h/%2e%2e/b",
     "https://h/a%2F..%2Fb", "https://h:x/f", "https://me:secret@h/f"],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_name(text)
    assert "secret" not in str(caught.value)


@given(st.sampled_from(("hf://", "https://", "http://")), st.text(max_size=40))
def test_no_name_leads_out_of_the_store(prefix: str, rest: str) -> None:
    try:
        place = parse_name(prefix + rest).place
    except UserError:
        return
    assert not place.is_absolute()
    assert ".." not in place.parts
    assert len(place.parts) >= 3


def test_files_of_this_machine_are_told_apart() -> None:
    assert [is_remote(text) for text in ("hf://x", "https://x", "http://x", "x.gguf", "/x", "~/hf://")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
