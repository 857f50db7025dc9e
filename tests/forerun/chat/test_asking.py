"""What is asked: only what was given, and always a seed."""

from __future__ import annotations

import argparse

import pytest

from common.errors import UserError
from common.sampling import MAX_SEED
from forerun.chat.asking import Asking, add_asking, add_daemon, asking_from


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_asking(parser, max_tokens=None)
    add_daemon(parser)
    return parser.parse_args(words)


def test_what_was_not_given_is_the_daemons_own() -> None:
    body = Asking().body({"prompt": "a"})
    assert set(body) == {"prompt", "model", "seed", "stream", "forerun"}
    assert body["forerun"] == {"origins": True, "revise": False, "speculate": True}


def test_without_a_seed_each_answer_has_another() -> None:
    seeds = {Asking().body({})["seed"] for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < MAX_SEED for seed in seeds)


def test_options_become_the_request() -> None:
    options = parsed("--seed", "7", "--temperature", "0", "--max-tokens", "5", "--no-speculation")
    body = asking_from(options, revise=True, name="chat").body({})
    assert (body["seed"], body["temperature"], body["max_tokens"]) == (7, 0.0, 5)
    assert body["user"].startswith("chat-")
    assert body["forerun"] == {"origins": True, "revise": True, "speculate": False}


def test_no_tokens_are_no_answer() -> None:
    with pytest.raises(UserError, match="--max-tokens is 0; it must be 1 or more"):
        asking_from(parsed("--max-tokens", "0"), revise=False, name="chat")
