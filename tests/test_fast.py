"""`make fast`: what it lists is there, nothing interpreted extends a compiled class, both do the same."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
from pathlib import Path

import pytest

import cloud_verifier.core
import edge_client.core
import simulator
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
    for package in fast.PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "common" / "a.py").write_text("one", encoding="utf-8")
    before = fast.digest(tmp_path)
    assert before == fast.digest(tmp_path)
    (tmp_path / "common" / "a.py").write_text("two", encoding="utf-8")
    assert before != fast.digest(tmp_path)


def test_a_copy_that_is_up_to_date_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fast, "ROOT", tmp_path)
    monkeypatch.setattr(fast, "OUT", tmp_path / "out")
    monkeypatch.setattr(fast, "digest", lambda: "as before")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / fast.STAMP).write_text("as before", encoding="utf-8")
    assert fast.main() == 0
    assert capsys.readouterr().out == "out is up to date\n"


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
