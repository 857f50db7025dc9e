"""The whole daemon as a person runs it: `forerun edge` and `forerun verify`, processes with the demo pair."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from lab import demo_models
from lab.rig import own_places
from tests.edge_client.draft.tiny_gguf import write_copy
from tests.support.ports import free_port

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = [
    pytest.mark.api,
    pytest.mark.sdk,
    pytest.mark.grpc,
    pytest.mark.torch,
    pytest.mark.llama,
    pytest.mark.grammar,
]

PATIENCE = 180.0  # seconds; importing torch on a busy machine takes tens of them
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Process:
    """A `forerun` process, its lines of standard error gathered."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._gather, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _gather(self, err: IO[str]) -> None:
        with err:
            for line in err:
                self.lines.append(line)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, all that it said being read."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


def start(*words: str, **environment: str) -> Process:
    return Process(
        subprocess.Popen(
            [sys.executable, "-m", "forerun", *words],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


@pytest.fixture(scope="module")
def verifier() -> Iterator[str]:
    """The address of a verifier with the demo target."""
    address = f"127.0.0.1:{free_port()}"
    process = start("verify", "--model", str(demo_models.TARGET_DIR), "--listen", address)
    wait_until(lambda: accepts(address), process)
    yield address
    assert process.end() == 0


@dataclass
class Daemon:
    """A running daemon."""

    process: Process
    state: Path  # its folder
    address: str

    @property
    def token(self) -> str:
        return (self.state / "token").read_text(encoding="ascii").strip()

    @property
    def openai(self) -> OpenAI:
        from openai import OpenAI

        return OpenAI(
            base_url=f"http://{self.address}/v1", api_key=self.token, max_retries=0, timeout=PATIENCE
        )

    def get(self, path: str) -> Any:
        import httpx

        found = httpx.get(f"http://{self.address}{path}", headers={"authorization": f"Bearer {self.token}"})
        return found.json() if found.headers["content-type"] == "application/json" else found.text


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return own_places(tmp_path_factory.mktemp("daemon"))


@pytest.fixture(scope="module")
def daemon(verifier: str, places: dict[str, str]) -> Iterator[Daemon]:
    found = started(verifier, **places)
    yield found
    assert found.process.end() == 0
    assert not (found.state / "edge.pid").exists()


def started(verifier: str, **places: str) -> Daemon:
    """A daemon that is ready."""
    return ready("--verifier", verifier, "--draft", str(demo_models.DRAFT_GGUF), **places)


def ready(*words: str, **places: str) -> Daemon:
    """A daemon with these options, when it is ready."""
    address = f"127.0.0.1:{free_port()}"
    process = start("edge", *words, "--listen", address, "--threads", "1", **places)
    found = Daemon(process, Path(places["XDG_STATE_HOME"]) / "forerun", address)
    wait_until(lambda: is_ready(found), process)
    return found


def wait_until(condition: Any, process: Process, patience: float = PATIENCE) -> None:
    """Poll, for at most `patience` seconds, while the process lives."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process.process.poll() is None, "".join(process.lines)
        assert time.monotonic() < deadline, "".join(process.lines)
        time.sleep(0.05)


def accepts(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def is_ready(daemon: Daemon) -> bool:
    import httpx

    try:
        return httpx.get(f"http://{daemon.address}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_chat_is_drafted_here_and_decided_there(daemon: Daemon) -> None:
    asked = partial(
        daemon.openai.chat.completions.create,
        model="default",
        messages=[{"role": "user", "content": "def parse_header(line):"}],
        temperature=0,
    )
    found, ours = asked(max_tokens=40, seed=1), dict[str, Any]()
    for _ in range(20):  # a busy machine may write the first texts while the draft is still loading
        ours = (found.model_extra or {})["forerun"]
        if ours["target_steps"] < ours["tokens"]:
            break
        found = asked(max_tokens=40, seed=1)
    assert 1 < ours["tokens"] <= 40
    assert ours["accepted"] > 0
    assert ours["target_steps"] < ours["tokens"]
    alone = asked(max_tokens=40, extra_body={"forerun": {"speculate": False}})
    assert found.choices[0].message.content == alone.choices[0].message.content


TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add_person", "description": "adds one", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}},
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_required_call_matches_its_schema_streamed_and_whole_drafted_and_not(
    daemon: Daemon, temperature: float
) -> None:
    asked: Any = partial(
        daemon.openai.chat.completions.create,
        model="default",
        messages=[{"role": "user", "content": "person = "}],
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "add_person"}},
        parallel_tool_calls=False,
        temperature=temperature,
        seed=3,
        max_tokens=300,
        presence_penalty=1.0,
    )
    choice = asked().choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "add_person")
    assert set(json.loads(call.function.arguments)) == {"name", "age"}
    alone = asked(extra_body={"forerun": {"speculate": False}}).choices[0].message.tool_calls[0].function
    assert alone == call.function
    pieces = [
        chunk.choices[0].delta.tool_calls[0].function
        for chunk in asked(stream=True)
        if chunk.choices and chunk.choices[0].delta.tool_calls
    ]
    assert "".join(piece.arguments or "" for piece in pieces) == call.function.arguments


PAIRS = """\
[draft]
model = "{draft}"

[pairs.fast.verifier]
addresses = ["{verifier}"]

[pairs.plain]
draft.policy = "off"
verifier.addresses = ["{verifier}"]
"""


def test_a_file_of_two_pairs_makes_one_daemon_of_both(verifier: str, tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(PAIRS.format(draft=demo_models.DRAFT_GGUF, verifier=verifier))
    places = own_places(tmp_path)
    daemon = ready("--config", str(file), **places)
    target, draft = demo_models.TARGET_DIR.name, demo_models.DRAFT_GGUF.stem
    listed = [each["id"] for each in daemon.get("/v1/models")["data"]]
    assert listed == ["fast", f"{target}@{draft}", target, draft, "plain", f"plain/{target}", "default"]
    texts = [
        daemon.openai.completions.create(model=name, prompt="def f(", max_tokens=30, temperature=0)
        for name in ("fast", "plain", "default")
    ]
    assert [each.model for each in texts] == ["fast", "plain", "fast"]
    assert len({each.choices[0].text for each in texts}) == 1
    modes = {name: pair["mode"] for name, pair in daemon.get("/v1/status")["pairs"].items()}
    assert modes == {"fast": "ahead", "plain": "server-only"}
    told = subprocess.run(
        [sys.executable, "-m", "forerun", "edge", "status"],
        env={**os.environ, **places}, capture_output=True, timeout=PATIENCE, check=True, text=True,
    ).stdout  # fmt: skip
    assert "pair fast: mode: ahead" in told
    assert "pair plain: mode: server-only" in told
    assert daemon.process.end() == 0


def test_without_a_draft_model_it_drafts_from_an_index_and_after_a_restart_from_earlier_texts(
    verifier: str, tmp_path: Path
) -> None:
    places = own_places(tmp_path)
    file, project = (
        write_copy(tmp_path / "vocabulary.gguf", demo_models.DRAFT_GGUF, weights=False),
        tmp_path / "project",
    )
    draft = "--draft", str(file)
    known, new = "def parse_header(", "def count_words("

    def written(*words: str) -> list[tuple[str, dict[str, Any]]]:
        """Both texts, and the figures of each, by a daemon that ends then."""
        daemon = ready("--verifier", verifier, *draft, "--no-drafting", *words, **places)
        found = [
            daemon.openai.completions.create(model="default", prompt=prompt, max_tokens=60, temperature=0)
            for prompt in (known, new)
        ]
        status = daemon.get("/v1/status")
        assert (status["mode"], status["draft"]["state"]) == ("ahead", "off")
        assert daemon.process.end() == 0
        return [(each.choices[0].text, (each.model_extra or {})["forerun"]) for each in found]

    before = written()
    project.mkdir()
    (project / "known.py").write_text(known + before[0][0], encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "forerun", "index", str(project), *draft],
        env={**os.environ, **places}, capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    indexed = written("--index", "project", "--draft-remember-on-disk")
    restarted = written("--draft-remember-on-disk")
    (path,) = (Path(places["XDG_STATE_HOME"]) / "forerun" / "earlier").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for texts in (indexed, restarted):
        assert [text for text, _ in texts] == [text for text, _ in before]
        assert [ours["notes"] for _, ours in texts] == [[], []]
    runs = (before[0], indexed[0]), (indexed[1], restarted[1])  # the file, and the text before the restart
    for (_, cold), (_, warm) in runs:
        assert warm["accepted"] > cold["accepted"] + 0.3 * warm["tokens"]
        assert warm["target_steps"] < 0.5 * cold["target_steps"]


def test_status_tells_what_there_is(daemon: Daemon, verifier: str) -> None:
    status = daemon.get("/v1/status")
    assert status["mode"] == "ahead"
    assert status["privacy"] == "padded"
    (one,) = status["verifiers"]
    assert one["address"] == verifier
    assert one["health"] == "ready"
    assert one["rtt_ms"] > 0
    daemon.openai.completions.create(model="default", prompt="The", max_tokens=4, temperature=0)
    (one,) = daemon.get("/v1/status")["verifiers"]
    assert one["privacy"] == {"up": "padded", "down": "padded"}
    assert status["streams"] == [], "of texts under way"
    assert status["draft"]["state"] in ("unloaded", "loading", "loaded")


def test_a_second_interrupt_ends_a_busy_daemon_and_its_clients_are_told(
    verifier: str, tmp_path: Path
) -> None:
    import openai as sdk

    daemon = started(verifier, XDG_STATE_HOME=str(tmp_path))
    process = daemon.process
    stream = daemon.openai.completions.create(
        model="default", prompt="The", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    process.process.send_signal(signal.SIGINT)
    wait_until(lambda: any("stopping" in line for line in process.lines), process)
    process.process.send_signal(signal.SIGINT)
    with pytest.raises(sdk.APIError, match="stopping"):
        for _ in chunks:
            pass
    assert process.wait() == 0
    assert "Traceback" not in "".join(process.lines)
