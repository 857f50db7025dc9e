"""Chooses among a daemon's pairs of a draft model and verifiers by the model that a request names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edge_client.api.endpoints import DEFAULT, FIRST_WORD, LATEST, TextEndpoints, is_default, unknown_model
from edge_client.texts.text_request import Writer
from edge_client.texts.text_service import TextService


class Pairs:
    """Holds the endpoints of all pairs, the default first.

    A name of several pairs means the first of them; `PAIR/NAME` names the other pairs' models. A pair's own
    name goes before the models of all pairs.
    """

    def __init__(self, *pairs: TextEndpoints) -> None:
        self._by_name = {each.pair: each for each in pairs}
        self.first = pairs[0]
        self.admission = self.first.texts.admission  # of all pairs

    def __iter__(self) -> Iterator[TextEndpoints]:
        return iter(self._by_name.values())

    @property
    def texts(self) -> Mapping[str, TextService]:
        return {name: each.texts for name, each in self._by_name.items()}

    def models(self) -> dict[str, tuple[TextEndpoints, Writer]]:
        """Return each model of each pair once, by a name that chooses it, and `DEFAULT` last."""
        models = dict[str, tuple[TextEndpoints, Writer]]()
        for each in self:
            for name, writer in each.models().items():
                chooses = self._find(name) is each and each.find(name) == (name, writer)
                models[name if chooses else f"{each.pair}/{name}"] = each, writer
        return models | {DEFAULT: next(iter(models.values()))}

    async def of(self, body: Mapping[str, Any]) -> TextEndpoints:
        """Return the pair of a request's `model`. Raises `ApiError` for an unknown model."""
        model = body.get("model", "")
        if len(self._by_name) == 1 or not isinstance(model, str):
            return self.first
        if (pair := self._find(model)) is None and is_default(model):
            return self.first
        if pair is None:
            await self.heard()
            pair = self._find(model)
        if pair is None:
            raise unknown_model(model, self.models())
        return pair

    def _find(self, model: str) -> TextEndpoints | None:
        """Return the pair of a model. Its own name comes first, then `PAIR/MODEL`, then what a pair lists."""
        name = model.removesuffix(LATEST)
        named = (self._by_name.get(each) for each in (name, name.partition("/")[0]))
        listing = (each for each in (*named, *self) if each is not None and each.lists(name))
        having = (each for each in self if each.find(name) is not None)
        return next(listing, None) or next(having, None)

    async def heard(self) -> None:
        """Wait for answers of the verifiers that are not old. They hold the targets' names and contexts."""
        verifiers: Sequence[Any] = [each.texts.verifiers for each in self]
        await asyncio.gather(*(each.heard(FIRST_WORD) for each in verifiers))
