"""Ranks that serve one target compute in step, and whatever happens to one ends the other with a reason."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepItem
from cloud_verifier.engine.parallel import decode_items, encode_items, join
from common.errors import LocalError, UserError
from common.sampling import SamplingParams
from tests import wording

pytestmark = [pytest.mark.torch, pytest.mark.parallel]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """Codes, last words and the follower's steps of every scenario of `ranks.py`, run side by side."""
    words = [sys.executable, "-m", "tests.cloud_verifier.engine.ranks"]
    # Torch warns where the machine's own address has no name, and these processes' words are looked at.
    quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    run = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=180, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_the_other_ranks_compute_each_step_and_leave_at_the_end(outcomes: dict[str, Any]) -> None:
    """They also outlive a silence longer than their patience: rank 0 says that it is alive."""
    steps = outcomes["steps"]
    assert steps["codes"] == [0, 0]
    assert steps["words"] == ["", ""]
    assert steps["steps"] == [[7, [1, 2, 3], [-1, 0, 1]], [7, [40], [-1]]]  # not the one that was refused


KILLED = 9
BY_SIGNAL = -9
TIMEOUT = "Timeout (0:00:04)!"
"""What faulthandler prints before the stacks of a process that waits in vain."""


@pytest.mark.parametrize(
    ("scenario", "codes", "leader_says", "follower_says"),
    [
        ("leader_dies", [KILLED, 1], "", "rank 0 is gone, and rank 1 ends with it: "),
        ("leader_dies_in_a_step", [KILLED, 1], "", "rank 1 could not compute a step, and the group ends: "),
        ("leader_hangs", [BY_SIGNAL, 1], "", TIMEOUT),
        (
            "leader_fails_in_a_step", [1, 1],
            "the group of 2 ranks is lost: no memory for a step",
            "rank 1 could not compute a step, and the group ends: ",
        ),
        ("follower_dies", [1, KILLED], "the group of 2 ranks is lost: ", ""),
        (
            "follower_fails_in_a_step", [1, 1],
            "the group of 2 ranks is lost: ",
            "rank 1 could not compute a step, and the group ends: no memory on this rank",
        ),
        (
            "follower_hangs_in_a_step", [1, BY_SIGNAL],
            TIMEOUT, "",
        ),
    ],
)  # fmt: skip
def test_a_failure_ends_the_group_with_the_reason(
    scenario: str, codes: list[int], leader_says: str, follower_says: str, outcomes: dict[str, Any]
) -> None:
    found = outcomes[scenario]
    assert found["codes"] == codes
    for words, expected in zip(found["words"], (leader_says, follower_says), strict=True):
        assert words.startswith(expected if expected in ("", TIMEOUT) else f"forerun: {expected}")
        assert bool(words) == bool(expected)
        assert "GLHF" not in words


@pytest.fixture(scope="module")
def divided() -> dict[str, dict[str, Any]]:
    """What two processes find of a family in half precision, and of one with latent attention and experts."""
    names = ["Llama 3@bfloat16", "DeepSeek V2"]
    words = [sys.executable, "-m", "tests.cloud_verifier.engine.divided", *names]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    return {one["family"]: one for one in found}


@pytest.mark.parametrize("name", ["Llama 3", "DeepSeek V2"])
def test_a_divided_family_passes_the_probe_and_computes_the_same(
    name: str, divided: dict[str, dict[str, Any]]
) -> None:
    found = divided[name]
    half = found["dtype"] == "bfloat16"
    assert found["codes"] == [0, 0]
    assert found["worst"] < 1e-5
    assert found["from_one_process"] < (0.05 if half else 1e-5)
    assert found["weights"] < 0.7
    assert found["logits"] == "torch.float32"
    assert found["head"] == found["dtype"]  # no copy in float32, which would be read at every step
    assert found["no_rows"][:2] == [1, 0]
    assert found["as_wrapped"]  # every bit as by transformers' own wrappers
    assert found["num_wrapped"][0] == 0 < found["num_wrapped"][1]
    assert (found["exactness"] is not None) == half


def test_a_process_that_torchrun_did_not_start_is_told_how() -> None:
    with wording.raises(UserError):
        join("cpu", 1.0)


# A step travels between ranks as integers, unchanged; garbage is refused.

ARRAYS = ("prefix_slots", "tokens", "positions", "parents", "slots", "outputs")
numbers = st.integers(-1, 2**31 - 1)


@st.composite
def items(draw: Any) -> StepItem:
    """Any integers: what they mean is checked elsewhere."""
    prefix, rows, outputs = draw(st.tuples(*[st.integers(0, 6)] * 3))
    lengths = {"prefix_slots": prefix, "outputs": outputs}
    arrays: dict[str, Any] = {
        name: np.array(draw(st.lists(numbers, min_size=count, max_size=count)), dtype=np.int32)
        for name, count in ((name, lengths.get(name, rows)) for name in ARRAYS)
    }
    return StepItem(session=draw(st.integers(0, 2**31 - 1)), sampling=SamplingParams(seed=9), **arrays)


@given(st.lists(items(), max_size=4))
def test_items_arrive_as_they_were_without_their_sampling(sent: list[StepItem]) -> None:
    line = encode_items(sent)
    assert line.dtype == np.int32
    received = decode_items(line).items
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        assert after.session == before.session
        assert after.sampling == SamplingParams()
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@given(st.lists(items(), min_size=1, max_size=3), st.data())
def test_a_line_cut_short_or_too_long_is_refused(sent: list[StepItem], data: Any) -> None:
    line = encode_items(sent)
    cut = line[: data.draw(st.integers(1, len(line) - 1))]
    with pytest.raises(LocalError, match="ends before"):
        decode_items(cut)
    with pytest.raises(LocalError, match="goes on after"):
        decode_items(np.append(line, np.int32(0)))
