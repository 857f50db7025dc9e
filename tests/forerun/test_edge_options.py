"""What `forerun verify` and the edge may be told of privacy."""

from __future__ import annotations

import pytest

from common.errors import UserError
from edge_client.settings import load_config
from forerun.cli import build_parser
from tests.cloud_verifier.configured import configured

pytestmark = pytest.mark.grpc

VERIFY = ["verify", "--model", "x"]


def test_messages_are_padded_unless_somebody_says_otherwise() -> None:
    assert configured().server.privacy == "padded"
    assert load_config({}, {}, []).config.verifier.privacy == "padded"


@pytest.mark.parametrize("level", ["tight", "strict"])
def test_a_level_that_is_none_is_refused_wherever_it_stands(level: str) -> None:
    with pytest.raises(SystemExit):
        build_parser("verify").parse_args([*VERIFY, "--privacy", level])
    with pytest.raises(UserError, match=r"verifier.privacy .*off or padded"):
        load_config({}, {"FORERUN_EDGE_VERIFIER_PRIVACY": level}, [])
