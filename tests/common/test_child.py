"""A child process holds up no caller for longer than the caller's patience."""

from __future__ import annotations

import pytest

from common.child import ChildProcess
from common.errors import CapacityError


def test_a_child_that_reads_nothing_costs_only_the_patience() -> None:
    child = ChildProcess("tests.common.deaf_child", {}, max_line=100, purpose="a test")
    with pytest.raises(CapacityError):
        child.ask({"more than a pipe holds": "x" * (1 << 20)}, 0.2)
    assert not child.is_alive
