"""A headless browser with the page open, and what is asked of every element on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

WAIT = 60.0
"""Seconds after which something that must happen has not."""

PHONE = (390, 844)
DESKTOP = (1280, 900)

NAMED = """
const shown = (each) => each.checkVisibility({visibilityProperty: true}) && each.getClientRects().length > 0;
const said = (each) => `${each.tagName.toLowerCase()}#${each.id}.${each.getAttribute('class') ?? ''} ` +
  `“${each.textContent.trim().slice(0, 30)}”`;
function parts(colour) {
  const found = colour.match(/[\\d.]+/g).map(Number);
  return found.length < 4 ? [...found, 1] : found;
}
const over = ([r, g, b, a], under) => [r, g, b].map((each, at) => each * a + under[at] * (1 - a));
function behind(each) { // the colour that lies behind an element's content
  if (each instanceof SVGElement && each.parentNode.querySelector?.('rect')) {
    const fill = getComputedStyle(each.parentNode.querySelector('rect')).fill;
    if (fill !== 'none') return parts(fill).slice(0, 3);
  }
  const up = each.parentElement ? behind(each.parentElement) : [255, 255, 255];
  return over(parts(getComputedStyle(each).backgroundColor), up);
}
function light(colour) {
  const straight = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = colour.map((each) => straight(each / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(one, other) {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
function against(colour, back, each) { // a colour that an element and those around it may make fainter
  let [r, g, b, a] = parts(colour);
  for (let at = each; at; at = at.parentElement) a *= Number(getComputedStyle(at).opacity);
  return contrast(over([r, g, b, a], back), back);
}
"""
"""Functions for scripts. Contrast is WCAG 2.2's, of computed styles."""

FAINT_TEXTS = (
    NAMED
    + """
const faint = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
function check(each, colour, what) {
  const style = getComputedStyle(each), size = parseFloat(style.fontSize);
  const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  const found = against(colour, behind(each), each);
  if (getComputedStyle(each).opacity === '0') return;
  if (found < least) faint.push(`${said(each)}${what}: ${found.toFixed(2)}`);
}
let count = 0;
while (walker.nextNode()) {
  const each = walker.currentNode.parentElement;
  const out = '.unseen, .retracted, .dead, option, noscript, title, input:disabled + span';
  if (!walker.currentNode.data.trim() || !shown(each) || each.closest(out)) continue;
  count += 1;
  const style = getComputedStyle(each);
  check(each, each instanceof SVGElement ? style.fill : style.color, '');
}
for (const each of document.querySelectorAll('select, input, textarea')) {
  if (!shown(each) || ['radio', 'range', 'checkbox'].includes(each.type)) continue;
  check(each, getComputedStyle(each).color, ' (value)');
  if (each.placeholder) check(each, getComputedStyle(each, '::placeholder').color, ' (placeholder)');
}
return {count, faint};
"""
)
"""WCAG 1.4.3: texts have a contrast of 4.5, large ones of 3. What fades away for good is left out."""

FAINT_CONTROLS = (
    NAMED
    + """
const faint = [];
for (const each of document.querySelectorAll('input, select, textarea, .copy, #stop, #start')) {
  if (!shown(each) || ['radio', 'range'].includes(each.type)) continue;
  const box = each.closest('.composer') && each.tagName === 'TEXTAREA' ? each.closest('.composer') : each;
  const style = getComputedStyle(box), around = behind(box.parentElement);
  const border = against(style.borderTopColor, around, box.parentElement);
  const best = Math.max(border, contrast(behind(box), around));
  if (best < 3) faint.push(`${said(each)}: ${best.toFixed(2)}`);
}
return faint;
"""
)
"""WCAG 1.4.11: a control's border or ground has a contrast of 3 against what is around it."""

SMALL_TARGETS = (
    NAMED
    + """
const small = [];
for (const each of document.querySelectorAll('button, input, select, textarea, summary, a')) {
  const box = (each.type === 'radio' && each.closest('label')) || each;
  const {width, height} = box.getBoundingClientRect();
  if (shown(each) && Math.min(width, height) < 24) small.push(`${said(each)}: ${width} x ${height}`);
}
return small;
"""
)
"""WCAG 2.5.8: what is pressed measures 24 CSS pixels each way."""

FOCUS = (
    NAMED
    + """
const each = document.activeElement, marks = [each, each.nextElementSibling, each.closest('.composer')];
const best = Math.max(0, ...marks.filter(Boolean).map((mark) => {
  const style = getComputedStyle(mark), around = behind(mark.parentElement);
  const isOutlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const isRing = mark.matches('.composer') && each.tagName === 'TEXTAREA' && style.boxShadow !== 'none';
  const colour = isOutlined ? style.outlineColor : isRing ? style.borderTopColor : null;
  return colour ? against(colour, around, mark.parentElement) : 0;
}));
const {left, top, right, bottom} = each.getBoundingClientRect();
const hit = document.elementFromPoint((left + right) / 2, Math.min((top + bottom) / 2, innerHeight - 1));
const seen = each.contains(hit) || each.closest('label')?.contains(hit) || false;
return {id: each.id || each.value || each.tagName.toLowerCase(), contrast: best, seen};
"""
)
"""WCAG 2.4.7 and 2.4.11: what has the focus is marked, and not hidden under another thing."""

OUTLINE = """
const whole = document.createElement('div');
whole.append(...[...arguments[0].childNodes].map((each) => each.cloneNode(true)));
for (const each of whole.querySelectorAll('button, .guess, summary')) each.remove();
const found = [], colours = [];
const walker = document.createTreeWalker(whole, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const {data, parentElement: above} = walker.currentNode;
  const origin = ['drafted', 'server', 'device'].find((each) => above.classList.contains(each));
  colours.push([data, origin ?? '']);
  if (above.closest('.tick')) continue;
  const kinds = {pre: 'block', '.block-head': 'language', code: 'code', div: 'text'};
  const kind = kinds[Object.keys(kinds).find((css) => above.closest(css))];
  if (found.at(-1)?.[0] === kind) found.at(-1)[1] += data;
  else found.push([kind, data]);
}
const shown = found.map(([kind, text]) => [kind, kind === 'language' ? text.trim() : text]);
return {raw: whole.textContent, found: shown.filter(([, text]) => text), colours};
"""
"""Of an answer: its text with every backtick, what is shown as what, and who wrote each piece."""


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
        self.calm = calm
        self.look(size, scheme)

    def look(self, size: tuple[int, int], scheme: str) -> None:
        """Change the screen's size in CSS pixels, and the colour scheme."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if self.calm else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < height}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def wait(self, what: str, met: Callable[[], Any]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, WAIT, poll_frequency=0.02).until(lambda _: met(), message=what)

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.is_open()

    def is_open(self) -> None:
        self.wait("the desk", lambda: self.run("return !document.getElementById('desk').hidden"))
        self.wait("the link", lambda: self.run("return !document.getElementById('link').hidden"))

    def write(self, text: str, most: int | str, kind: str = "chat", temperature: float = 0) -> None:
        """Ask for a text by the page's own controls."""
        self.run("document.getElementById('temperature').value = arguments[0]", temperature)
        self.run("document.querySelector(`input[value=${arguments[0]}]`).click()", kind)
        self.run("document.getElementById('max-tokens').value = arguments[0]", most)
        field = self.driver.find_element("id", "prompt")
        field.clear()
        field.send_keys(text)
        self.driver.find_element("id", "start").click()

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def ended(self) -> None:
        self.wait("the end", lambda: self.run("return !document.getElementById('start').hidden"))

    def text(self, css: str = ".drafted,.server,.device") -> str:
        """Of the newest answer: what stays."""
        script = """const all = [...document.querySelectorAll('.answer')].at(-1);
            return [...all.querySelectorAll(arguments[0])].map((each) => each.textContent).join('')"""
        return str(self.run(script, css))

    def outline(self) -> dict[str, Any]:
        """Of the newest answer: `OUTLINE`."""
        answer = "[...document.querySelectorAll('.answer')].at(-1)"
        found: dict[str, Any] = self.run(f"return (function () {{{OUTLINE}}})({answer})")
        return found

    def tree(self) -> dict[str, int]:
        found = self.run("return {...document.getElementById('tree').dataset}")
        return {name: int(value) for name, value in found.items()}

    def controls(self) -> set[tuple[str, str]]:
        """Role and name of everything that can have the focus, as a screen reader gets them."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return {
            (node["role"]["value"], node["name"]["value"].strip())
            for node in nodes
            if not node["ignored"]
            and any(each["name"] == "focusable" and each["value"]["value"] for each in node["properties"])
        }

    def complaints(self) -> list[str]:
        """Of the console: errors, and violations of the policy.

        A tree may be asked for while its text ends, and is not found then.
        """
        found = [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [each for each in found if not ("/tree - " in each and "404" in each)]
