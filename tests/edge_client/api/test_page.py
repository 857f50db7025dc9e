"""The page: its files and headers, and what a real browser shows of a real daemon's texts."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.edge_client.api.browser import COUNT_GUESSES, DESKTOP, PHONE, WAIT, Page
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import alone

SCREENSHOTS = "FORERUN_TEST_SCREENSHOTS"
"""Environment variable: a folder to keep the pictures in."""

MAX_PAGE_BYTES = 100_000
LONG = 400
"""Tokens: near to all that the tiny target has room for."""

SLOW = 0.3
"""Seconds of a target step while something is to happen before a text ends. Greedy texts soon go in circles,
which an edge that remembers proposes all at once: they must be hot, or the server's alone."""

NAMES = ("index.html", "page.css", "page.js", "favicon.svg")


def contents() -> dict[str, str]:
    folder = files("edge_client.api") / "page"
    return {name: (folder / name).read_text(encoding="utf-8") for name in NAMES}


# The files --------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_names_no_other_host() -> None:
    found = contents()
    assert sum(len(text.encode()) for text in found.values()) < MAX_PAGE_BYTES
    for name, text in found.items():
        outside = {
            url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text) if "w3.org" not in url
        }
        assert not outside, f"{name} names {outside}"


def test_the_markup_holds_to_the_policy_and_labels_its_fields() -> None:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.ids, self.labelled, self.fields = list[str](), set[str](), list[str]()
            self.depth = 0  # of labels

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found = dict(attrs)
            assert tag != "style", "a style element would need unsafe-inline"
            assert tag != "script" or found.get("src"), "an inline script would need unsafe-inline"
            assert not {name for name in found if name == "style" or name.startswith("on")}
            self.ids += [str(found["id"])] if "id" in found else []
            self.depth += tag == "label"
            self.labelled |= {str(found["for"])} if tag == "label" and "for" in found else set()
            if tag in ("input", "select", "textarea"):
                self.fields += [] if self.depth and "for" not in found else [str(found.get("id"))]

        def handle_endtag(self, tag: str) -> None:
            self.depth -= tag == "label"

    reader = Reader()
    reader.feed(contents()["index.html"])
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.fields) <= reader.labelled
    assert set(re.findall(r'\$\("([\w-]+)"\)', contents()["page.js"])) <= set(reader.ids)


def test_what_a_model_writes_is_never_read_as_markup() -> None:
    script = contents()["page.js"]
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


@pytest.mark.api
@pytest.mark.grpc
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/favicon.ico", "image/svg"),
    ],
)
async def test_parts_of_the_page_need_no_token_and_say_what_they_may_do(path: str, kind: str) -> None:
    from tests.edge_client.api.page_world import page_world

    async with page_world() as found, httpx.AsyncClient(base_url=found.url) as client:
        page = await client.get(path)
        framed = await client.get(path, headers={"origin": "https://evil.example"})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith(kind)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert TOKEN not in page.text
    assert framed.status_code == 403


@pytest.mark.api
@pytest.mark.grpc
async def test_what_the_page_asks_for_needs_the_token() -> None:
    from tests.edge_client.api.page_world import page_world

    async with page_world() as found, httpx.AsyncClient(base_url=found.url) as client:
        paths = ("/v1/models", "/v1/status", "/v1/demo/link", "/v1/sessions/x/tree")
        answers = [(await client.get(path)).status_code for path in paths]
        answers.append((await client.post("/v1/demo/link", json={"down": True})).status_code)
        state = found.state()
    assert answers == [401] * 5
    assert not state.down


# In a browser -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pictures go."""
    found = Path(os.environ.get(SCREENSHOTS, tmp_path))
    found.mkdir(parents=True, exist_ok=True)
    return found


@pytest.fixture
def browser() -> Iterator[Callable[..., Page]]:
    """Opens browsers, and closes them."""
    pages = list[Page]()

    def start(size: tuple[int, int] = DESKTOP, scheme: str = "light", **more: bool) -> Page:
        pages.append(Page(size, scheme, **more))
        return pages[-1]

    yield start
    for page in pages:
        page.driver.quit()


in_a_browser = [pytest.mark.browser, pytest.mark.api, pytest.mark.grpc]


def marked(test: Any) -> Any:
    for mark in in_a_browser:
        test = mark(test)
    return test


@marked
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
async def test_a_text_is_the_targets_and_says_who_wrote_it(
    browser: Callable[..., Page], folder: Path, size: tuple[int, int], scheme: str
) -> None:
    from tests.edge_client.api.page_world import page_world

    def drive() -> dict[str, Any]:
        page = browser(size, scheme)
        page.open(found.with_token)
        page.write("abc", 80, temperature=1.0)
        page.wait("a tree", lambda: page.tree()["committed"] > 0)
        page.shot(folder, f"writing-{size[0]}-{scheme}")
        found.engine.step_time = 0.01
        page.ended()
        page.shot(folder, f"written-{size[0]}-{scheme}")
        style = """const all = [...document.querySelectorAll('.answer ' + arguments[0])];
            return getComputedStyle(all.at(-1))[arguments[1]]"""
        gauges = "return [...document.querySelectorAll('.gauge')].map((each) => each.textContent)"
        return {
            "text": page.text(),
            "drafted": len(page.text(".drafted")),
            "server": len(page.text(".server")),
            "looks": [
                [page.run(style, css, name) for name in ("backgroundColor", "textDecorationLine")]
                for css in (".drafted", ".server")
            ],
            "tree": page.tree(),
            "gauges": page.run(gauges),
            "mode": page.run("return document.getElementById('mode').innerText"),
            "parts": page.run("return document.getElementById('parts').innerText"),
            "summary": page.run("return [...document.querySelectorAll('.figures')].at(-1).textContent"),
            "address": page.driver.current_url,
            "wide": page.run("return document.documentElement.scrollWidth"),
            "complaints": page.complaints(),
        }

    async with page_world(SLOW) as found:
        seen = await asyncio.to_thread(drive)
    assert seen["text"] == alone(max_tokens=80, ignore_eos=True, temperature=1.0, seed=1)
    assert seen["drafted"] > 0
    assert seen["server"] > 0
    assert seen["looks"][0][0] != seen["looks"][1][0]
    assert [look[1] for look in seen["looks"]] == ["none", "underline"]
    tree = seen["tree"]
    assert tree["most"] > 1
    assert tree["pruned"] > 0
    assert tree["grown"] == tree["committed"] + tree["pruned"]
    assert f"{seen['drafted']} drafted here" in seen["summary"]
    for gauge in seen["gauges"]:
        assert re.search(r"\d", gauge), f"{gauge} has no number"
    assert "Running ahead" in seen["mode"]
    assert "nobody listens" in seen["parts"]
    assert seen["address"] == f"{found.url}/", "the token is still in the address bar"
    assert seen["wide"] <= size[0], "the page is wider than the screen"
    assert seen["complaints"] == []


@marked
async def test_a_text_can_be_stopped_and_the_talk_goes_on(browser: Callable[..., Page]) -> None:
    from tests.edge_client.api.page_world import page_world

    def drive() -> tuple[str, str, list[str]]:
        page = browser(calm=True)
        page.open(found.with_token)
        page.run("document.getElementById('model').value = 'tiny'")
        page.write("abc", LONG)
        page.wait("some text", lambda: len(page.text()) > 2)
        page.driver.find_element("id", "stop").click()
        page.ended()
        found.engine.step_time = 0.0
        stopped = page.text()
        page.write("bad", 30)
        page.wait(
            "a second answer", lambda: page.run("return document.querySelectorAll('.answer').length") == 2
        )
        page.ended()
        return stopped, page.text(), page.complaints()

    async with page_world(SLOW) as found:
        stopped, second, complaints = await asyncio.to_thread(drive)
        async with asyncio.timeout(WAIT):
            while found.device.live:  # noqa: ASYNC110 - nothing announces that a client's leaving was seen
                await asyncio.sleep(0.01)
    assert alone(max_tokens=LONG, ignore_eos=True).startswith(stopped)
    assert len(stopped) < LONG
    assert second == alone(f"abc{stopped}bad", max_tokens=30, ignore_eos=True)
    assert complaints == []


@marked
async def test_a_cut_link_shows_guesses_that_are_taken_back_where_the_target_differs(
    browser: Callable[..., Page], folder: Path
) -> None:
    from tests.edge_client.api.page_world import page_world

    def drive() -> dict[str, Any]:
        page = browser()
        page.open(found.with_token)
        page.run(COUNT_GUESSES)
        mode = "return document.getElementById('mode').dataset.mode"
        page.run(
            "const field = document.getElementById('link-rtt'); field.value = 20; "
            "field.dispatchEvent(new Event('input'))"
        )
        page.write("abc", LONG, "completion", 1.0)
        page.wait("some text", lambda: page.text())
        page.driver.find_element("id", "link-down").click()
        page.wait("device-only", lambda: page.run(mode) == "device-only")
        page.wait("a guess", lambda: page.run("return seen.guessed") > 3)
        page.shot(folder, "cut")
        why = page.run("return document.getElementById('mode-why').textContent")
        found.engine.step_time = 0.0
        page.driver.find_element("id", "link-down").click()
        page.wait("the verifier", lambda: page.run(mode) != "device-only")
        page.ended()
        page.wait("nothing is left of the guesses", lambda: not page.text(".guess"))
        return {"text": page.text(), "why": why, **page.run("return seen"), "complaints": page.complaints()}

    async with page_world(SLOW) as found:
        seen = await asyncio.to_thread(drive)
        state = found.state()
    assert (state.rtt_ms, state.down) == (20.0, False)
    assert seen["text"] == alone(max_tokens=LONG, ignore_eos=True, temperature=1.0, seed=1)
    assert seen["retracted"] > 0
    assert "has not answered" in seen["why"]
    assert seen["complaints"] == []


@marked
async def test_without_the_token_the_page_asks_for_it(browser: Callable[..., Page]) -> None:
    from tests.edge_client.api.page_world import page_world

    def drive() -> tuple[str, str, str]:
        page = browser(PHONE)
        gate, problem = (
            "return document.getElementById('gate').innerText",
            "return document.getElementById('gate-problem').textContent",
        )
        page.driver.get(found.url)
        page.wait("the gate", lambda: page.run(gate))
        asked = page.run(gate)
        page.driver.find_element("id", "gate-token").send_keys("wrong\n")
        page.wait("a problem", lambda: page.run(problem))
        wrong = page.run(problem)
        page.driver.find_element("id", "gate-token").send_keys(f"{TOKEN}\n")
        page.wait(
            "the models", lambda: page.run("return document.getElementById('model').options.length") == 3
        )
        return asked, wrong, page.run("return document.getElementById('model').value")

    async with page_world() as found:
        asked, wrong, model = await asyncio.to_thread(drive)
    assert "forerun edge status" in asked
    assert "not this daemon's" in wrong
    assert model == "tiny@tiny-draft"
