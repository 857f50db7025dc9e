"""A name leads to a model's file, and a remote one is fetched whole or not at all."""

import errno
import hashlib
import shutil
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import CapacityError, ForerunError, UnavailableError, UserError
from common.llama.files import find_model, is_gguf, is_remote
from tests import wording
from tests.support.hub import COMMIT, REPOSITORY, Hub, serving_hub
from tests.support.small_server import Handler, serving

MODEL = b"GGUF" + bytes(range(256)) * 4096  # a megabyte
SHA256 = hashlib.sha256(MODEL).hexdigest()
NAME = f"hf://{REPOSITORY}/f.gguf"

pytestmark = pytest.mark.api  # huggingface_hub, of the `edge` extra


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hub's files. The library reads its environment at its import only."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.gguf"
    path.write_bytes(MODEL)
    return path


def test_a_local_file_is_used_if_its_hash_is_right(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(file.parent))
    assert find_model("~/d.gguf") == find_model(str(file), SHA256.upper()) == str(file)
    with wording.raises(UserError):
        find_model(str(file), "0" * 64)


OTHERS = {
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98\n",
    "web page": b"\n<!DOCTYPE html><html><body>log in first</body></html>",
    "safetensors": (120).to_bytes(8, "little") + b'{"model.embed_tokens.weight":{"dtype":"F16"}}',
    "PyTorch": b"PK\x03\x04" + bytes(40),
    "compressed": b"\x1f\x8b\x08" + bytes(40),
    "before GGUF": b"tjgg" + bytes(40),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_usual_wrong_file_is_named_for_what_it_is(kind: str, file: Path) -> None:
    file.write_bytes(OTHERS[kind])
    with wording.raises(UserError):
        find_model(str(file))


def test_a_folder_is_named_for_what_it_is(file: Path) -> None:
    with wording.raises(UserError):
        find_model(str(file.parent))


def test_a_split_model_is_named_by_its_first_part_beside_all_others(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"m-q4-0000{number}-of-00003.gguf" for number in (1, 2, 3))
    first.write_bytes(MODEL)
    second.write_bytes(MODEL)
    with wording.raises(UserError):
        find_model(str(first))
    with wording.raises(UserError):
        find_model(str(second))
    third.write_bytes(MODEL)
    assert find_model(str(first)) == str(first)


@pytest.mark.parametrize("data", [b"text", b"", MODEL[:23]])
def test_a_file_that_is_no_gguf_is_refused(data: bytes, file: Path) -> None:
    file.write_bytes(data)
    with wording.raises(UserError):
        find_model(str(file))


def test_a_missing_file_is_refused(file: Path) -> None:
    with wording.raises(UserError):
        find_model(str(file.with_name("none.gguf")))


def test_names_of_local_and_remote_files_are_distinguished() -> None:
    assert [is_remote(name) for name in (NAME, "https://x", "http://x", "x.gguf", "/x", "~/hf://")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert is_gguf("https://h/f.GGUF?download=true")
    assert is_gguf(f"hf://{REPOSITORY}@v1/f.gguf")
    assert not is_gguf("https://h/model?name=f.gguf")


PART = f"hf://{REPOSITORY}/m-0000{{}}-of-00003.gguf"


def test_all_parts_of_a_split_model_are_fetched_once_and_no_later_part_alone(hub: Hub, home: Path) -> None:
    hub.files |= {f"m-0000{number}-of-00003.gguf": MODEL + bytes([number]) for number in (1, 2, 3)}
    with wording.raises(UserError):
        find_model(PART.format(2))
    assert not hub.seen
    first = Path(find_model(PART.format(1)))
    assert [path.name for path in sorted(first.parent.iterdir())] == sorted(set(hub.files) - {"f.gguf"})
    hub.seen.clear()
    assert find_model(PART.format(1)) == str(first)
    assert not hub.seen


@pytest.mark.parametrize("number", [1, 2])
def test_a_part_of_another_server_is_refused_before_it_is_fetched(number: int, home: Path) -> None:
    with wording.raises(UserError):
        find_model(f"https://127.0.0.1:1/m-0000{number}-of-00002.gguf")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serving_hub() as served:
        served.files["f.gguf"] = MODEL
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            served.address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield served


@pytest.mark.parametrize("name", [NAME, f"hf://{REPOSITORY}@{COMMIT}/f.gguf"])
def test_a_file_of_the_hub_is_fetched_once(name: str, hub: Hub, home: Path) -> None:
    path = Path(find_model(name, SHA256))
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(home / "hub")
    hub.seen.clear()
    assert find_model(name) == str(path)
    assert not hub.seen


def test_a_file_of_another_hash_is_not_used(hub: Hub) -> None:
    with pytest.raises(UserError):
        find_model(NAME, "0" * 64)


@pytest.mark.parametrize("name", [f"hf://{REPOSITORY}/none.gguf", "hf://o/r/f.gguf"])
def test_a_file_that_the_hub_lacks_is_refused(name: str, hub: Hub) -> None:
    with wording.raises(UserError):
        find_model(name)


def test_a_gated_file_is_refused_with_what_to_do(hub: Hub) -> None:
    hub.gated = True
    with wording.raises(UserError):
        find_model(NAME)


def test_offline_only_a_kept_file_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = find_model(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model(NAME) == path
    with wording.raises(UnavailableError):
        find_model(f"hf://{REPOSITORY}/other.gguf")


@pytest.mark.parametrize(
    "name", ["hf://", "hf://o", "hf://o/r", "hf://o/r/", "hf:///r/f", "hf://datasets/o/r/f"]
)
def test_a_name_without_a_file_is_refused(name: str) -> None:
    with pytest.raises(UserError):
        find_model(name)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    """TLS of a server that this machine trusts."""
    authority, context = pytest.importorskip("trustme").CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "127.0.0.2").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return context


def fetched(context: ssl.SSLContext, answer: Callable[[Handler], None], sha256: str = "") -> str:
    with serving(answer, tls=context) as address:
        return find_model(f"https://{address}/f.gguf", sha256)


def test_a_file_of_a_server_is_fetched_once(web: ssl.SSLContext) -> None:
    asked = list[str]()

    def answer(request: Handler) -> None:
        asked.append(request.path)
        request.reply(200, MODEL)

    with serving(answer, tls=web) as address:
        path = find_model(f"https://{address}/f.gguf?x", SHA256)
        assert find_model(f"https://{address}/f.gguf?x") == path
        assert find_model(f"https://{address}/f.gguf?y") != path
    assert Path(path).read_bytes() == MODEL
    assert asked == ["/f.gguf?x", "/f.gguf?y"]


def breaks_off(request: Handler) -> None:
    request.begin(200, Content_Length=str(len(MODEL)))
    request.wfile.write(MODEL[:300_000])


def redirected_to(place: str) -> Callable[[Handler], None]:
    return lambda request: request.reply(302, Location=place)


REFUSED: dict[str, tuple[Callable[[Handler], None], str, type[ForerunError]]] = {
    "another hash": (lambda request: request.reply(200, MODEL), "0" * 64, UserError),
    "no GGUF": (lambda request: request.reply(200, b"<html>log in first</html>"), "", UserError),
    "broken off": (breaks_off, "", UnavailableError),
    "401": (lambda request: request.reply(401), "", UserError),
    "404": (lambda request: request.reply(404), "", UserError),
    "503": (lambda request: request.reply(503), "", UnavailableError),
    "to plain text": (redirected_to("http://127.0.0.1:1/f.gguf"), "", UnavailableError),
    "to a file": (redirected_to("file:///etc/passwd"), "", UnavailableError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_left_of_a_fetch_that_failed(case: str, web: ssl.SSLContext, home: Path) -> None:
    answer, sha256, kind = REFUSED[case]
    with wording.raises(kind):
        fetched(web, answer, sha256)
    assert not files_below(home / "assets")


def test_a_full_disk_is_named(web: ssl.SSLContext, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(source: Any, file: Any, block: int) -> None:
        file.write(source.read(block))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    with wording.raises(CapacityError):
        fetched(web, lambda request: request.reply(200, MODEL))
    assert not files_below(home / "assets")


def test_a_server_with_an_unknown_certificate_is_refused(
    web: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(UnavailableError):
        fetched(web, lambda request: request.reply(200, MODEL))


@pytest.mark.parametrize("name", ["http://h/f.gguf", "https://h", "https://h/", "https://h:x/f.gguf"])
def test_an_address_that_cannot_be_fetched_is_refused(name: str) -> None:
    with pytest.raises(ForerunError):
        find_model(name)
