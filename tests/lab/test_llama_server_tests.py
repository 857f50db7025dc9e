"""The adapter of llama.cpp's tests of its server: what it adds to requests, and how it counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.tools.llama_server_reasons import UNEXPLAINED
from lab.tools.llama_server_tests import told, translated

SERVER = SimpleNamespace(seed=42, temperature=0.8, n_predict=64, reasoning="off")
OWN = {"seed": 42, "temperature": 0.8, "model": "default"}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"prompt": "a"}, {"prompt": "a", **OWN, "n_predict": 64}),
        ({"prompt": "a", "seed": 1, "max_tokens": 2}, {"prompt": "a", **OWN, "seed": 1, "max_tokens": 2}),
        (
            {"messages": [], "max_tokens": 2},
            {"messages": [], "max_tokens": 2, **OWN, "chat_template_kwargs": {"enable_thinking": False}},
        ),
        ({"input": "a", "model": "b"}, {"input": "a", **OWN}),
        ({"content": "a"}, {"content": "a"}),
        (None, None),
    ],
    ids=str,
)
def test_options_of_the_server_are_fields_of_requests_for_texts(body: Any, sent: Any) -> None:
    assert translated(body, SERVER) == sent


def test_a_failure_for_another_reason_than_the_known_one_is_not_explained() -> None:
    refused = "404: the target only writes texts"
    report = told(
        {
            "test_rerank.py::test_rerank": ("failed", refused),
            "test_rerank.py::test_rerank_top_n": ("failed", "the server ended"),
            "test_basic.py::a": ("passed", ""),
            "test_basic.py::b": ("skipped", "no hub"),
        }
    )
    assert report["counts"] == {"failed": 2, "passed": 1, "skipped": 1}
    assert report["files"]["test_basic.py"] == {"passed": 1, "skipped": 1}
    assert report["skipped"] == {"no hub": ["test_basic.py::b"]}
    assert report["failed"].pop(UNEXPLAINED) == {"test_rerank.py::test_rerank_top_n": "the server ended"}
    assert [*report["failed"].values()] == [{"test_rerank.py::test_rerank": refused}]
