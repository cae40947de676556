"""Which two, or why one is enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router.config import schema
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.pair import PairChoice, choose_pair, should_split
from router.scheduling.policy.policy import build_policy
from router.scheduling.selector import Selector
from scorers.contract import PoolHit, Row, View
from tests.suites.views import a_load, a_row, a_view, an_overlap

PREFILLERS = (a_row("p", load=a_load(requests=3)), a_row("q", load=a_load(requests=1)))


def a_selector(from_tokens: int = 0) -> Selector:
    spec = {
        "scorers": [{"name": "round_robin"}],
        "prefill": {"scorers": [{"name": "least_requests"}]},
        "decode": {"scorers": [{"name": "prefix_overlap"}]},
        "prefill_from_tokens": from_tokens,
    }
    policy = build_policy("mine", schema.PolicyConfig.model_validate(spec))
    return Selector(PolicySet({"mine": policy}, "mine"), seed=1)


def chosen(selector: Selector, view: View, prefill_rows: Callable[[str], tuple[Row, ...]]) -> PairChoice:
    return choose_pair(selector, selector.policy_set.policy, view, prefill_rows)


def test_the_decode_target_is_chosen_first_and_then_one_that_can_prefill_for_it() -> None:
    asked: list[str] = []

    def rows_for(target: str) -> tuple[Row, ...]:
        asked.append(target)
        return PREFILLERS

    view = a_view(a_row("a", an_overlap(0)), a_row("b", an_overlap(160)), prompt_tokens=1000)
    choice = chosen(a_selector(), view, rows_for)
    assert (choice.answer.policy, choice.answer.target) == ("mine.decode", "b/0")
    assert asked == ["b/0"]
    assert choice.prefill is not None
    assert (choice.prefill.policy, choice.prefill.target) == ("mine.prefill", "q/0")
    assert [row.target for row in choice.prefill.view.rows] == ["p/0", "q/0"]


def test_nobody_to_prefill_is_no_trouble() -> None:
    choice = chosen(a_selector(), a_view(a_row("a"), prompt_tokens=1000), lambda _: ())
    assert (choice.answer.target, choice.prefill) == ("a/0", None)


def test_what_is_not_worth_it_asks_nobody() -> None:
    def rows_for(target: str) -> tuple[Row, ...]:
        raise AssertionError

    view = a_view(a_row("a", an_overlap(960)), prompt_tokens=1000)  # 40 left
    assert chosen(a_selector(from_tokens=41), view, rows_for).prefill is None


@pytest.mark.parametrize(
    ("row", "prompt_tokens", "pool", "from_tokens", "worth"),
    [
        (a_row("a", an_overlap(0)), 1000, None, 0, True),
        (a_row("a", None), 1000, None, 1000, True),  # what it holds is unknown: nothing is sure
        (a_row("a", None), 999, None, 1000, False),
        (a_row("a", an_overlap(0)), None, None, 10**6, True),  # of unknown length
        (a_row("a", an_overlap(320)), 1000, None, 681, False),  # 1000 - 320 = 680 left
        (a_row("a", an_overlap(320)), 1000, None, 680, True),
        (a_row("a", an_overlap(0, expected=320)), 1000, None, 681, False),  # on its way there
        (a_row("a", an_overlap(0, disk=320)), 1000, None, 681, False),
        (a_row("a", an_overlap(160)), 1000, PoolHit(320, 0.0), 681, False),  # the engine will load it
        (a_row("a", an_overlap(992)), 1000, None, 0, False),  # 8 left: all 62 full blocks are there
        (a_row("a", an_overlap(984)), 1000, None, 0, False),  # 16 left: as much as a whole hit leaves
        (a_row("a", an_overlap(976)), 1000, None, 0, True),  # 24 left
        (a_row("a", an_overlap(0)), 16, None, 0, False),  # no full block but the one that is always computed
    ],
)
def test_when_a_prefill_half_is_worth_it(
    row: Row, prompt_tokens: int | None, pool: PoolHit | None, from_tokens: int, worth: bool
) -> None:
    assert should_split(a_view(row, prompt_tokens=prompt_tokens, pool=pool), row, from_tokens) is worth
