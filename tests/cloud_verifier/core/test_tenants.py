"""Laws of the tenants' ledger."""

from __future__ import annotations

from cloud_verifier.core.tenants import MAX_AWAY, MAX_TABLES, NgramTables, Tenants


def test_a_tenant_is_here_while_it_has_a_session() -> None:
    tenants = Tenants()
    tenants.enter("a", 50)
    tenants.enter("a", 70)
    tenants.hold("a", 10)
    assert (tenants.get("a").num_sessions, tenants.get("a").num_slots, len(tenants)) == (2, 130, 1)
    tenants.leave("a", 50)
    tenants.leave("a", 80)
    assert (tenants.get("a").num_sessions, len(tenants)) == (0, 0)


def test_rows_count_whether_or_not_they_came_to_be_text() -> None:
    tenants = Tenants()
    tenants.enter("a", 1)
    tenants.charge("a", 9, 7)
    assert (tenants.get("a").service, tenants.get("a").num_wasted) == (9, 7)
    tenants.charge("gone", 1, 1)
    assert len(tenants) == 1


def test_who_comes_starts_level_with_the_least_served() -> None:
    tenants = Tenants()
    tenants.enter("a", 1)
    tenants.enter("b", 1)
    tenants.charge("a", 100, 0)
    tenants.charge("b", 30, 0)
    tenants.enter("c", 1)
    assert tenants.get("c").service == 30
    tenants.leave("b", 1)
    tenants.enter("b", 1)
    assert tenants.get("b").service == 30, "being away has earned it nothing"


def test_who_has_had_much_has_had_it_when_it_comes_again() -> None:
    tenants = Tenants()
    tenants.enter("greedy", 1)
    tenants.enter("modest", 1)
    tenants.charge("greedy", 100, 90)
    tenants.charge("modest", 10, 0)
    tenants.leave("greedy", 1)
    assert (tenants.get("greedy").service, tenants.get("greedy").num_sessions) == (100, 0)
    tenants.enter("greedy", 1)
    assert tenants.get("greedy").service == 100, "a session for every text would pay for none"


def test_who_comes_to_an_empty_verifier_starts_level_with_the_last_that_left() -> None:
    tenants = Tenants()
    tenants.enter("old", 1)
    tenants.charge("old", 1000, 0)
    tenants.leave("old", 1)
    tenants.enter("new", 1)
    assert tenants.get("new").service == tenants.get("old").service == 1000


def test_what_is_remembered_of_tenants_that_are_away_is_bounded() -> None:
    tenants = Tenants()
    tenants.enter("always", 1)
    for number in range(MAX_AWAY + 1):
        tenants.enter(f"t{number}", 1)
        tenants.charge(f"t{number}", 5, 0)
        tenants.leave(f"t{number}", 1)
    assert (tenants.get("t0").service, tenants.get("t1").service, len(tenants)) == (0, 5, 1)


def test_tables_of_texts_have_a_bound_and_one_tenant_each() -> None:
    none, tables = NgramTables(0), NgramTables(5)
    assert none.of("a") is None
    first = tables.of("a")
    assert tables.of("b") is not first
    assert tables.of("a") is first
    for number in range(MAX_TABLES - 1):
        tables.of(f"tenant {number}")
    assert tables.of("a") is first, "b was unused for longer"
    for number in range(MAX_TABLES):
        tables.of(f"other {number}")
    assert tables.of("a") is not first
