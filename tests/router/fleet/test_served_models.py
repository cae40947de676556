"""What model names mean, by the cards that an instance lists."""

from __future__ import annotations

import pytest

from router.fleet.engine_facts import ModelCard
from router.fleet.instance import ServedModel
from router.fleet.served_models import read_cards
from tests.router.fleet.test_fleet import ALIAS, LORA, M


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (
            [ModelCard("x", None, None, None), ModelCard("y", None, None, None)],
            {"x": ServedModel("x", None), "y": ServedModel("y", None)},
        ),
        ([LORA, M], {"m": ServedModel("m", None), "lora-a": ServedModel("m", "lora-a")}),
        ([ALIAS, M, LORA], {"m-alias": ServedModel("m-alias", None), "m": ServedModel("m-alias", None)}
         | {"lora-a": ServedModel("m-alias", "lora-a")}),
        (
            [M, ModelCard("lora-b", None, "unlisted", None)],
            {"m": ServedModel("m", None), "lora-b": ServedModel("m", "lora-b")},
        ),
        ([ModelCard("lora-b", None, "unlisted", None)], {"lora-b": ServedModel("unlisted", "lora-b")}),
        ([M, ModelCard("m", "/loras/m", "m", None)], {"m": ServedModel("m", None)}),
        ([], {}),
    ],
)  # fmt: skip
def test_read_cards(cards: list[ModelCard], expected: dict[str, ServedModel]) -> None:
    assert read_cards(cards) == expected
