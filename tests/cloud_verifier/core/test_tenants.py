"""Laws of the tenants' ledger."""

from __future__ import annotations

from cloud_verifier.core.tenants import Tenants


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
