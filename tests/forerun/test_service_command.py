"""`forerun edge install-service`: what it writes where, and that it never takes another's file."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from forerun import service_command
from forerun.cli import main
from forerun.service_units import MARK, UNIT

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's places, and a systemctl that notes how it was called."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    program.chmod(0o755)
    return tmp_path


def unit(home: Path) -> Path:
    return home / "config" / "systemd" / "user" / UNIT


def called(home: Path) -> list[str]:
    file = home / "called"
    return file.read_text().splitlines() if file.exists() else []


def test_print_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service", "--print", "--gpu"]) == 0
    assert "DeviceAllow=char-nvidia* rw" in capsys.readouterr().out
    assert sorted(path.name for path in home.iterdir()) == ["bin"]


def test_a_users_unit_is_written_with_its_folders(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service"]) == 0
    text = unit(home).read_text()
    assert MARK in text
    assert f"ReadWritePaths={home}/state/forerun" in text
    assert stat.S_IMODE(unit(home).stat().st_mode) == 0o644
    assert stat.S_IMODE((home / "state" / "forerun").stat().st_mode) == 0o700
    assert (home / "data" / "forerun" / "models").is_dir()
    out = capsys.readouterr().out
    assert f"wrote {unit(home)}" in out
    assert f"systemctl --user enable --now {UNIT}" in out
    assert called(home) == []
    assert main(["edge", "install-service", "--json"]) == 0  # again: it is its own
    assert json.loads(capsys.readouterr().out) == {"written": str(unit(home)), "started": False}


def test_now_starts_it_and_uninstall_ends_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service", "--now"]) == 0
    assert called(home) == ["--user daemon-reload", f"--user enable --now {UNIT}"]
    assert main(["edge", "uninstall-service", "--json"]) == 0
    assert called(home)[2:] == [f"--user disable --now {UNIT}", "--user daemon-reload"]
    assert not unit(home).exists()
    assert (home / "state" / "forerun").is_dir()
    capsys.readouterr()
    assert main(["edge", "uninstall-service"]) == 1
    assert "there is no" in capsys.readouterr().out


def test_a_manager_that_refuses_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bin" / "systemctl").write_text("#!/bin/sh\necho 'no bus' >&2; exit 1\n")
    assert main(["edge", "install-service", "--now"]) == 2
    assert "systemctl --user daemon-reload failed: no bus" in capsys.readouterr().err
    (home / "bin" / "systemctl").unlink()
    assert main(["edge", "install-service", "--now"]) == 2
    assert "there is no systemctl here" in capsys.readouterr().err


def test_anothers_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("[Service]\n")
    for words in (["install-service"], ["uninstall-service"]):
        assert main(["edge", *words]) == 2
        assert "was not written by this command" in capsys.readouterr().err
        assert unit(home).read_text() == "[Service]\n"
    assert main(["edge", "install-service", "--force"]) == 0
    assert MARK in unit(home).read_text()


def test_the_configuration_is_read_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "my edge.toml"
    file.write_text("[service]\nwatchdog = 99\n")
    assert main(["edge", "install-service", "--print", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "WatchdogSec=99\n" in out
    assert f'-m forerun edge --config "{file}"\n' in out
    file.write_text("[service]\nwatchdog = -1\n")
    assert main(["edge", "install-service", "--config", str(file)]) == 2
    assert f"{file}:2: service.watchdog is -1.0" in capsys.readouterr().err
    assert not unit(home).exists()


def test_what_the_configuration_needs_is_open(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "edge.toml"
    file.write_text('[log]\nfile = "logs/edge.log"\n[api]\nlisten = "unix:/srv/forerun/api"\n')
    assert main(["edge", "install-service", "--print", "--namespaces", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"ReadWritePaths=-{home}/logs\n" in out
    assert "ReadWritePaths=-/srv/forerun\n" in out


def test_a_socket_that_nobody_would_see_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "edge.toml"
    file.write_text('[api]\nlisten = "unix:/tmp/edge.sock"\n')
    assert main(["edge", "install-service", "--print", "--config", str(file)]) == 2
    assert "the service has a tmp folder of its own" in capsys.readouterr().err


def test_a_model_in_a_home_needs_a_named_user(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_command, "HOMES", (home,))
    file = home / "edge.toml"
    file.write_text('[draft]\nmodel = "d.gguf"\n')
    words = ["edge", "install-service", "--print", "--system", "--config", str(file)]
    assert main(words) == 2
    assert f"{home}/d.gguf is in somebody's home" in capsys.readouterr().err
    assert main([*words, "--run-as", "me"]) == 0
    assert "ProtectHome=read-only" in capsys.readouterr().out
    file.write_text('[draft]\nmodel = "hf://o/r/d.gguf"\n')
    assert main(words) == 0
    assert "ProtectHome=yes" in capsys.readouterr().out


def test_the_machines_unit(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_command, "SYSTEM_UNITS", home / "system")
    assert main(["edge", "install-service", "--system", "--run-as", "drafter", "--now"]) == 0
    text = (home / "system" / UNIT).read_text()
    assert "User=drafter\n" in text
    assert "WantedBy=multi-user.target" in text
    assert called(home) == ["daemon-reload", f"enable --now {UNIT}"]
    assert not (home / "state").exists()
    assert main(["edge", "uninstall-service", "--system"]) == 0


def test_a_program_in_a_home_is_no_service_of_the_machine(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_command, "HOMES", (Path("/"),))
    assert main(["edge", "install-service", "--system", "--print"]) == 2
    assert "is in somebody's home" in capsys.readouterr().err
    assert main(["edge", "install-service", "--print"]) == 0


def test_without_namespaces_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unshare = home / "bin" / "unshare"
    unshare.write_text("#!/bin/sh\nexit 1\n")
    unshare.chmod(0o755)
    assert main(["edge", "install-service"]) == 0
    assert "gives users no namespaces" in capsys.readouterr().out
    assert "ProtectSystem" not in unit(home).read_text()
    unshare.write_text("#!/bin/sh\nexit 0\n")
    assert main(["edge", "install-service"]) == 0
    assert "ProtectSystem=strict" in unit(home).read_text()
    assert main(["edge", "install-service", "--no-namespaces"]) == 0
    assert "ProtectSystem" not in unit(home).read_text()


def test_on_macos_it_is_an_agent(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(home))
    assert main(["edge", "install-service"]) == 0
    file = home / "Library" / "LaunchAgents" / "forerun.edge.plist"
    assert MARK.encode() in file.read_bytes()
    assert "launchctl bootstrap gui/" in capsys.readouterr().out
    assert main(["edge", "install-service", "--system"]) == 2
    assert main(["edge", "uninstall-service"]) == 0
    assert not file.exists()
