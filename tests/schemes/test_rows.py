"""Every published system of docs/schemes.md runs as its row says, and every claim is in the report."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from common.acceptance import make_acceptance
from forerun.cli import build_parser
from schemes.claims.table import CLAIMS
from simulator.schemes import run_scheme
from simulator.world import World

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "lab" / "measured" / "published.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")
COLUMNS = "| system | source | runs as | file | state, what differs | test | figure |"
STATES = {"whole", "part", "ours", "simulator"}
NAMES = """\
speculative decoding, SpS, batched, greedy match, lenience, token tree verification, SpecInfer
Su 2023, theory of rejections, AMUSD, PEARL, SSD, Saguaro, PACER, BiLD, SpecDec, Spec-Drafter
Medusa, blockwise, EAGLE-3, multi-token prediction, self-speculative decoding, SPEED, PPD, AdaDecode
Jacobi, lookahead, PaSS, LLMA, SAD, REST, Cacheback, SuffixDecoding, staged speculation, CS Drafting
SpecTr, block verification, contrastive decoding, AutoJudge, reflective verification, HSD, Mirror-SD
UARA, DSD, RaLMSpec, STRIDE, vLLM, online speculative decoding, DistillSpec, Seq-KD, Col-BT
ParallelSpec, SpecFormer, PARD, token recycling, SD², SpecDiff-2, Self-speculative diffusion, LLMCad
Gemini"""
"""Published systems, as the page calls them."""


class Row(NamedTuple):
    """A row of the table, cell by cell."""

    system: str
    source: str
    runs_as: str
    file: str
    state: str
    test: str
    figure: str


def rows() -> list[Row]:
    table = PAGE.split(COLUMNS)[1].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in table]


ROWS = rows()


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def run(what: str) -> None:
    """Run a scheme or policy in a small world, make a rule, take a command's words, or find a test."""
    kind, _, name = what.partition(" ")
    match kind:
        case "--policy" | "--scheme":
            (result,) = run_scheme(name, World(tokens=12))
            assert len(result.tokens) == 12
        case "--acceptance":
            make_acceptance(name)
        case "forerun":
            words = name.split()
            build_parser(words[0]).parse_args(words)
        case _:
            assert what.startswith("tests/"), f"{what!r} is neither option, command nor test"
            assert (ROOT / what).is_file()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.system)
def test_every_row_runs(row: Row) -> None:
    assert spans(row.runs_as), "a row names what runs it"
    assert {place.strip() for place in row.runs_as.split(":")[0].split(",")} <= {"stack", "simulator"}
    for what in spans(row.runs_as):
        run(what)
    assert spans(row.file)
    for path in spans(row.file):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.system)
def test_every_row_tells_its_state_its_test_and_its_figure(row: Row) -> None:
    state = re.fullmatch(r"(\w+)(?:(?::| for good:|;) (.+))?", row.state)
    assert state is not None
    assert state[1] in STATES
    assert state[2] or state[1] in {"whole", "ours"}, "a row says what is lacking"
    (test,) = spans(row.test)
    assert test.startswith("tests/")
    assert (ROOT / test).is_file()
    assert row.figure


@pytest.mark.parametrize("name", re.split(", |\n", NAMES))
def test_every_published_system_named_here_is_on_the_page(name: str) -> None:
    assert name in PAGE


def test_every_claim_has_its_row_and_is_in_the_report() -> None:
    """After a change of claims: `forerun simulate published --json > lab/measured/published.json`."""
    named = [(each.system, each.quantity, each.figure) for each in CLAIMS]
    assert [(each["system"], each["quantity"], each["claim"]) for each in REPORT] == named
    assert {claim.system for claim in CLAIMS} <= {row.system for row in ROWS}
