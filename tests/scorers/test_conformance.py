"""Every registered plug-in, installed ones included, runs the conformance suite."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from scorers.admission.contract import AdmissionRule
from scorers.contract import Filter, Outcome, Picker, Scorer, View
from scorers.registry import BUILTINS, load_registry
from tests.suites.properties import examples
from tests.suites.scorers import check_filter, check_parts, check_picker, check_scorer
from tests.suites.views import a_row, a_view, views

REGISTRY = load_registry()
many = examples(120)
durations_ms = st.floats(0, 1e6)
outcomes = st.builds(
    Outcome, st.booleans(), st.none(), st.none() | durations_ms, durations_ms, st.none(), st.none(), st.none()
)


def build_all(kind: type[Any]) -> Iterator[Any]:
    """Yield every registered plug-in of a kind with its default parameters. Drawing a view takes longer than checking
    all plug-ins on it, so all of them see each view.
    """
    for name in REGISTRY.names(kind):
        note(name)  # hypothesis prints it with the failing example
        yield REGISTRY.build(kind, name, {})


@many
@given(st.data(), views())
def test_every_scorer(data: Any, view: Any) -> None:
    order = data.draw(st.permutations(range(len(view.rows))))
    for scorer in build_all(Scorer):
        check_scorer(scorer, view, order)


@many
@given(st.data(), st.lists(views(), min_size=2, max_size=4), outcomes)
def test_every_scorer_that_has_learned(data: Any, seen: list[View], outcome: Outcome) -> None:
    """From choices, of which every second one has ended; a later view, and one that it has seen, are scored."""
    *before, last = seen
    orders = [(view, data.draw(st.permutations(range(len(view.rows))))) for view in (before[0], last)]
    for scorer in build_all(Scorer):
        for number, view in enumerate(before):
            scorer.picked(view, view.rows[-1])
            if number % 2 == 0:
                scorer.finished(view, view.rows[-1], outcome)
        for view, order in orders:
            check_scorer(scorer, view, order)


@many
@given(st.data(), views())
def test_every_filter(data: Any, view: Any) -> None:
    order = data.draw(st.permutations(range(len(view.rows))))
    for a_filter in build_all(Filter):
        check_filter(a_filter, view, order)


@many
@given(st.data(), views())
def test_every_picker(data: Any, view: Any) -> None:
    count = len(view.rows)
    # few different costs, so that ties are common
    costs = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, -3.0, 1e6]), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    for picker in build_all(Picker):
        check_picker(picker, view, costs, order)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("warm", {"pool": False}),
    ("warm", {"cap": 1.0}),
    ("expected_ttft", {"pool": False}),
    ("least_work_left", {"pool": False}),
    ("dynamo_cost", {"overlap_score_credit_decay": 0.5, "shared_cache_multiplier": 0.5}),
    ("dynamo_cost", {"overlap_score_credit": 2.0, "decode_active_request_weight": 3.0, "prefill_load_scale": 0.3}),
    ("vllm_router_kv_aware", {"decode_active_request_weight": 3.0, "kv_in_use_weight": 0.5}),
    ("lmetric", {"shared_cache_multiplier": 1.0}),
    ("jsew", {"prefill_load_scale": 2.0, "decode_work_scale": 0.0}),
    ("smetric", {"colocated": False}),
    ("prefix_overlap", {"length_weight": 0.3}),
    ("ray_prefix_affinity", {"imbalanced_threshold": 10.0}),
    ("dualmap", {"ttft_ms": 50.0}),
    ("mooncake_alg1", {"balancing_threshold": 1.0}),
    ("ramjet", {"alpha": 0.0}),
    ("loadaware", {"beta": 5.0}),
    ("aibrix_prefix", {"imbalance": 10**9, "sigma": 0.1}),
]


@many
@given(views(), st.none() | st.floats(1, 1e5))
def test_parts_add_up_with_other_parameters(view: View, answer_tokens: float | None) -> None:
    view = view._replace(answer_tokens=answer_tokens)
    for name, parameters in VARIANTS:
        note(name)
        scorer = REGISTRY.build(Scorer, name, parameters)  # type: ignore[type-abstract]
        assert scorer.parts(view) is not None
        check_parts(scorer, view, scorer.score(view))


def test_the_costs_that_are_sums_name_their_parts() -> None:
    view = a_view(a_row("a"), a_row("b"), prompt_tokens=1000)
    named = {name for name in REGISTRY.names(Scorer) if REGISTRY.build(Scorer, name, {}).parts(view) is not None}  # type: ignore[type-abstract]
    assert named == {
        "aibrix_prefix", "dualmap", "dynamo_cost", "expected_ttft", "jsew", "lbgr", "least_work_left", "lmetric",
        "lmetric_guarded", "loadaware", "mooncake_alg1", "ramjet", "ray_prefix_affinity", "smetric",
        "vllm_router_kv_aware", "warm",
    }  # fmt: skip


def test_the_suite_covers_every_kind() -> None:
    assert set(BUILTINS) == {Scorer, Filter, Picker, AdmissionRule}  # rules: admission/test_rules.py
    assert all(REGISTRY.names(kind) for kind in BUILTINS)


class Positional(Scorer):
    """Breaks the promise that order does not matter: the suite must notice."""

    unit = REGISTRY.find(Scorer, "random").unit  # type: ignore[type-abstract]

    def score(self, view: Any) -> list[float]:
        return list(range(len(view.rows)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positional)

    __hash__ = None  # type: ignore[assignment]


def test_the_suite_catches_a_scorer_that_counts_positions() -> None:
    with pytest.raises(AssertionError):
        check_scorer(Positional(), a_view(a_row("a"), a_row("b")), [1, 0])
