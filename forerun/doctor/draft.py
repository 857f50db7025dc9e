"""The draft model: its file, and what a child process that loads it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from edge_client.config.sections import DraftSection
from edge_client.llama.files import find_model
from edge_client.model_store import hash_of
from forerun.doctor.child import Asked
from forerun.doctor.finding import Finding, fail, ok, skip, warn
from forerun.doctor.machine import check_processor

CHILD = "forerun.doctor.child"
LONGEST = 60.0
"""Seconds for a child: a large draft from a slow disk, and two short texts."""

SLOW_STEP = 50.0  # ms; few targets take longer for a step of theirs


@dataclass(frozen=True, slots=True)
class Told:
    """What the child said, by stage."""

    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plain: Mapping[str, Any] | None = None  # the text without drafts
    drafted: Mapping[str, Any] | None = None  # the text with them
    end: str = ""  # what went wrong, in words

    def number(self, stage: str, name: str) -> float | None:
        found = self.stages.get(stage, {}).get(name)
        return float(found) if isinstance(found, int | float) else None

    def table(self, stage: str, name: str) -> dict[int, float]:
        """Numbers by whole number; empty if it was not told."""
        found = self.stages.get(stage, {}).get(name)
        return {int(size): float(took) for size, took in found.items()} if isinstance(found, dict) else {}


def find_file(draft: DraftSection, models: Path) -> tuple[str, list[Finding]]:
    """The draft's file, empty if it cannot be used; its name, beginning and hash."""
    if not draft.model:
        said = "no draft model is configured, and the daemon does not start without one"
        return "", [
            fail("draft file", said, "give --draft FILE, or set draft.model (`forerun pull` fetches one)")
        ]
    try:
        path = find_model(draft.model, str(models))
    except UserError as error:
        return "", [fail("draft file", str(error))]
    findings = [ok("draft file", f"{path}, {Path(path).stat().st_size / 1e6:.1f} MB")]
    if not draft.sha256:
        return path, [*findings, skip("draft hash", "none is configured to compare with (draft.sha256)")]
    found = hash_of(Path(path), lambda done, total: None)
    if found != draft.sha256.lower():
        words = f"the file hashes to {found}, not to {draft.sha256.lower()}"
        return "", [*findings, fail("draft hash", words, "fetch it again: forerun pull")]
    return path, [*findings, ok("draft hash", "as configured")]


def ask_child(asked: Asked, longest: float = LONGEST) -> Told:
    """Run it to its end, whatever that is."""
    command = [sys.executable, "-m", CHILD]
    try:
        done = subprocess.run(
            command, input=asked.as_json(), capture_output=True, text=True, check=False, timeout=longest
        )
    except subprocess.TimeoutExpired as error:
        told = _read((error.stdout or b"").decode("utf-8", "replace"))  # bytes, whatever `text` says
        return replace(told, end=f"it took longer than {longest:g} s")
    told = _read(done.stdout)
    if told.end or done.returncode == 0:
        return told
    if done.returncode < 0:
        return replace(told, end=f"it was ended by {signal.Signals(-done.returncode).name}")
    last = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
    return replace(told, end=f"it failed: {last[0]}")


def check_child(asked: Asked, told: Told) -> list[Finding]:
    """Its words as findings. Without a file only the processor's."""
    system = told.stages.get("system")
    findings = (
        [check_processor(str(system["info"]))]
        if system is not None
        else [fail("processor", f"llama.cpp cannot be loaded: {told.end}", "pip install 'forerun[edge]'")]
    )
    if not asked.path or system is None:
        return findings
    loaded = told.stages.get("loaded")
    if loaded is None:
        return [*findings, fail("draft loads", told.end, "fetch it again, or choose another draft")]
    kind = loaded["description"].replace(" ?B", "")  # llama.cpp's words for a size that it has no name for
    findings.append(ok("draft loads", f"{kind}, in {loaded['seconds']:.1f} s"))
    return [*findings, *_steps(told), *_tokens(asked, told), *_texts(told)]


def _steps(told: Told) -> list[Finding]:
    step = told.number("steps", "step_ms")
    if step is None:
        return [fail("draft step", told.end)]
    if step > SLOW_STEP:
        advice = "a smaller draft, fewer bits, or other --threads (fewer if a verifier runs here, too)"
        return [warn("draft step", f"{step:.1f} ms", advice)]
    return [ok("draft step", f"{step:.1f} ms")]


def _tokens(asked: Asked, told: Told) -> list[Finding]:
    if not asked.address:
        return [skip("tokenizer", "no verifier answers to compare it with")]
    found = told.stages.get("tokens")
    if found is None:
        return [fail("tokenizer", told.end)]
    return [(ok if found["same"] else fail)("tokenizer", str(found["words"]))]


def _texts(told: Told) -> list[Finding]:
    """What the target wrote just now."""
    plain, drafted = told.plain, told.drafted
    if plain is None:
        compared = told.stages.get("tokens", {}).get("same")
        return [fail("texts", told.end)] if compared and told.end else []
    words = (
        f"{plain['ms_per_token']:.1f} ms per token streamed, a target step takes {plain['step_ms']:.1f} ms"
    )
    if drafted is None:
        return [warn("texts", f"{words}; with drafts: {told.end or 'nothing came'}")]
    same = "the same text" if plain["tokens"] == drafted["tokens"] else "another text (a near-tie)"
    return [ok("texts", f"{words}; {drafted['ms_per_token']:.1f} ms with drafts, {same}")]


def _read(output: str) -> Told:
    stages, texts, end = dict[str, Mapping[str, Any]](), dict[bool, Mapping[str, Any]](), ""
    for line in output.splitlines():
        try:
            found = json.loads(line)
            stage = found.pop("stage")
        except (ValueError, KeyError, AttributeError):
            continue  # whatever a library prints
        if stage == "text":
            texts[bool(found["drafted"])] = found
        elif stage == "error":
            end = str(found["words"])
        else:
            stages[stage] = found
    return Told(stages, texts.get(False), texts.get(True), end)
