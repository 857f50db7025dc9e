"""A flood takes no place from what matters, and no more memory than it may."""

from __future__ import annotations

from edge_client.core.fleet.inbox import MAX_COMMANDS, MAX_VERIFIERS, Inbox
from edge_client.core.fleet.names import DeviceTopics
from edge_client.core.fleet.record import MAX_PAYLOAD

TOPICS = DeviceTopics("acme", "pi-1")


def drained(inbox: Inbox) -> list[tuple[str, bytes]]:
    return list(iter(inbox.take, None))


def test_the_newest_payload_of_a_topic_replaces_the_older_one() -> None:
    it = Inbox(TOPICS)
    it.put(TOPICS.desired, b"old")
    it.put(TOPICS.shared.kill, b"kill")
    it.put(TOPICS.desired, b"new")
    assert drained(it) == [(TOPICS.desired, b"new"), (TOPICS.shared.kill, b"kill")]
    assert it.counts.replaced == 1


def test_twenty_thousand_strangers_do_not_push_the_configuration_out() -> None:
    it = Inbox(TOPICS)
    for number in range(20_000):
        it.put(TOPICS.command(f"c{number}"), b"x")
        it.put(TOPICS.shared.verifier(f"v{number}"), b"x")
        it.put(f"forerun/v1/acme/other-{number}/status", b"x")
    it.put(TOPICS.desired, b"wanted")
    assert len(it) == MAX_COMMANDS + MAX_VERIFIERS + 1
    assert (TOPICS.desired, b"wanted") in drained(it)
    counts = it.counts
    assert (counts.crowded, counts.unexpected) == (40_000 - MAX_COMMANDS - MAX_VERIFIERS, 20_000)
    it.put(TOPICS.command("again"), b"x")  # there is room again
    assert len(it) == 1


def test_a_flooded_topic_starves_no_other() -> None:
    it = Inbox(TOPICS)
    it.put(TOPICS.status, b"1")
    it.put(TOPICS.desired, b"wanted")
    seen = []
    for _ in range(2):
        found = it.take()
        assert found is not None
        seen.append(found[0])
        it.put(TOPICS.status, b"again")
    assert seen == [TOPICS.status, TOPICS.desired]


def test_what_is_too_large_is_counted_and_not_kept() -> None:
    it = Inbox(TOPICS)
    it.put(TOPICS.desired, bytes(MAX_PAYLOAD + 1))
    assert (len(it), it.counts.oversize) == (0, 1)
