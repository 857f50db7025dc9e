"""What `forerun verify` serves for those who watch it: nothing unless it was asked for."""

from cloud_verifier.server.serving import watched
from cloud_verifier.settings import OperationsSection
from tests.cloud_verifier.configured import configured
from tests.cloud_verifier.telemetry.desk import make
from tests.cloud_verifier.telemetry.test_http_server import get


def operations(*words: str) -> OperationsSection:
    return configured(*words).operations


async def test_nothing_listens_unless_asked_for() -> None:
    async with watched(operations(), make()) as found:
        assert found == {}


async def test_what_was_asked_for_answers_on_one_port() -> None:
    async with watched(operations("--http", "127.0.0.1:0"), make()) as found:
        port = int(found["http"].rpartition(":")[2])
        answers = [await get(port, path) for path in ("/metrics", "/livez", "/readyz", "/sessions")]
    assert [answer.status for answer in answers] == [200] * 4
