"""`lab.benchmarks.llama_server`: one client reads both streams, paces are medians, and all take turns."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import LocalError
from lab.benchmarks.llama_server import (
    DRAFTED,
    NGRAM,
    PLAIN,
    TextRun,
    check,
    lines_of,
    main,
    make_parser,
    summary,
)
from lab.benchmarks.real_sizes.pair import Prompt

FAKE = '''#!{python}
"""Speaks as llama-server does: an event a token."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        count = asked["max_tokens"]
        events = [{{"choices": [{{"text": f"{{asked['prompt'][0]}} "}}]}} for _ in range(count)]
        timings = {{"predicted_ms": 2.0 * count, "draft_n": 0}}
        events.append({{"choices": [], "usage": {{"completion_tokens": count}}, "timings": timings}})
        for event in (*map(json.dumps, events), "[DONE]"):
            data = f"data: {{event}}\\n\\n".encode()
            self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(data), data))
        self.wfile.write(b"0\\r\\n\\r\\n")

    def log_message(self, *_):
        pass


ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
'''


def completion(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text}], **more}


def run_of(*paces_ms: float, text: str = "a") -> TextRun:
    """A text whose tokens came after these gaps, the first after 50 ms."""
    run, at = TextRun(), 0.050
    run.take(completion(text), at)
    for gap in paces_ms:
        at += gap / 1e3
        run.take(completion(text), at)
    run.take({"choices": [], "usage": {"completion_tokens": 1 + len(paces_ms)}}, at + 1.0)
    return run


def test_a_pace_begins_after_the_first_tokens_and_ends_with_the_last() -> None:
    assert run_of(10.0, 30.0).ms_per_token == pytest.approx(20.0)
    run = TextRun()
    run.take(completion("", forerun={"mode": "ahead"}), 0.1)
    run.take(completion("abc", forerun={"origins": [[0, "drafted", 3]]}), 0.2)
    run.take(completion("d", forerun={"origins": [[3, "server", 1]]}), 0.5)
    run.take({"choices": [], "usage": {"completion_tokens": 4}, "forerun": {"proposed": 2}}, 0.9)
    assert run.first == (0.2, 3)
    assert run.ms_per_token == pytest.approx(300.0)
    assert run.figures == {"proposed": 2}


def test_a_text_that_failed_or_has_no_pace_is_an_error() -> None:
    with pytest.raises(LocalError, match="too long"):
        TextRun().take({"error": {"message": "the prompt is too long"}}, 0.1)
    with pytest.raises(LocalError, match="no pace"):
        _ = run_of().ms_per_token


def test_a_text_s_pace_is_the_median_of_its_rounds_and_drafts_are_held_to_their_own_server() -> None:
    prompts = [Prompt("code:1", "", (1,)), Prompt("math:1", "", (2,))]
    runs = {
        PLAIN: [[run_of(10.0), run_of(12.0), run_of(90.0)], [run_of(20.0)] * 3],
        DRAFTED: [[run_of(6.0)] * 3, [run_of(8.0), run_of(8.0), run_of(8.0, text="b")]],
        "forerun": [[run_of(11.0, text="c")] * 3, [run_of(21.0, text="c")] * 3],
        "forerun chain": [[run_of(5.0, text="c")] * 3, [run_of(5.0)] * 3],
    }
    found = summary(runs, prompts)
    assert found[PLAIN]["by_kind"] == {"code": 12.0, "math": 20.0}
    assert found[PLAIN]["ms_per_token"] == 16.0
    assert found[PLAIN]["ttft_ms"] == pytest.approx(50.0)
    assert (found[DRAFTED]["reference"], found[DRAFTED]["identical"], found[DRAFTED]["texts"]) == (
        PLAIN,
        5,
        6,
    )
    assert (found["forerun chain"]["reference"], found["forerun chain"]["identical"]) == ("forerun", 3)
    lines = list(lines_of([{"threads": 1, "rtt_ms": 0.0, "load": [0.5], "contestants": found}]))
    assert len(lines) == 2 + len(runs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tokens 1", "--tokens is 1"),
        ("--rounds 0", "--rounds is 0"),
        ("--threads 0", "--threads is 0"),
        ("--rtt -1", "--rtt -1"),
        ("--policies none", "none"),
        ("--llama-server missing", "no program missing"),
    ],
)
def test_a_wrong_setting_is_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "server"
    program.touch()
    usual = ["--llama-server", str(program), "--target", "t", "--draft", "d", "--prompts", "p"]
    assert main([*usual, *words.split()]) == 2
    assert said in capsys.readouterr().err
    check(make_parser().parse_args(usual))


@pytest.mark.soak
@pytest.mark.llama
@pytest.mark.grpc
def test_all_write_every_text_over_their_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lab.demo_models import DRAFT_GGUF

    program = tmp_path / "llama-server"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    question = json.dumps({"question": "How many is 1?"})
    (tmp_path / "gsm8k_test.jsonl").write_text(f"{question}\n{question}\n")
    words = ["--llama-server", str(program), "--target", str(DRAFT_GGUF), "--draft", str(DRAFT_GGUF)]
    words += ["--prompts", str(tmp_path), "--kinds", "math", "--texts", "2", "--tokens", "48", "--json"]
    assert main([*words, "--rtt", "0", "40", "--threads", "1", "--policies", "chain"]) == 0
    near, far = json.loads(capsys.readouterr().out)["results"]
    names = {PLAIN, DRAFTED, NGRAM, "forerun", "forerun chain", "forerun chain+lookup"}
    for row in (near, far):
        assert set(row["contestants"]) == names
        for each in row["contestants"].values():
            assert each["identical"] == each["texts"] == 2
    for name in names:
        assert far["contestants"][name]["ttft_ms"] >= 40.0
    assert far["contestants"]["forerun"]["target_steps_per_token"] == 1.0
    assert far["contestants"]["forerun"]["proposed_per_token"] == 0.0
    assert far["contestants"]["forerun chain"]["proposed_per_token"] > 0.0
    assert (
        0.0
        < far["contestants"]["forerun"]["step_ms_per_token"]
        < far["contestants"]["forerun"]["ms_per_token"]
    )
    assert near["contestants"][PLAIN]["predicted_ms_per_token"] == 2.0
