"""The examples of CONTRIBUTING.md do what the page says, in sessions, worlds and steps of the real cores."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.acceptance import Acceptance, AcceptanceRule
from common.chances import SeededChances
from common.messages import Commit, Opened, Propose
from common.sampling import SamplingParams
from edge_client.core.effects import Send, SessionConfig
from edge_client.core.session import EdgeSession
from lab.examples.contributed_policy import RulerPolicy
from lab.examples.contributed_profile import METRO
from lab.examples.contributed_rule import ENOUGH, likely
from lab.examples.contributed_source import Followers
from schemes.policies.tree import TreePolicy
from schemes.rules.rule_rows import RuleRows
from simulator.files import experiment_from
from simulator.profiles import PROFILES
from simulator.schemes import run_scheme
from tests.schemes.rules.test_rules import fork
from tests.worlds.seeds import check_laws, run, spec_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_the_page_shows_the_files_that_are_run_here() -> None:
    shown = {*re.findall(r"\((lab/examples/[\w.]+)\)", PAGE)}
    assert shown == {
        f"lab/examples/contributed_{part}.py" for part in ("source", "rule", "policy", "profile")
    }
    assert all((ROOT / each).is_file() for each in shown)
    groups = re.findall(r"group `(forerun\.\w+)`", PAGE)
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    assert groups
    assert all(f'[project.entry-points."{group}"]' in pyproject for group in groups)


def test_the_source_proposes_what_followed_before() -> None:
    config = SessionConfig((1, 2), SamplingParams(max_tokens=40, ignore_eos=True), b"print", patience=None)
    session = EdgeSession(config, TreePolicy(), sources=[Followers()])
    session.start(0.0)
    session.on_message(Opened(1, 64), 1.0)
    session.effects()
    for start, token in enumerate((5, 6, 7, 5), 2):
        session.on_message(Commit(start, (token,), 1, 1), 1.0 + start / 10)
    sent = [each.message for each in session.effects() if isinstance(each, Send)]
    proposals = [each for each in sent if isinstance(each, Propose)]
    assert proposals[-1].tokens[0] == 6
    assert [node.token for node in session.tree.likeliest_path()][:3] == [6, 7, 5]


@pytest.mark.parametrize("enough", [True, False])
def test_the_rule_takes_a_draft_that_is_likely_enough(enough: bool) -> None:
    step = fork()
    item = step.item(Acceptance(AcceptanceRule.TYPICAL))
    law = np.zeros(10)
    law[2] = 2 * ENOUGH if enough else ENOUGH / 2
    rows = RuleRows(item, np.full(len(step.paths), 9, np.int32), lambda row: law)
    choices = likely(rows, SeededChances(1))
    assert choices == ({0: 2, 2: 9} if enough else {0: 9})


def test_the_policys_texts_are_the_targets_own() -> None:
    """The five laws, in random worlds with faults."""
    for seed in range(8):
        spec = spec_of(seed)
        edges = tuple(replace(edge, policy=RulerPolicy) for edge in spec.edges)
        check_laws(run(replace(spec, edges=edges)))


def test_a_world_names_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "metro", METRO)
    document = {
        "seed": 1,
        "tokens": 60,
        "schemes": ["forerun"],
        "link": {"profile": "metro"},
        "device": {"draft_ms": 5.0},
        "verifier": {"step_ms": 30.0},
        "draft": {"mean": 0.85},
    }
    experiment = experiment_from(document)
    assert experiment.world.link.rtt == METRO.rtt
    (result,) = run_scheme("forerun", experiment.world)
    assert result.tokens
