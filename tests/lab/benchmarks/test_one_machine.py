"""`lab.benchmarks.one_machine`: all write the same texts in turns; the fastest variant counts; who agrees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.benchmarks import one_machine
from lab.benchmarks.one_machine import Contestant, agreement, contest, lines_of, main, standings
from lab.benchmarks.rivals import MachineJob

JOBS = [MachineJob("a", (1,), 8, 0.0, 1), MachineJob("b", (2, 3), 8, 0.0, 1)]


def run(tokens: list[int], ms_per_token: float) -> dict[str, Any]:
    """A text whose tokens came one by one, each by one step of the target."""
    arrivals = [10.0 + ms_per_token * place for place in range(len(tokens))]
    stats = {"target_steps": len(tokens), "evaluated": len(tokens), "proposed": 0, "drafted": 0}
    return {
        "tokens": tokens,
        "arrivals_ms": arrivals,
        "stats": stats,
        "link_bytes_up": 0,
        "link_bytes_down": 0,
    }


RUNS = {
    "transformers": {"": [run([1, 2, 3], 40.0), run([4, 5, 6], 40.0)]},
    "llama_cpp": {"": [run([1, 2, 3], 20.0), run([4, 5, 7], 20.0)]},
    "llama_cpp_draft": {
        "4": [run([1, 2, 3], 15.0), run([4, 5, 7], 15.0)],
        "8": [run([1, 2, 3], 10.0), run([4, 5, 6], 10.0)],
    },
    "transformers_assisted": {"4": [run([1, 2, 3], 30.0), run([4, 5, 6], 30.0)]},
    "forerun_without_draft": {"": [run([1, 2, 3], 41.0), run([4, 5, 6], 41.0)]},
    "forerun": {"": [run([1, 2, 3], 8.0), run([4, 5, 6], 8.0)]},
}


def test_the_fastest_variant_counts_and_all_are_told() -> None:
    row = standings(RUNS, 0.0)["llama_cpp_draft"]
    assert (row["lookahead"], row["ms_per_token"], row["times_the_baseline"]) == ("8", 10.0, 4.0)
    assert row["tried"] == {
        "4": {"ms_per_token": 15.0, "target_steps_per_token": 1.0},
        "8": {"ms_per_token": 10.0, "target_steps_per_token": 1.0},
    }
    assert standings(RUNS, 0.0)["transformers"]["times_the_baseline"] == 1.0
    assert not [key for key in row if key.startswith("bytes")]  # there is no link to compare


def test_greedy_text_is_everyones_and_no_variant_hides_its_own() -> None:
    assert agreement(RUNS, "transformers", 0.0) == {"reference": None, "identical": None}
    assert agreement(RUNS, "forerun", 0.0)["identical"] is True
    found = agreement(RUNS, "llama_cpp_draft", 0.0)
    assert (found["identical"], found["texts_identical"], found["texts_compared"]) == (False, 3, 4)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("transformers", None),
        ("transformers_assisted", None),
        ("transformers_prompt_lookup", None),
        ("llama_cpp", None),
        ("llama_cpp_draft", "llama_cpp"),
        ("forerun_without_draft", None),
        ("forerun", "forerun_without_draft"),
    ],
)
def test_sampled_text_is_compared_where_the_seed_promises_it(name: str, reference: str | None) -> None:
    assert one_machine.reference_of(name, 0.8) == reference


async def test_all_write_every_text_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, str, int, float]] = []

    def contestant(name: str, variant: str) -> Contestant:
        async def write(job: MachineJob) -> dict[str, Any]:
            seen.append((name + variant, job.text, job.max_tokens, job.temperature))
            return run([1, 2], 5.0)

        return Contestant(name, variant, write)

    field = [contestant("transformers", ""), contestant("transformers_assisted", "4")]
    result = await contest(field, JOBS, 0.8)
    assert [entry[:2] for entry in seen[2:]] == [
        ("transformers", "a"),
        ("transformers_assisted4", "a"),
        ("transformers", "b"),
        ("transformers_assisted4", "b"),
    ]
    assert {entry[2:] for entry in seen[2:]} == {(8, 0.8)}
    assert list(result["contestants"]) == ["transformers", "transformers_assisted"]
    assert capsys.readouterr().out == ""  # progress is no result


def test_a_table_has_a_line_a_contestant() -> None:
    result = {"temperature": 0.0, "contestants": standings(RUNS, 0.0)}
    lines = list(lines_of({"settings": {"step_floor": 30.0}, "results": [result]}))
    assert len(lines) == 2 + len(RUNS)
    (line,) = (line for line in lines if line.strip().startswith("llama_cpp_draft"))
    assert line.split() == ["llama_cpp_draft", "8", "10", "4", "10", "1", "1", "3", "4"]


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.llama
@pytest.mark.grpc
def test_all_write_the_same_greedy_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--temperature", "0", "--step-floor", "0", "--num-prompts", "1", "--max-tokens", "8"]
    assert main([*words, "--lookahead", "3", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    found = result["contestants"]
    assert len(found) == 8
    assert all(row["identical"] for row in found.values() if row["reference"])
