"""The page: its files and headers, and what a real browser shows of a real daemon's texts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import product
from typing import Any

import httpx
import pytest

from common.sampling import SamplingParams
from tests.edge_client.api.page_browser import (
    DESKTOP,
    FAINT_CONTROLS,
    FAINT_TEXTS,
    FOCUS,
    OUTLINE,
    PHONE,
    SMALL_TARGETS,
    WAIT,
    Page,
)
from tests.edge_client.api.served import TOKEN, page_world
from tests.edge_client.api.world import Letters, alone
from tests.support.tiny import EOS
from tests.worlds.models import target_alone

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
        page.wait("a tree", lambda: page.tree()["committed"] > 0 and page.text(".drafted"))
        found.engine.step_time = 0.0  # too short for guesses at each place
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
            "right": page.run("return document.getElementById('gauge-rate').textContent"),
            "count": page.run("return document.getElementById('tree-count').textContent"),
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
    assert f"{seen['server']} by the server" in seen["summary"]
    assert int(seen["right"]) == int(100 * seen["drafted"] / 80 + 0.5)
    assert [int(each) for each in re.findall(r"\d+", seen["count"])][:2] == [seen["drafted"], 80]
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


# Code -------------------------------------------------------------------------------------------------------

FENCED = "Do:\n\n```python\ndef f(x):\n\n    return `x`\n```\nThen `f(1)`."

CODE: dict[str, tuple[str, list[list[str]]]] = {
    "a block and inline code": (
        FENCED,
        [
            ["text", "Do:\n\n"],
            ["language", "python"],
            ["block", "def f(x):\n\n    return `x`\n"],
            ["text", "Then "],
            ["code", "f(1)"],
            ["text", "."],
        ],
    ),
    "in a list": (
        "1. So:\n   ```sh\n   ls `pwd`\n   ```\n2. Done",
        [["text", "1. So:\n"], ["language", "sh"], ["block", "   ls `pwd`\n"], ["text", "2. Done"]],
    ),
    "a block that is cut": ("```\nx = 1\ny", [["block", "x = 1\ny"]]),
    "a block that ends with the text": ("```\nx\n```", [["block", "x\n"]]),
    "a longer fence": (
        "````\n```\nx\n```\n````\ny",
        [["block", "```\nx\n```\n"], ["text", "y"]],
    ),
    "a line that begins as a fence": ("```\n``` x\n```", [["block", "``` x\n"]]),
    "two blocks": ("```\na\n```\n```\nb\n```\n", [["block", "a\n"], ["block", "b\n"]]),
    "backticks in code": ("``a`b`` c", [["code", "a`b"], ["text", " c"]]),
    "three backticks in a line": ("```a``` b\nc", [["code", "a"], ["text", " b\nc"]]),
    "no code, as it does not end": ("it`s\nso `x", [["text", "it`s\nso `x"]]),
    "markup": (
        "<b>`<img src=x onerror=alert(1)>`</b>",
        [["text", "<b>"], ["code", "<img src=x onerror=alert(1)>"], ["text", "</b>"]],
    ),
}
"""Text -> what is shown as what."""

WRITE_IN_PIECES = f"""
const outline = function () {{{OUTLINE}}};
const [text, size] = arguments, origins = ['drafted', 'server', 'device'], runs = [];
for (let at = 0; at < text.length; at += size) {{
  runs.push([text.slice(at, at + size), origins[at / size % 3], 1]);
}}
const answer = new Answer(begin('chat', '?'));
const wrong = [];
let sofar = '';
for (const run of runs) {{
  answer.guessOn({{start: answer.count, texts: ['`', 'guess']}});
  answer.write([run]);
  sofar += run[0];
  if (outline(answer.box).raw !== sofar) wrong.push(sofar);
}}
answer.end();
const fonts = [...answer.box.querySelectorAll('code')].map((each) => getComputedStyle(each).fontFamily);
return {{...outline(answer.box), runs, wrong, fonts}};
"""


def written_by(runs: list[list[Any]]) -> list[str]:
    """Who wrote each letter; blanks bear no mark."""
    return [run[1] for run in runs for letter in run[0] if not letter.isspace()]


@marked
async def test_code_is_shown_as_code_in_whatever_pieces_it_comes(browser: Callable[..., Page]) -> None:
    def drive() -> list[tuple[str, int, dict[str, Any]]]:
        page = browser()
        page.open(found.with_token)
        return [
            (name, size, page.run(WRITE_IN_PIECES, text, size))
            for name, (text, _) in CODE.items()
            for size in (1, 2, 3, 5, 1000)
        ]

    async with page_world() as found:
        answers = await asyncio.to_thread(drive)
    for name, size, seen in answers:
        text, shown = CODE[name]
        where = f"{name}, in pieces of {size}"
        assert seen["found"] == shown, where
        assert seen["raw"] == text, where
        assert seen["wrong"] == [], where
        assert written_by(seen["colours"]) == written_by(seen["runs"]), where
        assert all("mono" in font for font in seen["fonts"]), where


class Marks(Letters):
    """Words of which many texts with code can be made."""

    PIECES = ("~", "a ", "`", "\n```\n", "b", "\n", "``` c")

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        longest = sorted(self.PIECES[1:], key=len, reverse=True)
        return [self.PIECES.index(each) for each in re.findall("|".join(map(re.escape, longest)), text)]

    def piece(self, token: int) -> bytes:
        return self.PIECES[token].encode()

    def alone(self, prompt: str, **sampling: Any) -> str:
        """What the target writes by itself, spelled."""
        params = SamplingParams(ignore_eos=True, **sampling)
        return "".join(self.PIECES[token] for token in target_alone(self.tokenize(prompt, True), params, EOS))


@marked
async def test_a_talk_with_code_survives_a_reload_in_its_colours(browser: Callable[..., Page]) -> None:
    def drive() -> dict[str, Any]:
        page = browser(calm=True)
        page.open(found.with_token)
        page.write("a b", 150, temperature=1.0)
        page.wait("some text", lambda: len(page.outline()["raw"]) > 20)
        early = page.outline()
        found.engine.step_time = 0.0
        page.ended()
        page.wait("nothing is left of the guesses", lambda: not page.text(".guess"))
        before, said = page.outline(), page.run("return document.getElementById('transcript').innerText")
        runs = page.run("return talk.at(-1).runs")
        page.driver.refresh()
        page.is_open()
        after, again = page.outline(), page.run("return document.getElementById('transcript').innerText")
        page.write("b", 30, temperature=1.0)
        page.wait("a second answer", lambda: page.run("return talk.length") == 2)
        page.ended()
        second = page.outline()["raw"]
        found.engine.step_time = SLOW
        page.write("b", LONG, "completion")
        page.wait("a third answer", lambda: page.run("return talk.length == 3 && textOf(talk[2]).length") > 5)
        page.driver.refresh()
        page.is_open()
        cut = page.run("return document.getElementById('transcript').innerText")
        found.engine.step_time = 0.0
        page.driver.find_element("id", "clear").click()
        page.driver.refresh()
        page.is_open()
        empty = page.run("return document.querySelectorAll('.answer, .asked').length")
        return {**locals(), "complaints": page.complaints()}

    words = Marks()
    async with page_world(SLOW, words) as found:
        seen = await asyncio.to_thread(drive)
    text = words.alone("a b", max_tokens=150, temperature=1.0, seed=1)
    assert text.startswith(seen["early"]["raw"])
    assert seen["before"]["raw"] == text
    assert {kind for kind, _ in seen["before"]["found"]} >= {"text", "code", "block"}
    assert written_by(seen["before"]["colours"]) == written_by(seen["runs"])
    for name in ("raw", "found"):
        assert seen["after"][name] == seen["before"][name]
    assert written_by(seen["after"]["colours"]) == written_by(seen["before"]["colours"])
    assert seen["again"].split() == seen["said"].split()
    assert seen["second"] == words.alone(f"a b{text}b", max_tokens=30, temperature=1.0, seed=1)
    assert "reloaded" in seen["cut"]
    assert seen["empty"] == 0
    assert seen["complaints"] == []


LAST = """
const chunk = {choices: [{finish_reason: 'stop'}], forerun: {tokens: 20, elapsed_ms: 9000, waited_ms: 8000}};
const body = new Response(`data: ${JSON.stringify(chunk)}\\n\\ndata: [DONE]\\n\\n`);
return read(body, new Answer(begin('chat', '?')), new AbortController())
  .then(() => document.getElementById('gauge-speed').textContent);
"""
"""The end of a text that waited in the queue; returns the gauge of the speed."""


@marked
async def test_the_speed_is_without_the_queue_and_what_does_not_leave_is_saved(
    browser: Callable[..., Page],
) -> None:
    def drive() -> tuple[str, list[bool]]:
        page = browser()
        page.open(found.with_token)
        speed = page.run(LAST)
        script = "dispatchEvent(new Event(arguments[0])); return isLeaving"
        return speed, [page.run(script, each) for each in ("beforeunload", "pagehide", "pageshow")]

    async with page_world(0.0) as found:
        speed, is_leaving = await asyncio.to_thread(drive)
    assert speed == "20"
    assert is_leaving == [False, True, False]


@marked
async def test_a_text_is_as_long_as_fits(browser: Callable[..., Page]) -> None:
    def drive() -> list[str]:
        page = browser()
        page.open(found.with_token)
        texts = list[str]()
        for kind in ("chat", "completion"):
            page.write("abc", "", kind)
            page.wait("an answer", lambda: page.run("return talk.length") == len(texts) + 1)
            page.ended()
            texts.append(page.text())
        return texts

    async with page_world(0.0) as found:
        texts = await asyncio.to_thread(drive)
    whole = alone(max_tokens=LONG, ignore_eos=True)
    assert [text[:LONG] for text in texts] == [whole, whole]


# Access -----------------------------------------------------------------------------------------------------

NARROW = (320, 568)
"""WCAG 1.4.10: even at this width nothing must be scrolled sideways."""

SHOW_EVERYTHING = """
const [text] = arguments;
const answer = new Answer(begin('chat', '?'));
answer.think('Let me see.');
answer.write(['drafted', 'server', 'device'].map((origin) => [`${text}\n`, origin, 1]));
answer.note('A note.');
answer.note('12 tokens', 'figures');
answer.note('It failed.', 'problem');
answer.end();
const raw = new Answer(begin('completion', 'given `x`'));
raw.guessOn({start: 0, texts: ['a', ' guess']});
document.querySelector('.settings').open = true;
$('chat-hint').hidden = false;
$('chat-hint').textContent = 'A hint.';
$('stop').hidden = false;
tree.begin();
const nodes = [
  [2, 1, 'b', -0.1, true], [3, 1, 'c', -4, true], [4, 2, 'd', -0.2, false], [5, 4, 'e', -5, false],
];
const committed = ['p', 'q', 'r', 's', 't', 'u', 'v'].map((each) => [0, each]);
tree.show({begins: true, committed: [], tip: [9, 'o'], nodes: []});
tree.show({begins: false, committed, tip: [1, 'v'], nodes});
$('tree-empty').classList.add('off');
"""
"""All kinds of text that the page can show, at once."""


@marked
async def test_everything_can_be_read_named_and_pressed(browser: Callable[..., Page]) -> None:
    looks = list(product((DESKTOP, PHONE, NARROW), ("light", "dark")))

    def drive() -> dict[str, Any]:
        page = browser(calm=True)
        page.driver.get(found.url)
        page.wait("the gate", lambda: page.run("return !document.getElementById('gate').hidden"))
        gate = page.run(FAINT_TEXTS)["faint"]
        page.driver.find_element("id", "gate-token").send_keys(f"{TOKEN}\n")
        page.is_open()
        page.run(SHOW_EVERYTHING, FENCED)
        faults = list[Any]()
        for size, scheme in looks:
            page.look(size, scheme)
            page.wait("the tree", lambda: page.run("return tree.frame") == 0)
            texts = page.run(FAINT_TEXTS)
            wide = page.run("return document.documentElement.scrollWidth") > size[0]
            shown = texts["count"] > 60
            faults.append(
                [texts["faint"], page.run(FAINT_CONTROLS), page.run(SMALL_TARGETS), wide, not shown]
            )
        return {"gate": gate, "faults": faults, "names": page.controls()}

    async with page_world() as found:
        seen = await asyncio.to_thread(drive)
    assert seen["gate"] == []
    for look, faults in zip(looks, seen["faults"], strict=True):
        assert faults == [[], [], [], False, False], look
    names = seen["names"] - {("RootWebArea", "Forerun")}
    assert all(name for _, name in names), names
    assert names >= {
        ("radio", "Chat"),
        ("radio", "Completion"),
        ("combobox", "Model"),
        ("button", "New"),
        ("log", "Text"),
        ("group", "Code"),
        ("button", "Copy this code"),
        ("button", "Copy this text"),
        ("textbox", "Your text"),
        ("spinbutton", "Temperature"),
        ("spinbutton", "Seed"),
        ("spinbutton", "Most tokens"),
        ("button", "Start"),
        ("button", "Stop"),
        ("slider", "Added round trip"),
        ("slider", "Jitter"),
        ("switch", "Cut the link"),
    }


@marked
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
async def test_a_keyboard_is_enough(browser: Callable[..., Page], size: tuple[int, int], scheme: str) -> None:
    from selenium.webdriver.common.keys import Keys

    def drive() -> dict[str, Any]:
        page = browser(size, scheme)
        page.open(found.with_token)
        page.run("document.getElementById('prompt').focus()")
        page.press(Keys.CONTROL + "a" + Keys.NULL, "abc", Keys.ENTER)
        page.wait("some text", lambda: page.text())
        page.press(Keys.ESCAPE)
        page.ended()
        stopped = page.text()
        permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": found.url}
        page.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)
        page.run("document.querySelector('input[name=kind]:checked').focus()")
        stops, copied = [page.run(FOCUS)], ""
        while stops[-1]["id"] != "body":
            page.press(Keys.TAB)
            stops.append(page.run(FOCUS))
            if stops[-1]["id"] == "button":
                page.press(Keys.ENTER)
                page.wait("the copy", lambda: page.run("return $('said').textContent") == "Copied.")
                script = (
                    "navigator.clipboard.readText().then(arguments[0], (why) => arguments[0](String(why)))"
                )
                copied = page.driver.execute_async_script(script)
        page.run("document.getElementById('clear').focus()")
        page.press(Keys.ENTER)
        left = page.run("return document.querySelectorAll('.answer').length")
        focus = page.run("return document.activeElement.id")
        return {**locals()}

    async with page_world(SLOW) as found:
        seen = await asyncio.to_thread(drive)
    assert seen["copied"] == seen["stopped"]
    assert alone(max_tokens=LONG, ignore_eos=True).startswith(seen["stopped"])
    order = [each["id"] for each in seen["stops"][:-1]]
    ways = ["completion", "model", "clear", "transcript", "button", "prompt", "settings-summary", "start"]
    assert order == [*ways, "link-rtt", "link-jitter", "link-down"]
    faint = [each for each in seen["stops"][:-1] if each["contrast"] < 3]
    assert faint == [], "what has the focus cannot be told from the rest"
    assert [each for each in seen["stops"][:-1] if not each["seen"]] == []
    assert (seen["left"], seen["focus"]) == (0, "prompt")


@marked
async def test_on_a_phone_the_composer_stays_at_the_thumb(browser: Callable[..., Page]) -> None:
    def drive() -> list[tuple[float, bool]]:
        page = browser(PHONE, "dark", calm=True)
        page.open(found.with_token)
        page.run(SHOW_EVERYTHING, FENCED)
        places = list[tuple[float, bool]]()
        for share in (0, 0.5, 1):
            page.run("scrollTo(0, arguments[0] * document.documentElement.scrollHeight)", share)
            bottom = page.run("return document.getElementById('composer').getBoundingClientRect().bottom")
            script = """const {left, right, top, bottom} = $('prompt').getBoundingClientRect();
                return document.elementFromPoint((left + right) / 2, (top + bottom) / 2).id"""
            places.append((bottom, page.run(script) == "prompt"))
        return places

    async with page_world() as found:
        places = await asyncio.to_thread(drive)
    for bottom, is_on_top in places:
        assert is_on_top
        assert PHONE[1] / 2 < bottom <= PHONE[1]
