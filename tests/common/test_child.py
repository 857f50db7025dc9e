"""A child process holds up no caller for longer than the caller's patience."""

from pathlib import Path

import pytest

from common.child import ChildProcess, available_memory
from common.errors import CapacityError


def test_a_child_that_reads_nothing_costs_only_the_patience() -> None:
    child = ChildProcess("tests.common.deaf_child", {}, max_line=100, purpose="a test")
    with pytest.raises(CapacityError):
        child.ask({"more than a pipe holds": "x" * (1 << 20)}, 0.2)
    assert not child.is_alive


MIB = 2**20


def machine(root: Path, cgroup: str, groups: dict[str, dict[str, object]]) -> Path:
    """A machine with 1 GiB free, as its files tell."""
    files = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1048576 kB\n", "proc/self/cgroup": cgroup}
    for place, own in groups.items():
        files |= {f"sys/fs/cgroup/{place}/{name}": f"{value}\n" for name, value in own.items()}
    for name, content in files.items():
        (path := root / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("cgroup", "groups", "free"),
    [
        ("0::/\n", {}, 1024),
        ("0::/\n", {"": {"memory.max": "max", "memory.current": 5, "memory.stat": ""}}, 1024),
        (
            "0::/\n",
            {
                "": {
                    "memory.max": 512 * MIB,
                    "memory.current": 300 * MIB,
                    "memory.stat": f"anon 7\ninactive_file {100 * MIB}\nactive_file {10 * MIB}",
                }
            },
            322,
        ),
        (
            "0::/pods/one\n",
            {"pods": {"memory.max": 64 * MIB, "memory.current": 4 * MIB, "memory.stat": ""}},
            60,
        ),
        (
            "8:pids:/\n4:memory:/x\n",
            {
                "memory/x": {
                    "memory.limit_in_bytes": 256 * MIB,
                    "memory.usage_in_bytes": 200 * MIB,
                    "memory.stat": f"total_inactive_file {150 * MIB}",
                }
            },
            206,
        ),
    ],
    ids=["none", "without-a-limit", "container", "of-a-parent", "version-1"],
)
def test_the_free_memory_is_what_control_groups_leave(
    cgroup: str, groups: dict[str, dict[str, object]], free: int, tmp_path: Path
) -> None:
    assert available_memory(machine(tmp_path, cgroup, groups)) == free * MIB


def test_a_full_group_has_no_room_and_is_not_unknown(tmp_path: Path) -> None:
    full = {"memory.max": MIB, "memory.current": MIB, "memory.stat": ""}
    assert available_memory(machine(tmp_path, "0::/\n", {"": full})) == 1
