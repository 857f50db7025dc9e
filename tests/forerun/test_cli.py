"""The command line: help that a newcomer understands, errors that are sentences."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest

from cloud_verifier.core.target import TargetInfo
from common.sampling import SamplingDefaults
from forerun.cli import build_parser, main, own_version
from forerun.paint import Painter
from forerun.verify import allowed_rules, info_of
from tests.worlds.models import TinyTarget

COMMANDS = (
    ["demo"],
    ["verify"],
    ["models"],
    ["top"],
    ["pull"],
    ["edge"],
    ["edge", "complete"],
    ["edge", "pipe"],
    ["edge", "status"],
    ["edge", "stop"],
    ["edge", "logs"],
    ["edge", "config"],
    ["edge", "config", "show"],
    ["edge", "install-service"],
    ["edge", "uninstall-service"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert "usage: forerun" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["dotcor"], "doctor"),
        (["edge", "statsu"], "status"),
        (["edge", "config", "shwo"], "show"),
        (["edge", "--verifer", "127.0.0.1:1"], "--verifier"),
        (["verify", "--modle", "x"], "--model"),
        (["chat", "--temprature", "1"], "--temperature"),
    ],
)
def test_a_mistyped_word_is_met_with_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"did you mean {meant}?" in error
    assert "usage:" not in error


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"forerun {own_version()}\n"


def test_help_is_a_word_and_the_daemons_rare_options_are_shown_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = list[str]()
    for words in (["help", "edge"], ["edge", "--help"], ["edge", "--help-all"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "--service-watchdog" not in shown[1]
    assert "--service-watchdog" in shown[2]


def test_the_link_keeps_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["link", "--help"])
    assert ended.value.code == 0
    assert "--upstream" in capsys.readouterr().out


def edge_words(draft: str) -> list[str]:
    return ["edge", "complete", "--verifier", "127.0.0.1:1", "--draft", draft, "--prompt", "x"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], "temperature is -1.0; it must lie in [0.0, 100.0]"),
        (["--policy", "magic"], "growth policy 'magic' is unknown; choose one of"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--acceptance", "magic"], "acceptance rule 'magic' is unknown; choose one of coupled, rejection"),
        (["--acceptance", "lenience:2"], "lenience is 2.0; it must lie in (0, 1]"),
    ],
)
def test_a_nonsense_setting_is_named(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*edge_words("none.gguf"), *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "-1"], "--threads is -1"),
        (["--slots", "0"], "--slots is 0"),
        (["--step-floor", "nan"], "--step-floor is nan"),
        (["--tile-rows", "0"], "--tile-rows is 0"),
        (["--deterministic"], "--deterministic on a CPU needs --threads N"),
        (["--deterministic", "--threads", "1", "--attention", "triton"], "brings its own attention"),
        (["--listen", "50051"], "it must be HOST:PORT"),
        (["--allow-rule", "magic"], "acceptance rule 'magic' is unknown; choose one of coupled"),
        (["--listen", "localhost:none"], "it must be HOST:PORT"),
    ],
)
def test_a_verifier_refuses_nonsense_before_it_loads(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--model", "none", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ([], "coupled rejection block specinfer"),
        (
            ["--allow-rule", "bild", "--allow-rule", "typical"],
            "coupled rejection block specinfer bild typical",
        ),
        (["--coupled-only"], "coupled"),
        (["--coupled-only", "--allow-rule", "block"], "coupled block"),
    ],
)
def test_lossy_rules_are_allowed_by_name_only(options: list[str], rules: str) -> None:
    parsed = build_parser().parse_args(["verify", "--model", "none", *options])
    assert " ".join(rule.title for rule in allowed_rules(parsed)) == rules


def test_a_verifier_can_be_told_to_advise_no_sampling_values() -> None:
    advice = SamplingDefaults(temperature=0.7)
    engine = TinyTarget(TargetInfo("tiny", 7, 64, 64, (), b"", sampling_defaults=advice))
    for words, told in (([], advice), (["--sampling-defaults", "openai"], SamplingDefaults())):
        options = build_parser("verify").parse_args(["verify", "--model", "none", *words])
        assert info_of(options, engine).sampling_defaults == told


def test_help_says_which_rules_are_lossy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["edge", "complete", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "lossy, so that the text is not the target's: lenience, typical, topk-gap, bild" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rtt", "-5"], "--rtt is -5"),
        (["--rtt", "nan"], "--rtt is nan"),
        (["--max-tokens", "1"], "--max-tokens is 1"),
        (["--prompt", ""], "--prompt is empty"),
        (["--num-prompts", "99"], "--num-prompts is 99"),
    ],
)
def test_the_demo_refuses_nonsense_before_it_loads(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.llama
def test_a_missing_draft_model_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(edge_words(str(tmp_path / "none.gguf"))) == 2
    error = capsys.readouterr().err
    assert error.startswith("forerun: ")
    assert "none.gguf" in error


@pytest.mark.torch
def test_a_missing_target_model_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--model", str(tmp_path / "none"), "--listen", "127.0.0.1:0"]) == 2
    assert "none" in capsys.readouterr().err


def test_marks_replace_colours_where_there_are_none() -> None:
    painter = Painter(io.StringIO())
    assert painter.drafted("a") == "a"
    assert painter.server_made("b") == "‹b›"
    assert "‹marked›" in painter.legend


def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Painter(Terminal()).drafted("a") == "\x1b[32ma\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Painter(Terminal()).drafted("a") == "a"


def test_an_address_in_use_is_told_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["verify", "--model", str(tmp_path), "--listen", f"127.0.0.1:{port}"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
