"""What must be true of everything that deploy/ puts into a cluster: rules over rendered objects.

`RULES` has them all by name. Each looks at one overlay and yields a sentence for whatever it finds wrong; the
tests hold every rule to every overlay, and to a spoiled one that it must complain of.
"""

from __future__ import annotations

from tools.deploy_rules import cluster, containers, network, observing, pods
from tools.deploy_rules.view import Rule

RULES: dict[str, Rule] = {
    rule.__name__: rule for module in (cluster, pods, containers, network, observing) for rule in module.RULES
}
