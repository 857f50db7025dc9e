"""Laws of the choice among verifiers: near ones first, sticky, and no session moves for another's sake."""

import pytest

from edge_client.core.verifier_choice import (
    FIRST_DEMERIT,
    LONGEST_DEMERIT,
    NO_DRAFT,
    Demerits,
    DraftSkill,
    VerifierCandidate,
    best,
    choose,
    common_target,
    key_of,
    pause,
    target_name,
    token_time,
)

SESSIONS = tuple(f"session-{number}" for number in range(600))
THREE = tuple(VerifierCandidate(f"10.0.0.{number}:50051", rtt=0.010) for number in (1, 2, 3))


def homes(candidates: tuple[VerifierCandidate, ...]) -> dict[str, str]:
    found = {session: choose(session, candidates, ()) for session in SESSIONS}
    return {session: each.name for session, each in found.items() if each is not None}


def name_of(session: str, *candidates: VerifierCandidate, passed_over: tuple[str, ...] = ()) -> str:
    found = choose(session, candidates, passed_over)
    assert found is not None
    return found.name


def test_equals_share_the_sessions_evenly_and_each_keeps_its_own() -> None:
    first, again = homes(THREE), homes(THREE[::-1])
    assert first == again, "the order in which they are named does not matter"
    counts = [list(first.values()).count(each.name) for each in THREE]
    assert min(counts) > 160
    assert sum(counts) == 600


def test_a_verifier_that_goes_moves_its_own_sessions_only() -> None:
    before, after = homes(THREE), homes(THREE[:2])
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert {before[session] for session in moved} == {THREE[2].name}
    assert len({after[session] for session in moved}) == 2, "and they do not all go to the same"


def test_a_verifier_that_comes_takes_its_share_from_all() -> None:
    before, after = homes(THREE[:2]), homes(THREE)
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert {after[session] for session in moved} == {THREE[2].name}
    assert {before[session] for session in moved} == {each.name for each in THREE[:2]}
    assert 160 < len(moved) < 240


@pytest.mark.parametrize(
    ("rtts", "near"),
    [
        ((0.001, 0.011, 0.0111), 2),  # ten milliseconds are nothing
        ((0.100, 0.125, 0.126), 2),  # nor is a quarter
        ((0.040, 0.050, 0.0501), 2),
        ((0.050, None, 0.200), 1),  # who was never measured is not near
        ((None, None, None), 3),
    ],
)
def test_those_as_near_as_the_nearest_are_equals(rtts: tuple[float | None, ...], near: int) -> None:
    candidates = [VerifierCandidate(f"{number}", rtt=rtt) for number, rtt in enumerate(rtts)]
    for skill in (NO_DRAFT, DraftSkill()):
        assert [each.name for each in best(candidates, skill)] == [f"{number}" for number in range(near)]


@pytest.mark.parametrize("skill", [NO_DRAFT, DraftSkill(), DraftSkill(0.5), DraftSkill(0.85)])
def test_a_saturated_near_verifier_loses_to_an_idle_one_that_is_farther(skill: DraftSkill) -> None:
    near = VerifierCandidate("near", rtt=0.010, turn=0.120)
    idle = VerifierCandidate("idle", rtt=0.030, turn=0.030)
    unknown = VerifierCandidate("unknown", rtt=0.030)  # counts as a usual one
    assert {choose(session, (near, idle), (), skill) for session in SESSIONS} == {idle}
    assert {choose(session, (near, unknown), (), skill) for session in SESSIONS} == {unknown}


def test_a_verifier_that_is_a_little_busier_keeps_its_sessions() -> None:
    """A text that moves has its prompt read anew, so loads of every day move none."""
    idle = tuple(VerifierCandidate(each.name, rtt=each.rtt, turn=0.030) for each in THREE)
    for turn in (0.025, 0.040):
        busier = (VerifierCandidate(THREE[0].name, rtt=0.010, turn=turn), *idle[1:])
        assert homes(busier) == homes(idle)
    saturated = (VerifierCandidate(THREE[0].name, rtt=0.010, turn=0.090), *idle[1:])
    before, after = homes(idle), homes(saturated)
    left = {home for session, home in before.items() if after[session] != home}
    assert left == {THREE[0].name}, "others stay where they are"


def test_a_distant_verifier_is_worth_less_to_drafts_than_to_streaming() -> None:
    """Streaming pays for the distance once, drafts at each miss."""
    far, slow = VerifierCandidate("far", rtt=0.3, turn=0.03), VerifierCandidate("slow", rtt=0.01, turn=0.06)
    assert name_of("s", far, slow) == "far"
    assert choose("s", (far, slow), (), DraftSkill(0.8, 0.005)) == slow


def test_the_time_of_a_token_rises_with_round_trip_and_turn_and_never_exceeds_the_turn() -> None:
    skill = DraftSkill(0.8, 0.005)
    times = [token_time(rtt, 0.03, skill) for rtt in (0.0, 0.01, 0.1, 1.0, 100.0)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(0.03)
    turns = [token_time(0.05, turn, skill) for turn in (0.01, 0.03, 0.1, 1.0)]
    assert turns == sorted(turns)
    assert token_time(0.05, 0.03, NO_DRAFT) == pytest.approx(0.03)
    assert token_time(0.0, 0.03, DraftSkill(0.8, 0.05)) == pytest.approx(0.03), "the draft is too slow"


def test_a_far_one_is_taken_only_where_no_near_one_is_ready() -> None:
    near, far = VerifierCandidate("near", rtt=0.01), VerifierCandidate("far", rtt=0.2)
    assert {name_of(session, near, far) for session in SESSIONS} == {"near"}
    gone = VerifierCandidate("near", ready=False, rtt=0.01)
    assert {name_of(session, gone, far) for session in SESSIONS} == {"far"}


def test_one_that_failed_the_session_is_passed_over_while_another_is_there() -> None:
    home = name_of("s", *THREE)
    other = name_of("s", *THREE, passed_over=(home,))
    assert other != home
    everyone = tuple(each.name for each in THREE)
    assert name_of("s", *THREE, passed_over=everyone) == home, "better that than none"


def test_ready_and_just_failed_comes_before_not_ready() -> None:
    failed, silent = VerifierCandidate("failed"), VerifierCandidate("silent", ready=False)
    assert name_of("s", failed, silent, passed_over=("failed",)) == "failed"
    assert name_of("s", silent) == "silent", "the probe may be old; it is tried all the same"
    assert name_of("s", silent, VerifierCandidate("x", ready=False), passed_over=("x",)) == "silent"


def test_a_verifier_that_is_known_to_be_unfit_gets_no_session() -> None:
    other, unknown = VerifierCandidate("other", fits=False), VerifierCandidate("unknown", ready=False)
    assert name_of("s", other, unknown) == "unknown"
    assert choose("s", (other,), ()) is None
    assert choose("s", (), ()) is None


def test_a_demerit_ends_and_doubles_with_failures_in_a_row() -> None:
    own = Demerits()
    lasted = []
    for attempt in range(7):
        now = 1000.0 * attempt
        own.failed("a", now, 0.0)
        lasted.append(next(s for s in (2, 4, 8, 16, 32, 60) if "a" not in own.passed_over(now + s)))
        assert "a" in own.passed_over(now + lasted[-1] - 0.001)
    assert lasted == [2, 4, 8, 16, 32, 60, 60]
    own.forget("a")
    assert own.passed_over(6000.0) == frozenset()
    own.failed("a", 7000.0, 0.0)
    assert own.passed_over(7000.0 + FIRST_DEMERIT) == frozenset(), "text begins the count anew"


def test_a_demerit_lasts_as_long_as_the_verifier_asked_and_no_two_the_same() -> None:
    own = Demerits()
    own.failed("a", 0.0, 0.5, retry_after=8.0)
    own.failed("b", 0.0, 0.9)
    assert own.passed_over(8.999) == {"a"}
    assert own.passed_over(9.0) == frozenset()
    own.failed("c", 0.0, 0.0, retry_after=1e9)
    assert own.passed_over(LONGEST_DEMERIT) == frozenset()


def test_the_turns_of_a_chat_have_one_key_and_other_beginnings_and_devices_have_others() -> None:
    system, turn = tuple(range(50)), tuple(range(100, 300))
    first = key_of("device", system + turn[:60])
    assert key_of("device", system + turn) == first
    others = {
        key_of("device", system + turn[1:]),
        key_of("another", system + turn),
        key_of("device", system),
        key_of("device", (12, 3)),
        key_of("device", (1, 23)),
    }
    assert len({*others, first}) == 6
    assert all(len(each) == 32 for each in others)


@pytest.mark.parametrize(
    ("failures", "idle", "seconds"),
    [
        ((1, 2, 3, 4, 5, 900), (0,), [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]),
        ((0,), (0,), [5.0]),
        ((0,), (1, 2, 3, 4, 5, 900), [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]),
        ((1, 3, 5, 900), (1,), [0.5, 2.0, 8.0, 300.0]),
    ],
)
def test_a_verifier_is_asked_quickly_while_it_is_needed_and_hardly_ever_while_it_is_not(
    failures: tuple[int, ...], idle: tuple[int, ...], seconds: list[float]
) -> None:
    assert [pause(bad, rest, 0.5) for bad in failures for rest in idle] == seconds


@pytest.mark.parametrize(
    ("served", "target"),
    [
        ("", ""),
        ("a", "a"),
        ("a b", "a"),  # the first of equals
        ("b a a", "a"),  # most
        ("a- a- b", "b"),  # b's alone answers
        ("a- b-", "a"),  # none answers
        ("b- a- a-", "a"),
        ("a- a b b", "a"),
        ("b b a", "b"),
        ("b b- a", "b"),
    ],
)
def test_new_texts_are_by_the_target_of_most_verifiers(served: str, target: str) -> None:
    """A minus marks a verifier that does not answer now."""
    assert common_target([(each[0], len(each) == 1) for each in served.split()]) == target


@pytest.mark.parametrize(
    ("told", "name"),
    [("/srv/models/m", "m"), ("./m/", "m"), ("~/m", "m"), ("organisation/m", "organisation/m"), ("m", "m")],
)
def test_folders_of_a_verifiers_machine_make_no_other_target(told: str, name: str) -> None:
    assert target_name(told) == name
