"""Installs the project into the running environment, and says all the time what it does: `make setup`.

torch is fetched while llama.cpp is compiled. A wheel of llama-cpp-python behind --wheels saves the compiling;
a release of this project has such wheels. Where none is found or none can be reached, llama.cpp is compiled.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "constraints" / "dev.txt"
EXTRAS = "edge,verifier,quantized,parallel,simulation,dev"
LLAMA = "llama-cpp-python"

PATIENCE = ("--retries", "2", "--timeout", "20")
"""Of pip with a place that may not be there: it costs seconds, and pip goes on with the others."""

STEP = re.compile(r"\[\s*(\d+)/(\d+)\]|\[\s*(\d+)(%)\]")
"""How ninja counts, and how make does."""

DOING = re.compile(r"[\s*]*((?:Collecting|Downloading|Installing|Building|Configuring) .{1,50})")
"""Lines of pip and CMake that say what they do."""

SHOWN_EVERY, LIVE_EVERY = 15.0, 0.5
"""Seconds between two reports: of lines in a log, and of the one line of a terminal."""

TAIL = 30  # lines of a program that failed


class Job:
    """Runs a program, and knows from its output what it is doing."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name, self._words = name, words
        self._doing, self._step, self._steps = "starts", 0, 0
        self._began = time.monotonic()
        self.tail = deque[str](maxlen=TAIL)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Return the exit code; None while it runs. All output has been read then."""
        if self._reader.is_alive():
            return None
        return self._process.wait()

    def stop(self) -> None:
        self._process.terminate()

    def note(self, line: str) -> None:
        """Take a line of the output."""
        self.tail.append(line)
        if match := STEP.search(line):
            step, steps, percent, _ = match.groups()
            if not self._step:
                self._began = time.monotonic()
            self._step, self._steps = int(step or percent), int(steps or 100)
        elif match := DOING.match(line):
            self._doing, self._step = re.sub(r"\.*(: (started|finished).*)?$", "", match[1]), 0

    def doing(self, now: float) -> str:
        """Return what it is doing at `now` (monotonic seconds), and the time left once that can be told."""
        if not self._step:
            return f"{self.name}: {self._doing}"
        left = (now - self._began) / self._step * (self._steps - self._step)
        about = f", about {as_time(left)} left" if self._step > 2 else ""
        return f"{self.name}: compiles [{self._step}/{self._steps}]{about}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.note(line.rstrip())


def as_time(seconds: float) -> str:
    """Format a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def show(text: str) -> None:
    """Write a line; on a terminal over the one before."""
    print(
        f"\r{text[:110]}\x1b[K" if sys.stdout.isatty() else text,
        end="" if sys.stdout.isatty() else "\n",
        flush=True,
    )


def run(jobs: Sequence[Job], began: float, report: Callable[[str], None] = show) -> None:
    """Run programs side by side until all are done, and report what they do.

    `began`: start of the whole installation, monotonic seconds. If a program fails, stops the others and
    raises `SystemExit` with the end of its output.
    """
    for job in jobs:
        job.start()
    try:
        failed = _reported(jobs, began, report)
    finally:  # Ctrl-C, too
        for job in jobs:
            job.stop()
    if failed is not None:
        said = "\n".join(failed.tail)
        raise SystemExit(
            f"\n{said}\nforerun: {failed.name} failed with code {failed.code}; its last lines are above"
        )


def _reported(jobs: Sequence[Job], began: float, report: Callable[[str], None]) -> Job | None:
    """Report what programs do until all have ended well, or the first one has not. Return that one."""
    pause, next_at = LIVE_EVERY if sys.stdout.isatty() else SHOWN_EVERY, 0.0
    while running := [job for job in jobs if job.code is None]:
        now = time.monotonic()
        if now >= next_at:
            report(f"forerun: {as_time(now - began)}  {'; '.join(job.doing(now) for job in running)}")
            next_at = now + pause
        if any(job.code for job in jobs):
            break
        time.sleep(0.1)
    return next((job for job in jobs if job.code), None)


def pinned(name: str) -> str:
    """Return the release of a distribution in constraints/dev.txt."""
    match = re.search(rf"^{re.escape(name)}==(\S+)", PINS.read_text("utf-8"), re.MULTILINE)
    assert match is not None, f"{PINS} names no release of {name}"
    return match[1]


def is_installed(name: str) -> bool:
    """Tell whether the pinned release is in this environment."""
    try:
        return metadata.version(name) == pinned(name)
    except metadata.PackageNotFoundError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", metavar="URL", help="a further index, asked for torch")
    parser.add_argument(
        "--wheels", default="", metavar="URL", help="a page or a folder that may have wheels of ours"
    )
    options = parser.parse_args(arguments)
    began, built = time.monotonic(), Path(sys.prefix) / "wheels"
    built.mkdir(exist_ok=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    index = ("--extra-index-url", options.torch_index, *PATIENCE) if options.torch_index else ()
    # torch goes alone, so that nothing draws in another build of it. What it needs comes with the rest.
    jobs = [Job("torch", (*pip, "install", "--no-deps", *index, "-c", str(PINS), "torch"))]
    if not is_installed(LLAMA):
        print("forerun: fetching torch and, beside it, building llama.cpp, once: 8 minutes of one processor")
        ours = ("--find-links", options.wheels, *PATIENCE) if options.wheels else ()
        build = ("wheel", "-v", "--no-deps", "-w", str(built), *ours, f"{LLAMA}=={pinned(LLAMA)}")
        jobs.append(Job("llama.cpp", (*pip, *build)))
    run(jobs, began)
    rest = ("install", "-c", str(PINS), "--find-links", str(built), "-e", f"{ROOT}[{EXTRAS}]")
    run([Job("other packages, about a minute", (*pip, *rest))], began)
    show(f"forerun: all packages are installed after {as_time(time.monotonic() - began)}")
    print()


if __name__ == "__main__":
    main()
