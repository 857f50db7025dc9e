"""The tiny model of the tests of drafts."""

from tests.edge_client.draft.conftest import model

__all__ = ["model"]
