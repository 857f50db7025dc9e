"""A headless browser on the daemon's page, driven by what a user sees."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    def shot(self, folder: Path, name: str) -> None:
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        (folder / f"{name}.png").write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Of the console: errors, and violations of the policy."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
