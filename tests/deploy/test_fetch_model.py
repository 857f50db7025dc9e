"""The Job that fills a model's volume, run as the cluster runs it, against a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from common.wire import bounds
from lab.tools.chart import ROOT
from lab.tools.model_manifest import manifest_of
from tests.ports import refusing

SCRIPT = ROOT / "deploy" / "kubernetes" / "components" / "model" / "fetch_model.py"
TARGET = ROOT / "lab" / "demo_models" / "target"


def loaded() -> ModuleType:
    """The script as a module; it is no part of a package, as it travels alone."""
    spec = importlib.util.spec_from_file_location("fetch_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


job: Any = loaded()


@dataclass
class Registry:
    """A server of files that can break off and that remembers what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_at: dict[str, int] = field(default_factory=dict)  # bytes after which it hangs up, once each
    moved: dict[str, str] = field(default_factory=dict)  # path -> address that it is at now
    ranges: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, Range, Authorization
    address: str = ""

    def entry(self, path: str, **other: object) -> dict[str, object]:
        """What a manifest says of a file here."""
        data = self.files[f"/{path}"]
        found = {"path": path, "url": f"{self.address}/{path}", "size": len(data)}
        return {**found, "sha256": hashlib.sha256(data).hexdigest(), **other}


def handler_of(registry: Registry) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            begin = self.headers.get("Range", "")
            registry.asked.append((self.path, begin, self.headers.get("Authorization", "")))
            if self.path in registry.moved:
                self._head(302, 0, Location=registry.moved[self.path])
            elif self.path not in registry.files:
                self._head(404, 0)
            else:
                self._send(registry.files[self.path], begin)

        def _send(self, data: bytes, asked: str) -> None:
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and registry.ranges else 0
            rest = data[begin:]
            self._head(206 if begin else 200, len(rest))
            cut = registry.cut_at.pop(self.path, len(rest))
            self.wfile.write(rest[:cut])
            self.close_connection = cut < len(rest)

        def _head(self, status: int, length: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(length), **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Tests have nobody to tell."""

    return Handler


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    with serving(found):
        yield found


class serving:
    """A registry that answers while the block runs."""

    def __init__(self, registry: Registry) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        registry.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def safetensors(size: int = 1000) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(index % 251 for index in range(size))


def a_model(registry: Registry) -> list[dict[str, object]]:
    registry.files |= {"/config.json": b'{"model_type": "llama"}', "/model.safetensors": safetensors()}
    return [registry.entry("config.json"), registry.entry("model.safetensors")]


@dataclass
class Volume:
    """A folder, its manifest, and the script's commands on them."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def folder(self) -> Path:
        return self.root / "target"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    def wants(self, entries: object) -> None:
        self.manifest.write_text(json.dumps({"files": entries}), encoding="utf-8")

    def run(self, verb: str, *more: str) -> int:
        where = ("--manifest", str(self.manifest), "--into", str(self.folder))
        plain = ("--plain-http",) if verb == "fetch" else ()
        code: int = job.main([verb, *where, *plain, *more])
        return code

    def refusal(self, verb: str = "fetch") -> str:
        """What the script says as it refuses."""
        assert self.run(verb) == 1
        return self.capsys.readouterr().err


@pytest.fixture
def volume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Volume:
    return Volume(tmp_path, capsys)


def test_a_model_comes_whole_once(registry: Registry, volume: Volume) -> None:
    volume.wants(a_model(registry))
    assert volume.run("check") == 1
    assert volume.run("fetch") == 0
    assert volume.run("check") == 0
    path = volume.folder / "model.safetensors"
    assert path.read_bytes() == registry.files["/model.safetensors"]
    assert {each.name for each in volume.folder.iterdir()} == {job.DONE, "config.json", "model.safetensors"}
    assert {authorization for *_, authorization in registry.asked} == {""}
    registry.asked.clear()
    assert volume.run("fetch") == 0
    assert registry.asked == []
    path.write_bytes(bytes(path.stat().st_size))
    assert volume.run("fetch", "--token-file", "/nowhere") == 0
    assert path.read_bytes() == registry.files["/model.safetensors"]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_broke_off_is_taken_up(ranges: bool, registry: Registry, volume: Volume) -> None:
    volume.wants(a_model(registry))
    registry.ranges = ranges
    registry.cut_at["/model.safetensors"] = 400
    assert volume.run("fetch") == 1
    assert not (volume.folder / "model.safetensors").exists()
    assert volume.run("check") == 1
    assert volume.run("fetch") == 0
    assert registry.asked[-1][:2] == ("/model.safetensors", "bytes=400-")
    assert (volume.folder / "model.safetensors").read_bytes() == registry.files["/model.safetensors"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sha256": "0" * 64}, "has the sha256"),
        ({"size": 100}, "more bytes than its manifest says"),
        ({"size": 100_000}, "broke off"),
        ({"sha256": "abc"}, "must be 64 hex digits"),
        ({"size": 0}, "number of bytes above 0"),
        ({"size": "many"}, "is no manifest"),
        ({"url": "file:///etc/passwd"}, "is refused: files are fetched by https"),
        ({"url": "ftp://models.internal/x"}, "is refused: files are fetched by https"),
        *(
            ({"path": path}, "no name of a file")
            for path in ("../x.json", "/etc/x.json", "a/../../x.json", ".hidden.json", "", "a/.git/x.json")
        ),
        *(
            ({"path": path}, f"{path} is refused")
            for path in ("pytorch_model.bin", "model.pkl", "model.gguf", "modeling_x.py", "model")
        ),
        *(
            ({"path": path}, f"{path} is refused")
            for path in ("x.safetensors.bin", "chat_template.jinja.py", "chat_template.j2")
        ),
    ],
)
def test_an_entry_that_cannot_be_right_is_refused(
    change: dict[str, object], sentence: str, registry: Registry, volume: Volume
) -> None:
    config, model = a_model(registry)
    volume.wants([config, {**model, **change}])
    assert sentence in volume.refusal()
    left = {each.name: each.stat().st_size for each in volume.folder.glob("*")}
    assert "model.safetensors" not in left
    assert left.get("model.safetensors.part", 0) <= len(registry.files["/model.safetensors"])
    assert volume.run("check") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no manifest"),
        ("[]", "is no manifest"),
        ('{"files": [{}]}', "is no manifest"),
        ('{"files": []}', "names no model"),
        (None, "cannot be read"),
        ((SCRIPT.parent / "manifest.json").read_text(encoding="utf-8"), "names no model"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str | None, sentence: str, volume: Volume) -> None:
    if text is not None:
        volume.manifest.write_text(text, encoding="utf-8")
    assert sentence in volume.refusal()


def test_a_name_that_stands_twice_is_refused(registry: Registry, volume: Volume) -> None:
    entries = a_model(registry)
    volume.wants([*entries, entries[0]])
    assert "twice" in volume.refusal()


@pytest.mark.parametrize(
    ("path", "data", "sentence"),
    [
        ("model.safetensors", b"\x80\x04K\x01.", "no safetensors file"),
        ("model.safetensors", (10**12).to_bytes(8, "little") + b"{}", "its header would have"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "names no tensors"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"}{", "its header is no JSON"),
        ("config.json", b"<html>", "is no JSON"),
        ("chat_template.jinja", b"\xff\xfe{{ x }}", "is no text in UTF-8"),
        ("chat_template.jinja", b"x" * (job.LONGEST_TEMPLATE + 1), "edges would not be told it"),
    ],
)
def test_files_are_what_their_names_say(
    path: str, data: bytes, sentence: str, registry: Registry, volume: Volume
) -> None:
    """Even where the hash is right: somebody made a manifest of the wrong folder."""
    a_model(registry)
    registry.files[f"/{path}"] = data
    volume.wants([registry.entry(name) for name in dict.fromkeys(("config.json", "model.safetensors", path))])
    assert sentence in volume.refusal()
    assert not (volume.folder / path).exists()


def test_a_template_is_taken_as_long_as_edges_would_be_told_it(registry: Registry, volume: Volume) -> None:
    assert job.LONGEST_TEMPLATE == bounds.MAX_TEMPLATE_BYTES
    entries = a_model(registry)
    registry.files["/chat_template.jinja"] = b"x" * job.LONGEST_TEMPLATE
    volume.wants([*entries, registry.entry("chat_template.jinja")])
    assert volume.run("fetch") == 0


def test_a_server_without_the_file_and_none_at_all_are_named(registry: Registry, volume: Volume) -> None:
    entries = a_model(registry)
    del registry.files["/model.safetensors"]
    volume.wants(entries)
    assert "answered 404" in volume.refusal()
    with refusing() as gone:
        volume.wants(a_model(Registry(address=f"http://{gone}")))
        assert "broke off" in volume.refusal()


def test_only_https_is_followed(registry: Registry, volume: Volume) -> None:
    volume.wants(a_model(registry))
    where = ["--manifest", str(volume.manifest), "--into", str(volume.folder)]
    assert job.main(["fetch", *where]) == 1
    assert "https" in volume.capsys.readouterr().err
    assert registry.asked == []
    registry.moved["/config.json"] = "ftp://127.0.0.1/config.json"
    assert "refused" in volume.refusal()


def test_a_token_is_told_to_its_host_and_to_no_other(
    registry: Registry, volume: Volume, tmp_path: Path
) -> None:
    """Hubs send to another host for the bytes; and sometimes to another place of their own."""
    token = tmp_path / "token"
    token.write_text("hf_secret\n", encoding="utf-8")
    volume.wants(a_model(registry))
    other = Registry()
    with serving(other):
        registry.moved["/config.json"] = f"{registry.address}/here.json"
        registry.files["/here.json"] = registry.files["/config.json"]
        registry.moved["/model.safetensors"] = f"{other.address}/there"
        other.files["/there"] = registry.files["/model.safetensors"]
        assert volume.run("fetch", "--token-file", str(token)) == 0
    assert [(path, said) for path, _, said in registry.asked] == [
        ("/config.json", "Bearer hf_secret"),
        ("/here.json", "Bearer hf_secret"),
        ("/model.safetensors", "Bearer hf_secret"),
    ]
    assert [(path, said) for path, _, said in other.asked] == [("/there", "")]


def test_another_model_on_the_volume_is_not_served(registry: Registry, volume: Volume) -> None:
    entries = a_model(registry)
    volume.wants(entries)
    assert volume.run("fetch") == 0
    volume.wants([{**each, "url": "https://mirror.internal/x"} for each in reversed(entries)])
    assert volume.run("check") == 0, "the same model from elsewhere"
    registry.files["/config.json"] = b'{"model_type": "qwen3"}'
    volume.wants([registry.entry("config.json"), entries[1]])
    assert "another model" in volume.refusal("check")


def test_a_file_that_was_cut_on_the_volume_is_noticed(registry: Registry, volume: Volume) -> None:
    volume.wants(a_model(registry))
    assert volume.run("fetch") == 0
    with (volume.folder / "model.safetensors").open("ab") as file:
        file.truncate(10)
    assert "not as it came" in volume.refusal("check")


def pod(volume: Volume) -> subprocess.Popen[str]:
    """A process that waits for the files."""
    where = ["--manifest", str(volume.manifest), "--into", str(volume.folder)]
    command = [sys.executable, str(SCRIPT), "check", *where, "--wait", "60"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_pod_waits_until_the_job_is_done(registry: Registry, volume: Volume) -> None:
    """Two processes, as in the cluster; the one that waits says why and ends when the other has ended."""
    volume.wants(a_model(registry))
    with pod(volume) as waiting:
        assert waiting.stderr is not None
        assert "waiting" in waiting.stderr.readline()
        assert volume.run("fetch") == 0
        assert waiting.wait(60) == 0


def test_one_that_is_told_to_stop_stops(registry: Registry, volume: Volume) -> None:
    """With a status of its own: the first process of a pod hears no signal that it does not ask for."""
    volume.wants(a_model(registry))
    with pod(volume) as waiting:
        assert waiting.stderr is not None
        assert "kubectl logs -l app.kubernetes.io/component=model" in waiting.stderr.readline()
        waiting.terminate()
        assert waiting.wait(60) == 143


def bundled(registry: Registry, volume: Volume) -> None:
    """The bundled target, by the manifest that is made of it."""
    manifest = manifest_of(TARGET, f"{registry.address}/demo/")
    volume.wants([asdict(each) for each in manifest.files])
    for each in manifest.files:
        registry.files[urllib.parse.urlsplit(each.url).path] = (TARGET / each.path).read_bytes()


def test_what_a_manifest_of_a_folder_names_comes(registry: Registry, volume: Volume) -> None:
    bundled(registry, volume)
    assert volume.run("fetch") == 0
    came = {path.name: path.read_bytes() for path in volume.folder.iterdir() if path.name != job.DONE}
    assert came == {path.name: path.read_bytes() for path in TARGET.iterdir()}
    assert "chat_template.jinja" in came


@pytest.mark.torch
def test_a_verifier_tells_the_chat_template_that_came(registry: Registry, volume: Volume) -> None:
    from cloud_verifier.engine.model.transformers_adapter import load_target

    bundled(registry, volume)
    assert volume.run("fetch") == 0
    chat = load_target(str(volume.folder)).chat
    assert chat is not None
    assert chat.template == (TARGET / "chat_template.jinja").read_text(encoding="utf-8")


def test_it_needs_the_standard_library_alone() -> None:
    """-I -S: no site packages, no path of ours."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
