"""A late will never hides a newer birth: readers ignore it, and the device tells its birth again."""

from __future__ import annotations

from edge_client.core.fleet.payloads import Mode, Presence, State
from edge_client.core.fleet.presence import AGAIN_TIME, About, OwnPresence, Roster
from edge_client.core.fleet.record import encode


def birth(epoch: int, at: float = 100.0, mode: Mode = Mode.IDLE) -> Presence:
    return Presence(state=State.ONLINE, epoch=epoch, at=at, mode=mode)


def death(epoch: int, at: float = 100.0) -> Presence:
    return Presence(state=State.OFFLINE, epoch=epoch, at=at)


def state_of(roster: Roster) -> State:
    return dict(roster)["pi-1"].state


def test_a_reader_takes_the_death_of_the_newest_birth_and_of_no_older_one() -> None:
    roster = Roster()
    assert roster.on_presence("pi-1", birth(7))
    assert not roster.on_presence("pi-1", death(6))
    assert state_of(roster) is State.ONLINE
    assert roster.on_presence("pi-1", death(7))
    assert state_of(roster) is State.OFFLINE


def test_a_reader_that_comes_late_learns_from_the_birth_that_is_told_again() -> None:
    roster = Roster()
    assert roster.on_presence("pi-1", death(6))
    assert roster.on_presence("pi-1", birth(7))
    assert state_of(roster) is State.ONLINE


def test_the_same_again_is_no_news_and_an_old_birth_played_again_is_none_either() -> None:
    roster = Roster()
    roster.on_presence("pi-1", birth(7, at=100.0))
    assert not roster.on_presence("pi-1", birth(7, at=100.0))
    assert not roster.on_presence("pi-1", birth(5, at=50.0))
    assert roster.on_presence("pi-1", birth(7, at=120.0, mode=Mode.AHEAD))


def test_a_device_that_lost_its_state_and_counts_anew_is_seen() -> None:
    roster = Roster()
    roster.on_presence("pi-1", birth(7, at=100.0))
    assert roster.on_presence("pi-1", birth(1, at=200.0))
    assert roster.on_presence("pi-1", death(1, at=200.0))


def device(epoch: int = 7) -> OwnPresence:
    own = OwnPresence()
    own.on_about(About(version="1", draft="demo", mode=Mode.AHEAD))
    own.begin(epoch, wall=100.0)
    return own


def test_the_will_and_the_birth_have_one_epoch() -> None:
    own = OwnPresence()
    will = own.begin(7, wall=100.0)
    told = own.birth(now=1.0, wall=101.0)
    assert (will.state, will.epoch, told.state, told.epoch) == (State.OFFLINE, 7, State.ONLINE, 7)


def test_a_device_that_hears_its_own_birth_is_content() -> None:
    own = device()
    told = own.birth(now=1.0, wall=101.0)
    assert not own.on_status(encode(told))
    assert own.birth_at is None


def test_a_device_that_hears_a_late_will_is_born_again_but_not_too_often() -> None:
    own = device()
    own.birth(now=1.0, wall=101.0)
    for payload in (encode(death(6)), b"", b"{}", encode(birth(7, at=55.0))):
        assert not own.on_status(payload)
        assert own.birth_at == 1.0 + AGAIN_TIME
    own.birth(now=1.0 + AGAIN_TIME, wall=106.0)
    assert own.birth_at is None


def test_a_birth_or_death_under_our_name_that_is_not_ours_is_told() -> None:
    own = device(epoch=7)
    own.begin(9, wall=100.0)
    own.birth(now=1.0, wall=101.0)
    assert own.on_status(encode(birth(8)))
    assert own.on_status(encode(birth(10)))
    assert not own.on_status(encode(birth(7)))  # ours, of the connection before
    assert not own.on_status(encode(birth(6)))  # of the process before
    assert own.on_status(encode(death(8)))
    assert not own.on_status(encode(death(7)))


def test_what_changes_is_told_and_what_does_not_is_not() -> None:
    own = device()
    own.birth(now=1.0, wall=101.0)
    own.on_about(About(version="1", draft="demo", mode=Mode.AHEAD))
    before = own.birth_at
    assert before is None
    own.on_about(About(version="1", draft="demo", mode=Mode.IDLE))
    assert own.birth_at == 1.0 + AGAIN_TIME
    assert own.birth(now=6.0, wall=106.0).mode is Mode.IDLE


def test_a_sentence_for_a_name_leaves_as_a_hash() -> None:
    own = OwnPresence()
    own.on_about(About(draft="/home/ann/secret love letters.gguf"))
    own.begin(1, 0.0)
    assert b"love" not in encode(own.birth(0.0, 0.0))
