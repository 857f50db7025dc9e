"""What a session's speculation tree looks like now, for people who watch it grow."""

from __future__ import annotations

from itertools import islice
from typing import Any

from common.tree import SpeculationTree
from edge_client.core.session import EdgeSession
from edge_client.text import Words

MAX_NODES_SHOWN = 400
"""More than a screen can show apart; the nodes nearest to the tip come first."""


def tree_view(session: EdgeSession, words: Words) -> dict[str, Any]:
    """The nodes below the tip, parents first: `[id, parent, text, log-probability, sent]`."""
    tree = session.tree
    nodes = list(islice(tree.speculative(), MAX_NODES_SHOWN))
    return {
        "position": tree.tip_position - len(session.config.prompt) + 1,
        "tip": [tree.tip.id, _shown(words, tree.tip.token)],
        "nodes": [
            [
                node.id,
                node.parent,
                _shown(words, node.token),
                round(node.logprob, 2),
                node.wire_id > 0,
            ]
            for node in nodes
        ],
        "credit": session.view.credit,
        "sent": session.view.num_sent,
        "rtt_ms": round(session.view.rtt.latest_rtt * 1e3, 1),
    }


def signature(tree: SpeculationTree) -> tuple[int, ...]:
    """Another one whenever the view is."""
    sent = sum(node.wire_id > 0 for node in tree.speculative())
    return (tree.tip.id, tree.num_speculative, sent, max(tree.live, default=0))


def _shown(words: Words, token: int) -> str:
    return words.piece(token).decode("utf-8", "replace")
