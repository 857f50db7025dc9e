"""Published claims: each asked bound holds, and a job that two claims share runs once."""

from __future__ import annotations

import pytest

from simulator.experiment import Pool
from simulator.published import CLAIMS
from simulator.published.claims import Claim, compare

BOUNDED = [claim for claim in CLAIMS if claim.within is not None]


@pytest.mark.parametrize("claim", BOUNDED, ids=lambda claim: f"{claim.system}, {claim.quantity}")
def test_a_claim_holds_within_its_bound(claim: Claim) -> None:
    (found,) = compare([claim], Pool(1))
    assert found.holds, f"claimed {claim.figure:.4g}, found {found.ours:.4g}"
