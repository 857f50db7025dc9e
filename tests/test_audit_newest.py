"""What an index's pages of projects say is said of newest releases alone, and silence is no good word."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import audit, gate
from tools.audit_newest import Advisory, Index, PageError, page_of, verdicts
from tools.floors import load
from tools.locks import ROOT, Pin

GHSA = {
    "id": "GHSA-1",
    "aliases": ["CVE-1", "PYSEC-1"],
    "summary": None,
    "details": "reads pickles\nand more",
    "fixed_in": ["2.1"],
    "withdrawn": None,
}
PYSEC = {**GHSA, "id": "PYSEC-1", "aliases": ["CVE-1", "GHSA-1"]}
OTHER = {"id": "PYSEC-2", "aliases": [], "summary": "hangs", "details": "", "fixed_in": []}


def page(version: str, *vulnerabilities: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"name": "x", "version": version}, "vulnerabilities": list(vulnerabilities)}


def pin(name: str, version: str) -> Pin:
    return Pin(name, version, "", ("0" * 64,), ())


class FakeIndex:
    """Serves pages as PyPI does: `/pypi/NAME/json`, and 404 for what it has not."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.asked: list[str] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked.append(self.path)
                found = fake.pages.get(self.path.removeprefix("/pypi/").removesuffix("/json"))
                body = (
                    b""
                    if found is None
                    else found
                    if isinstance(found, bytes)
                    else json.dumps(found).encode()
                )
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests have nobody to tell."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    found = FakeIndex()
    yield found
    found.close()


def test_a_newest_release_is_judged_by_its_page(index: FakeIndex) -> None:
    index.pages = {"good": page("1.0"), "bad": page("2.0", GHSA, OTHER)}
    good, bad = verdicts([pin("good", "1.0"), pin("bad", "2.0")], Index(index.address), frozenset())
    assert good.is_clean
    assert not bad.is_clean
    assert [each.ids[0] for each in bad.findings] == ["GHSA-1", "PYSEC-2"]
    assert str(bad.findings[0]) == "GHSA-1, CVE-1, PYSEC-1 (mended in 2.1): reads pickles"
    assert str(bad.findings[1]) == "PYSEC-2 (mended in no release): hangs"


@pytest.mark.parametrize("release", ["1.0", "1.0.0", "1.0+cpu"])
def test_a_release_is_newest_by_what_its_number_means(index: FakeIndex, release: str) -> None:
    index.pages = {"x": page("1.0", OTHER)}
    (found,) = verdicts([pin("x", release)], Index(index.address), frozenset())
    assert [each.ids for each in found.findings] == [("PYSEC-2",)]


def test_an_older_release_is_not_asked_about_and_not_clean(index: FakeIndex) -> None:
    index.pages = {"x": page("1.1")}
    (found,) = verdicts([pin("x", "1.0")], Index(index.address), frozenset())
    assert not found.is_clean
    assert found.why_not.startswith("the page tells of 1.1 alone, 1.0 is older")
    assert "--service pypi" in found.why_not


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({}, "did not answer: HTTP Error 404"),
        ({"x": b"<html>"}, "is no page of a project"),
        ({"x": {"info": {"version": "1.0"}}}, "is no page of a project: KeyError('vulnerabilities')"),
        ({"x": page("new")}, "new"),
    ],
)
def test_what_cannot_be_read_is_not_asked_about(index: FakeIndex, pages: dict[str, Any], said: str) -> None:
    index.pages = pages
    (found,) = verdicts([pin("x", "1.0")], Index(index.address), frozenset())
    assert not found.is_clean
    assert said in found.why_not


def test_an_index_that_is_not_there_is_told() -> None:
    fake = FakeIndex()
    fake.close()
    with pytest.raises(PageError, match="did not answer"):
        Index(fake.address).page("x")


def test_a_page_has_a_limit(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.audit_newest.LONGEST_PAGE", 1 << 20)
    index.pages = {"x": b" " * ((1 << 20) + 1)}
    with pytest.raises(PageError, match="is longer than 1 MiB"):
        Index(index.address).page("x")


def test_one_finding_under_two_names_is_told_once_and_withdrawn_ones_not_at_all() -> None:
    found = page_of(page("1.0", GHSA, PYSEC, {**OTHER, "withdrawn": "2026-01-01T00:00:00Z"}))
    assert found.advisories == (Advisory(("GHSA-1", "CVE-1", "PYSEC-1"), ("2.1",), "reads pickles"),)


@pytest.mark.parametrize("name", ["GHSA-1", "PYSEC-1", "CVE-1"])
def test_a_finding_is_ignored_by_any_of_its_names(index: FakeIndex, name: str) -> None:
    index.pages = {"x": page("1.0", GHSA)}
    (found,) = verdicts([pin("x", "1.0")], Index(index.address), frozenset({name}))
    assert found.is_clean
    assert [each.ids[0] for each in found.ignored] == ["GHSA-1"]


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two locks that share a pin, and nothing that is ignored."""
    hashed = f" \\\n    --hash=sha256:{'0' * 64}\n"
    (tmp_path / "one.txt").write_text(f"good==1.0{hashed}bad==2.0{hashed}")
    (tmp_path / "two.txt").write_text(f"good==1.0{hashed}")
    (tmp_path / "ignored.toml").write_text("")
    monkeypatch.setattr(audit, "LOCKS", {"one": None, "two": None})
    monkeypatch.setattr(audit, "path_of", lambda name: tmp_path / f"{name}.txt")
    monkeypatch.setattr(audit, "IGNORED", tmp_path / "ignored.toml")
    return tmp_path


def audited(index: FakeIndex) -> int:
    return audit.main(["--service", "newest", "--index", index.address])


def test_the_command_tells_every_lock_and_asks_for_each_project_once(
    locked: Path, index: FakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.pages = {"good": page("1.0"), "bad": page("2.0", OTHER)}
    assert audited(index) == 1
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "one: 2 pins, 2 newest releases asked about, 1 clean, 1 with findings, 0 not asked about",
        "  bad 2.0: PYSEC-2 (mended in no release): hangs",
        "two: 1 pins, 1 newest releases asked about, 1 clean, 0 with findings, 0 not asked about",
        "one: not clean, or not asked",
        "two: nothing is known against it",
    ]
    assert index.asked == ["/pypi/good/json", "/pypi/bad/json"]


def test_one_lock_can_be_asked_about(
    locked: Path, index: FakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.pages = {"good": page("1.0")}
    assert audit.main(["two", "--service", "newest", "--index", index.address]) == 0
    assert index.asked == ["/pypi/good/json"]
    with pytest.raises(SystemExit):
        audit.main(["three"])
    assert "there is no lock 'three'; there are one, two" in capsys.readouterr().err


def test_the_command_ends_with_0_only_if_all_is_newest_and_clean(
    locked: Path, index: FakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.pages = {"good": page("1.0"), "bad": page("2.0")}
    assert audited(index) == 0
    index.pages = {"good": page("1.0"), "bad": page("2.1")}
    assert audited(index) == 1
    assert "0 with findings, 1 not asked about" in capsys.readouterr().out
    index.pages = {"good": page("1.0"), "bad": page("2.0", OTHER)}
    entry = '[[ignored]]\nid = "PYSEC-2"\nreason = "nothing here calls that function"\nuntil = 9999-01-01\n'
    (locked / "ignored.toml").write_text(entry)
    assert audited(index) == 0
    assert "bad 2.0: ignored: PYSEC-2" in capsys.readouterr().out


def test_what_is_ignored_of_diskcache_does_not_concern_us() -> None:
    """The reason in audit_ignored.toml: of llama-cpp-python only bindings are used, which cache nothing."""
    for module in load(ROOT, gate.PACKAGES):
        for line in module.source.splitlines():
            named = line.replace("llama_cpp.llama_cpp", "")
            assert not ("import" in named and "llama_cpp" in named), f"{module.path}: {line}"
            assert not any(word in line for word in ("diskcache", "LlamaDiskCache")), f"{module.path}: {line}"
