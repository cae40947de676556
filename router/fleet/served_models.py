"""Reads the meaning of an instance's model names from its model cards."""

from __future__ import annotations

from collections.abc import Sequence

from router.fleet.engine_facts import ModelCard
from router.fleet.instance import ServedModel


def read_cards(cards: Sequence[ModelCard]) -> dict[str, ServedModel]:
    """Return the meaning of each model name of an instance. Base cards with the same root are aliases of the first
    of them, which names the base model. An adapter whose parent is not in the list belongs to the first base model.
    """
    base_of_root: dict[str | None, str] = {}
    served: dict[str, ServedModel] = {}
    for card in cards:
        if card.parent is None:
            base = card.id if card.root is None else base_of_root.setdefault(card.root, card.id)
            served[card.id] = ServedModel(base, None)
    first = next(iter(served.values()), None)
    for card in cards:
        if card.parent is not None and card.id not in served:
            parent = served.get(card.parent, first)
            served[card.id] = ServedModel(parent.base if parent else card.parent, card.id)
    return served
