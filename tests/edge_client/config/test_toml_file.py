"""On which line of a file a setting stands."""

from __future__ import annotations

import pytest

from edge_client.config.toml_file import line_of

TEXT = """\
# draft.seats = 1
log.level = "debug"
[draft]
seats = 2
  "context" = 3
[ api ]
seats = 4
text = '''
'''
"""


@pytest.mark.parametrize(
    ("section", "key", "line"),
    [
        ("draft", "seats", 4),
        ("draft", "context", 5),
        ("api", "seats", 7),
        ("draft", "", 3),
        ("api", "", 6),
        ("log", "level", 2),
        ("log", "", 2),
        ("draft", "none", 0),
        ("fleet", "", 0),
    ],
)
def test_a_key_is_found_in_its_section(section: str, key: str, line: int) -> None:
    assert line_of(TEXT, section, key) == line
