"""`make fast`: what it lists is there, nothing interpreted extends a compiled class, both do the same."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cloud_verifier.core
import edge_client.core
import simulator
from simulator.historical import HISTORICAL
from tools import fast


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_what_is_compiled_is_there_and_among_what_is_copied() -> None:
    for path in fast.COMPILED:
        assert (fast.ROOT / path).is_file()
        assert path.split("/")[0] in fast.PACKAGES
    for package in (*fast.PACKAGES, *fast.LINKED):
        assert (fast.ROOT / package).is_dir()


def test_no_interpreted_class_extends_a_compiled_one() -> None:
    """mypyc allows it of protocols, named tuples and exceptions only."""
    compiled = {module_of(path) for path in fast.COMPILED}
    for package in (simulator, edge_client.core, cloud_verifier.core):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if info.name in compiled:
                continue
            for _, each in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
                bases = [base for base in each.__mro__[1:] if base.__module__ in compiled]
                assert each.__module__ != info.name or not bases, f"{each} extends {bases}"


def test_the_digest_is_that_of_the_sources(tmp_path: Path) -> None:
    for package in (*fast.PACKAGES, "tools"):
        (tmp_path / package).mkdir()
    names = ("common/a.py", "pyproject.toml", "tools/fast.py")
    for name in names:
        (tmp_path / name).write_text("one", encoding="utf-8")
    for name in names:
        before = fast.digest(tmp_path)
        assert before == fast.digest(tmp_path)
        (tmp_path / name).write_text("two", encoding="utf-8")
        assert before != fast.digest(tmp_path)


def test_every_scheme_is_compared_in_both_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    fast.show_traces()
    shown = {tuple(line.split(maxsplit=2)[:2]) for line in capsys.readouterr().out.splitlines()}
    for scheme in (*HISTORICAL, "forerun", "chain", "sync:4", "clairvoyant", "colocated:tree", "device_only"):
        assert {("0", scheme), ("1", scheme)} <= shown


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An old copy, and a folder that a killed build has left."""
    for name in ("fast", "fast.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.py").touch()
    return tmp_path / "fast"


def compiles(folder: Path, log: Path) -> None:
    log.write_text("all is well", encoding="utf-8")


def test_a_copy_gets_its_name_when_it_did_what_the_sources_do(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(folder: Path) -> str:
        assert not out.exists()
        return "the same"

    monkeypatch.setattr(fast, "_compile", compiles)
    monkeypatch.setattr(fast, "traces", compare)
    fast.build(out)
    assert (out / fast.STAMP).read_text(encoding="utf-8") == fast.digest()
    assert (out / "simulator" / "system.py").is_file()
    assert not (out / "old.py").exists()
    assert sorted(out.parent.iterdir()) == [out, fast.log_path(out)]


def test_a_compiler_that_fails_leaves_its_words_and_no_copy(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mypyc", reason="mypyc comes with mypy, a development tool")
    monkeypatch.setattr(fast, "COMPILED", ("simulator/not_there.py",))
    with pytest.raises(fast.FastError, match=r"its words are in .*fast-compile\.log"):
        fast.build(out)
    assert list(out.parent.iterdir()) == [fast.log_path(out)]
    assert "not_there" in fast.log_path(out).read_text(encoding="utf-8")


def test_other_results_leave_no_copy(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_compile", compiles)
    monkeypatch.setattr(fast, "traces", str)  # each folder comes to its own name
    with pytest.raises(fast.FastError, match=r"gives other results.*fast-compile\.log"):
        fast.build(out)
    assert list(out.parent.iterdir()) == [fast.log_path(out)]


def test_a_copy_that_is_up_to_date_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fast, "ROOT", tmp_path)
    monkeypatch.setattr(fast, "OUT", tmp_path / "out")
    monkeypatch.setattr(fast, "digest", lambda: "as before")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / fast.STAMP).write_text("as before", encoding="utf-8")
    assert fast.main() == 0
    told = capsys.readouterr().out
    assert told.startswith("out is up to date; ")
    assert "PYTHONSAFEPATH=1 PYTHONPATH=out:. " in told


def test_the_copy_is_taken_as_main_says(tmp_path: Path) -> None:
    """A command that is installed has its own folder first, `python -m` the one that it is called in."""
    (tmp_path / "fast" / "simulator").mkdir(parents=True)
    (tmp_path / "fast" / "simulator" / "__init__.py").touch()
    (tmp_path / "fast" / "simulator" / "system.py").write_text("print('the copy')")
    (tmp_path / "command.py").write_text("import simulator.system")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'fast'}{os.pathsep}."}
    for how, more in (
        ([str(tmp_path / "command.py")], {}),
        (["-m", "simulator.system"], {"PYTHONSAFEPATH": "1"}),
    ):
        command = [sys.executable, *how]
        done = subprocess.run(
            command, cwd=fast.ROOT, env=environment | more, capture_output=True, text=True, check=True
        )
        assert done.stdout == "the copy\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_compiled_simulator_does_what_the_sources_do(tmp_path: Path) -> None:
    """About a minute of compiling. `build` itself compares what both simulate."""
    pytest.importorskip("mypyc", reason="mypyc comes with mypy, a development tool")
    out = tmp_path / "fast"
    fast.build(out)
    for path in fast.COMPILED:
        folder, name = out / Path(path).parent, Path(path).stem
        assert list(folder.glob(f"{name}.*.so")), f"{path} was not compiled"
    assert (out / fast.STAMP).read_text(encoding="utf-8") == fast.digest()
