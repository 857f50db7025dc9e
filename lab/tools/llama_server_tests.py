"""Runs llama.cpp's own tests of its server against this project's verifier and daemon.

    python -m lab.tools.llama_server_tests LLAMA_CPP [--files test_basic.py ...]

LLAMA_CPP is a checkout of ggml-org/llama.cpp, of which nothing is copied here. Its tests start `llama-server`
by `ServerProcess` of tools/server/tests/utils.py. Here that starts `forerun edge`, with the bundled draft and
a verifier of the bundled target. Some options of `llama-server` are fields of a request here: the seed, the
temperature, the length of a text. They are added to the requests. The model is `default`, whatever is asked.

Prints JSON: the counts, by file too, and each failure with its reason (lab.tools.llama_server_reasons).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest

from common.wire import free_port
from lab.demo_models import DRAFT_GGUF, TARGET_DIR
from lab.rig import own_places
from lab.tools.llama_server_reasons import CONSTRAINED, reason_of

SHORT, LONG = 256, 2048
"""Contexts of the targets, in tokens: that of most tests, and the target's own."""

LONGEST, LONGEST_START = 180.0, 600.0
"""Seconds of a test, and of a start of its verifier and daemon."""

WORDS = "needs the words of llama.cpp's own test model"
NO_HUB = "needs a file from the web"

LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
LEGACY, CONTINUATION = "/completions", "/completion"
"""Two names of one path of llama-server. The daemon has the newer one."""


def translated(data: Any, server: Any) -> Any:
    """Return a request's body with the options of the test's server that are fields here."""
    if not isinstance(data, dict) or not {"prompt", "messages", "input"} & data.keys():
        return data
    own: dict[str, Any] = {"seed": server.seed, "temperature": server.temperature}
    if server.n_predict and server.n_predict > 0 and "input" not in data and not {*LENGTHS} & data.keys():
        own["n_predict"] = server.n_predict
    if server.reasoning and "messages" in data:
        own["chat_template_kwargs"] = {"enable_thinking": server.reasoning != "off"}
    return {**own, **data, "model": "default"}


class Processes:
    """Starts verifiers and daemons when a test needs them, and keeps them for the next tests, since a start
    takes seconds. Of targets with another chat template than their own one is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = dict[tuple[str, ...], tuple[subprocess.Popen[str], str]]()  # with their addresses

    def verifier(self, context: int, template: str) -> tuple[str, str]:
        """Return the key of a verifier whose target has at least this context, and the chat template of this
        file; empty: its own."""
        context = SHORT if context <= SHORT and not template else LONG
        key = (template, str(context))
        if key not in self._running:
            self.stop(lambda other: other[0] not in ("", template))
            model = self._new_folder() / "target"
            shutil.copytree(TARGET_DIR, model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
            if template:
                shutil.copy(template, model / "chat_template.jinja")
            process = _forerun("verify", str(model), "--listen", "127.0.0.1:0", "--json", "--grace", "0")
            self._running[key] = process, ""
            assert process.stdout is not None, "started with a pipe"
            self._running[key] = process, json.loads(process.stdout.readline())["listening"]
        return key

    def daemon(self, verifier: tuple[str, str], host: str, secret: str, *options: str) -> int:
        """Return the port of a daemon that is ready. Raises `OSError` if it ends."""
        key = (*verifier, host, secret, *options)
        if key not in self._running:
            folder = self._new_folder()
            with free_port.bound("127.0.0.1", 0) as socket:
                port = socket.getsockname()[1]
            where = ("--listen", f"{host}:{port}", "--verifier", self._running[verifier][1])
            (folder / "key").touch(0o600)
            (folder / "key").write_text(secret)
            own = ("--api-token-file", str(folder / "key")) if secret else ("--no-api-auth",)
            own = (*own, *options, "--draft", str(DRAFT_GGUF))
            process = _forerun("edge", *where, *own, places=own_places(folder))
            self._running[key] = process, str(port)
            while not _is_ready(port):
                if process.poll() is not None:
                    del self._running[key]
                    raise OSError(f"the daemon ended with code {process.returncode}")
                time.sleep(0.1)
        return int(self._running[key][1])

    def stop(self, ends: Callable[[tuple[str, ...]], bool] = lambda key: True) -> None:
        """End the processes of these keys, the newest first."""
        for key in [key for key in self._running if ends(key)][::-1]:
            process, _ = self._running.pop(key)
            process.terminate()
            process.wait()

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


def _forerun(*words: str, places: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forerun", *words, "--threads", "1", "--log-level", "error"]
    return subprocess.Popen(command, env=os.environ | (places or {}), stdout=subprocess.PIPE, text=True)


def _is_ready(port: int) -> bool:
    import requests

    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=10).ok
    return False


class Suite:
    """Stands between the tests and our processes, as a plugin of pytest that notes each test's end."""

    def __init__(self, utils: ModuleType, processes: Processes) -> None:
        self.ends = dict[str, tuple[str, str]]()  # outcome and words, by test
        self._utils, self._processes = utils, processes
        self._server: Any = None
        self._refusal = ""  # the daemon's newest

    # In place of llama-server -----------------------------------------------------------------------------

    def put_in(self) -> None:
        """Replace what the tests start, send and compare."""
        import requests
        from openai import OpenAI

        utils: Any = self._utils
        clients: Any = OpenAI
        sessions: Any = requests.Session
        kind, suite, match = utils.ServerProcess, self, utils.match_regex
        utils.ServerPreset.load_all = staticmethod(lambda: None)
        utils.download_file = lambda url, path=None: url  # a model that no daemon here would load
        kind.start = lambda server, timeout_seconds=0: suite._start(server)
        kind.stop = lambda server: None
        for name in ("make_request", "make_stream_request"):
            setattr(kind, name, suite._asking(getattr(kind, name)))
        prepare, send = clients._prepare_options, sessions.send

        def prepared(client: OpenAI, options: Any) -> Any:
            options.json_data = translated(options.json_data, suite._server)
            return prepare(client, options)

        def sent(session: requests.Session, request: Any, **more: Any) -> Any:
            if urlsplit(request.url).hostname not in ("127.0.0.1", "::1", "localhost"):
                pytest.skip(NO_HUB)
            answer = send(session, request, **more)
            if answer.status_code >= 400:
                suite._refusal = f"{answer.status_code} {answer.text[:300]}"
            return answer

        def matched(pattern: str, text: str) -> bool:
            if text and pattern not in CONSTRAINED and not match(pattern, text):
                pytest.skip(WORDS)
            return bool(match(pattern, text))

        sessions.send, clients._prepare_options, utils.match_regex = sent, prepared, matched

    def _start(self, server: Any) -> None:
        """Give the test a daemon, whose start is not part of its time."""
        signal.setitimer(signal.ITIMER_REAL, LONGEST_START)
        slots = 1 if server.kv_unified else server.n_slots or 1
        template = server.chat_template_file or ""
        verifier = self._processes.verifier((server.n_ctx or LONG) // slots, template)
        own = (server.server_host, server.api_key or "", *(("--no-api-page",) if server.no_ui else ()))
        server.server_port = self._processes.daemon(verifier, *own)
        self._server, self._refusal = server, ""
        signal.setitimer(signal.ITIMER_REAL, LONGEST)

    def _asking(self, ask: Any) -> Any:
        def asked(server: Any, method: str, path: str, data: Any = None, *more: Any, **named: Any) -> Any:
            path = CONTINUATION if path == LEGACY else path
            return ask(server, method, path, translated(data, server), *more, **named)

        return asked

    # Of pytest --------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """End a test that takes too long."""
        self._refusal = ""
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the end of a test: of its call, or of a set-up that failed or was skipped."""
        test = report.nodeid.removeprefix("unit/")
        if report.when == "call" or not report.passed:
            told = report.longrepr
            crash = getattr(told, "reprcrash", None)
            words = told[2] if isinstance(told, tuple) else crash.message if crash else str(told or "")
            if report.failed and self._refusal:
                words = f"{words[:300]} | {self._refusal}"
            self.ends[test] = (report.outcome, words.removeprefix("Skipped: ")[:600])
            print(f"{report.duration:6.1f} s  {test}", *self.ends[test], file=sys.stderr, flush=True)


def _late(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"the test took longer than {LONGEST:g} s")


def told(ends: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the counts, and the tests that failed or were skipped by their reasons."""
    files = defaultdict[str, Counter[str]](Counter)
    reasons = dict[str, dict[str, dict[str, str]]](failed=defaultdict(dict), skipped=defaultdict(dict))
    for test, (outcome, words) in ends.items():
        files[test.partition("::")[0]][outcome] += 1
        if outcome == "failed":
            reasons["failed"][reason_of(test, words)][test] = words
        elif outcome == "skipped":
            reasons["skipped"][words][test] = ""
    return {
        "counts": sum(files.values(), Counter()),
        "files": files,
        "failed": reasons["failed"],
        "skipped": {words: [*tests] for words, tests in reasons["skipped"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument(
        "--files", nargs="*", default=[], help="files of tools/server/tests/unit (default: all)"
    )
    options = parser.parse_args()
    tests = options.checkout.absolute() / "tools" / "server" / "tests"
    os.chdir(tests)
    sys.path.insert(0, str(tests))
    sys.dont_write_bytecode = True
    sys.modules.setdefault("wget", ModuleType("wget"))  # which only fetches what is not here
    import utils  # type: ignore[import-not-found]

    with (
        tempfile.TemporaryDirectory(prefix="forerun-suite-") as folder,
        contextlib.redirect_stdout(sys.stderr),  # threads of ended tests still print
    ):
        processes = Processes(Path(folder))
        suite = Suite(utils, processes)
        suite.put_in()
        where = [f"unit/{each}" for each in options.files] or ["unit"]
        plain = ("-m", "not slow", "-p", "no:terminal", "-p", "no:cacheprovider")
        try:
            pytest.main([*where, *plain], plugins=[suite])
        finally:
            processes.stop()
    print(json.dumps(told(suite.ends), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
