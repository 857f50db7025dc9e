"""Law: the size that is computed is the size of what is encoded."""

from __future__ import annotations

import pytest
from hypothesis import given

from common.messages import ClientMessage, Commit, Propose, ServerMessage
from common.rpc.encode import encode_request, encode_response
from common.rpc.size import request_size, response_size
from tests.common.rpc.test_codec import REQUEST, RESPONSE


@given(REQUEST)
def test_a_request_is_as_long_as_its_encoding(message: ClientMessage) -> None:
    assert request_size(message) == encode_request(message).ByteSize()


@given(RESPONSE)
def test_a_response_is_as_long_as_its_encoding(message: ServerMessage) -> None:
    assert response_size(message) == encode_response(message).ByteSize()


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**28 - 1, 2**28, 2**31 - 1])
def test_every_length_of_a_number_is_counted(number: int) -> None:
    propose = Propose((number, 1), bytes(2), (1, 1), anchor=number, seen_advance=number)
    commit = Commit(number, (1, number), server_made=2, echo=number, hold_us=number, credit=number)
    assert request_size(propose) == encode_request(propose).ByteSize()
    assert response_size(commit) == encode_response(commit).ByteSize()


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 256])
def test_every_length_of_a_list_is_counted(count: int) -> None:
    propose = Propose((5,) * count, bytes(count), (1,) * count)
    assert request_size(propose) == encode_request(propose).ByteSize()


def test_a_time_that_saturates_is_as_long_as_what_is_sent() -> None:
    commit = Commit(1, (1,), hold_us=2**40, queue_us=2**33, compute_us=2**32)
    assert response_size(commit) == encode_response(commit).ByteSize()
