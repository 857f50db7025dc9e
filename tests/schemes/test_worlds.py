"""The five laws hold in random worlds for the published growth policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_client.core.policies import offered, policy_named
from tests.worlds.seeds import check_laws, run, spec_of


@pytest.mark.parametrize("policy", offered())
def test_laws_hold_for_published_policies(policy: str) -> None:
    for seed in range(8):
        spec = spec_of(seed)
        edges = tuple(replace(edge, policy=policy_named(policy)) for edge in spec.edges)
        check_laws(run(replace(spec, edges=edges)))
