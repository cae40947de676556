"""Where the stages of features run among those of the core."""

from __future__ import annotations

from typing import Any

from router.request.reading import end_reading, find_response, read_request, resolve_model, tokenize
from router.request.stages import FeaturePath, build_request_path

STAGES = ("arrived", "read", "named", "resolved", "tokenized", "admitted", "ready")


def a_feature(name: str, *parts: str) -> FeaturePath:
    """A feature whose parts are told apart by their names."""
    named: dict[str, Any] = {part: f"{name}.{part}" for part in parts}
    return FeaturePath(**named)


def test_every_place_lies_where_its_name_says() -> None:
    path = build_request_path([a_feature("a", *STAGES)])
    assert path.stages == (
        *("a.arrived", read_request, "a.read", end_reading, "a.named", resolve_model),
        *("a.resolved", tokenize, "a.tokenized", "a.admitted", "a.ready"),
    )
    assert path.stored == ("a.arrived", find_response, "a.ready")
    assert path.again == (resolve_model, tokenize, "a.admitted")


def test_the_order_of_features_counts_and_cards_pass_them_backwards() -> None:
    parts = ("tokenized", "recovery", "on_refusal", "filter_cards")
    path = build_request_path([a_feature("a", *parts), FeaturePath(), a_feature("b", *parts)])
    assert path.stages == (read_request, end_reading, resolve_model, tokenize, "a.tokenized", "b.tokenized")
    assert path.recoveries == ("a.recovery", "b.recovery")
    assert path.refusals == ("a.on_refusal", "b.on_refusal")
    assert path.cards == ("b.filter_cards", "a.filter_cards")
