"""Every registered plug-in, installed ones included, runs the conformance suite."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers.contract import Filter, Picker, Scorer
from scorers.registry import BUILTINS, load_registry
from tests.suites.scorers import check_filter, check_picker, check_scorer
from tests.suites.views import a_row, a_view, views

REGISTRY = load_registry()
some = settings(max_examples=30)


@pytest.mark.parametrize("name", REGISTRY.names(Scorer))
@some
@given(st.data(), views())
def test_scorer(name: str, data: Any, view: Any) -> None:
    order = data.draw(st.permutations(range(len(view.rows))))
    check_scorer(REGISTRY.build(Scorer, name, {}), view, order)


@pytest.mark.parametrize("name", REGISTRY.names(Filter))
@some
@given(st.data(), views())
def test_filter(name: str, data: Any, view: Any) -> None:
    order = data.draw(st.permutations(range(len(view.rows))))
    check_filter(REGISTRY.build(Filter, name, {}), view, order)


@pytest.mark.parametrize("name", REGISTRY.names(Picker))
@some
@given(st.data(), views())
def test_picker(name: str, data: Any, view: Any) -> None:
    count = len(view.rows)
    # few different costs, so that ties are common
    costs = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, -3.0, 1e6]), min_size=count, max_size=count))
    check_picker(REGISTRY.build(Picker, name, {}), view, costs, data.draw(st.permutations(range(count))))


def test_the_suite_covers_every_kind() -> None:
    assert set(BUILTINS) == {Scorer, Filter, Picker}
    assert all(REGISTRY.names(kind) for kind in BUILTINS)


class Positional(Scorer):
    """Breaks the promise that order does not matter: the suite must notice."""

    unit = BUILTINS[Scorer]["random"].unit  # type: ignore[attr-defined]

    def score(self, view: Any) -> list[float]:
        return list(range(len(view.rows)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positional)

    __hash__ = None  # type: ignore[assignment]


def test_the_suite_catches_a_scorer_that_counts_positions() -> None:
    with pytest.raises(AssertionError):
        check_scorer(Positional(), a_view(a_row("a"), a_row("b")), [1, 0])
