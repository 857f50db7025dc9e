"""The page: its files and headers, and what a real browser shows of a real daemon's texts."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import httpx
import pytest

from tests.edge_client.api.served import TOKEN, page_world
from tests.edge_client.api.world import alone

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


def test_the_page_names_no_other_host() -> None:
    found = contents()
    for name, text in found.items():
        outside = {
            url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text) if "w3.org" not in url
        }
        assert not outside, f"{name} names {outside}"
    markup = r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert not re.search(markup, found["page.js"]), "what a model writes is never read as markup"


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
    async with page_world() as found, httpx.AsyncClient(base_url=found.url) as client:
        page = await client.get(path)
        framed = await client.get(path, headers={"origin": "https://evil.example"})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith(kind)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    names = ("x-content-type-options", "x-frame-options", "referrer-policy", "cache-control")
    assert [page.headers[name] for name in names] == ["nosniff", "DENY", "no-referrer", "no-store"]
    assert TOKEN not in page.text
    assert framed.status_code == 403


@pytest.mark.api
@pytest.mark.grpc
async def test_what_the_page_asks_for_needs_the_token() -> None:
    async with page_world() as found, httpx.AsyncClient(base_url=found.url) as client:
        paths = ("/v1/models", "/v1/status", "/v1/demo/link", "/v1/sessions/x/tree")
        answers = [(await client.get(path)).status_code for path in paths]
        answers.append((await client.post("/v1/demo/link", json={"down": True})).status_code)
        state = found.state()
    assert answers == [401] * 5
    assert not state.down


# In a browser -----------------------------------------------------------------------------------------------

WAIT = 60.0
"""Seconds after which something that must happen has not."""

PHONE = (390, 844)
DESKTOP = (1280, 900)

COUNT_GUESSES = """
window.seen = {guessed: 0, retracted: 0};
new MutationObserver((changes) => {
  for (const change of changes) {
    for (const node of change.addedNodes) if (node.className === 'guess') seen.guessed += 1;
    if (change.attributeName && change.target.classList.contains('retracted')) seen.retracted += 1;
  }
}).observe(document.getElementById('transcript'), {childList: true, subtree: true, attributes: true})
"""
"""Guesses come and go too quickly to be looked for."""


class Page:
    """A headless browser with the page open. Methods block: call them in a thread."""

    def __init__(self, size: tuple[int, int], scheme: str, *, calm: bool = False) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def wait(self, what: str, met: Callable[[], Any]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, WAIT, poll_frequency=0.02).until(lambda _: met(), message=what)

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.wait("the desk", lambda: self.run("return !document.getElementById('desk').hidden"))
        self.wait("the link", lambda: self.run("return !document.getElementById('link').hidden"))

    def write(self, text: str, most: int, kind: str = "chat", temperature: float = 0) -> None:
        """Ask for a text by the page's own controls."""
        self.run("document.getElementById('temperature').value = arguments[0]", temperature)
        self.run("document.querySelector(`input[value=${arguments[0]}]`).click()", kind)
        self.run("document.getElementById('max-tokens').value = arguments[0]", most)
        field = self.driver.find_element("id", "prompt")
        field.clear()
        field.send_keys(text)
        self.driver.find_element("id", "start").click()

    def ended(self) -> None:
        self.wait("the end", lambda: self.run("return !document.getElementById('start').hidden"))

    def text(self, css: str = ".drafted,.server,.device") -> str:
        """Of the newest answer: what stays."""
        script = """const all = [...document.querySelectorAll('.answer')].at(-1);
            return [...all.querySelectorAll(arguments[0])].map((each) => each.textContent).join('')"""
        return str(self.run(script, css))

    def tree(self) -> dict[str, int]:
        found = self.run("return {...document.getElementById('tree').dataset}")
        return {name: int(value) for name, value in found.items()}

    def complaints(self) -> list[str]:
        """Of the console: errors, and violations of the policy.

        A tree may be asked for while its text ends, and is not found then.
        """
        found = [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [each for each in found if not ("/tree - " in each and "404" in each)]


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


def marked(test: Any) -> Any:
    return pytest.mark.browser(pytest.mark.api(pytest.mark.grpc(test)))


@marked
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
async def test_a_text_is_the_targets_and_says_who_wrote_it(
    browser: Callable[..., Page], size: tuple[int, int], scheme: str
) -> None:
    def drive() -> dict[str, Any]:
        page = browser(size, scheme)
        page.open(found.with_token)
        page.write("abc", 80, temperature=1.0)
        page.wait("a tree", lambda: page.tree()["committed"] > 0)
        found.engine.step_time = 0.01
        page.ended()
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
            while found.texts.live:  # noqa: ASYNC110 - nothing announces that a client's leaving was seen
                await asyncio.sleep(0.01)
    assert alone(max_tokens=LONG, ignore_eos=True).startswith(stopped)
    assert len(stopped) < LONG
    assert second == alone(f"abc{stopped}bad", max_tokens=30, ignore_eos=True)
    assert complaints == []


@marked
async def test_a_cut_link_shows_guesses_that_are_taken_back_where_the_target_differs(
    browser: Callable[..., Page],
) -> None:
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
