"""Takes the documentation's pictures of the page: `python -m lab.tools.screenshots`.

The demonstration serves the page with the bundled pair. Headless Chromium asks for a text and takes each
picture while the text is written. Needs chromium and chromedriver, and `pip install 'forerun[dev]'`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"

MAX_BYTES = 150 * 1024
"""Largest size of a picture: everyone who clones the repository gets it."""

LINK = ("--rtt", "200", "--step-floor", "600", "--drafter", "none")
"""So slow that a picture takes less time than a step, and all guesses are the device's."""

WAIT = 120.0
"""Seconds after which something that must happen has not."""

WARM_UP = "# Return the prime numbers up to n.\n"
"""A text before the pictures: the daemon has measured its draft model by its end."""

STATE = """
const pieces = [...document.querySelectorAll('.answer .drafted, .answer .server')];
const live = '#tree .node:not(.tip):not(.past):not(.dead)';
const guesses = document.querySelectorAll(`${live} text:not([display=none])`);
return [!$('start').hidden, pieces.map((each) => each.textContent).join('').length, guesses.length];
"""
"""Whether the text has ended, its letters, and the guesses in the tree that can be read."""

LEAST_LETTERS, LEAST_GUESSES = 60, 4
"""What a picture must show."""


@dataclass(frozen=True)
class Shot:
    """Declares a picture: its file, the screen's size in CSS pixels, and the colour scheme."""

    name: str
    width: int
    height: int
    scheme: str
    prompt: str

    @property
    def is_phone(self) -> bool:
        return self.width < self.height


SHOTS = (
    Shot("page.png", 1180, 760, "light", "# Merge two sorted lists into one sorted list.\n"),
    Shot("page-phone.png", 390, 844, "dark", "# Return the run lengths of a string.\n"),
)


@contextlib.contextmanager
def demonstration() -> Iterator[str]:
    """Serve the page until the block ends, and yield its address with the token."""
    command = [sys.executable, "-m", "lab", "demo", "--page", "--listen", "127.0.0.1:0", *LINK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := re.search(r"http://\S+#token=\S+", line):
                    yield match[0]
                    return
            raise RuntimeError("the demonstration ended before it served the page")
        finally:
            process.terminate()


@contextlib.contextmanager
def browser(shot: Shot) -> Iterator[Any]:
    """Open headless Chromium with the picture's screen until the block ends."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    driver = Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
    try:
        metrics = {
            "width": shot.width,
            "height": shot.height,
            "deviceScaleFactor": 1,
            "mobile": shot.is_phone,
        }
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": shot.scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield driver
    finally:
        driver.quit()


def write(driver: Any, url: str, prompt: str) -> Iterator[tuple[int, int]]:
    """Write a text, and yield its letters and the guesses in the tree until it has ended.

    Raise `TimeoutError` if that takes too long.
    """
    until = time.monotonic() + WAIT
    driver.get(url)
    while not driver.execute_script("return !$('link').hidden"):
        _check(until)
    driver.execute_script("$('prompt').value = arguments[0]; $('composer').requestSubmit()", prompt)
    while True:
        has_ended, letters, guesses = driver.execute_script(STATE)
        if has_ended:
            return
        yield letters, guesses
        _check(until)


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"the page has written no text within {WAIT:g} s")


def take(url: str, shot: Shot) -> bytes:
    """Return the picture with the most guesses, as PNG.

    Raise `ValueError` if it shows too little or is too large.
    """
    most, picture = LEAST_GUESSES - 1, b""
    with browser(shot) as driver:
        for letters, guesses in write(driver, url, shot.prompt):
            if letters >= LEAST_LETTERS and guesses > most:
                taken = driver.get_screenshot_as_png()
                has_ended, _, left = driver.execute_script(STATE)
                if left and not has_ended:  # the tree was live all the while
                    most, picture = guesses, taken
    if not 0 < len(picture) <= MAX_BYTES:
        raise ValueError(
            f"{shot.name} has {len(picture)} bytes; 1 to {MAX_BYTES} are allowed. 0: no tree was there"
        )
    return picture


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with demonstration() as url:
        with browser(SHOTS[0]) as driver:
            for _ in write(driver, url, WARM_UP):
                pass
        for shot in SHOTS:
            (IMAGES / shot.name).write_bytes(take(url, shot))
            print(IMAGES / shot.name)


if __name__ == "__main__":
    main()
