"""The one sentence: who, for which reason, against whom, by how much."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.scheduling.policy import policy
from router.scheduling.policy.decision import FALLBACK, Decision, Term
from router.scheduling.policy.policy import Policy, build_policy, fallback_policy
from router.scheduling.policy.rationale import describe_omitted, explain_choice, format_amount
from scorers.contract import View
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, views

NAMES = ("engine-0", "engine-1", "engine-2")


def decided(costs: Sequence[float], chosen: int, *terms: Term, offered: int | None = None) -> Decision:
    """A choice among `costs`, where `offered` candidates were there before the filters. Without terms: one of them."""
    rows = tuple(a_row(name) for name in NAMES[: offered or len(costs)])
    return Decision(
        "warm",
        a_view(*rows),
        rows[: len(costs)],
        terms or (Term("expected_ttft", "ms", 1.0, tuple(costs)),),
        tuple(costs),
        chosen,
        (),
    )


def test_the_term_that_made_the_difference_against_the_runner_up() -> None:
    """engine-2: 3 x 0.1 + 1 x 0.45 = 0.75; engine-0: 3 x 0.5 + 1 x 0.1 = 1.6; engine-1 is dearer than both. So
    prefix_overlap gave 3 x (0.5 - 0.1) = 1.2, queue_depth took 0.45 - 0.1 = 0.35 of it back: 0.85 in all.
    """
    overlap = Term("prefix_overlap", "points", 3.0, (0.5, 1.0, 0.1))
    queue = Term("queue_depth", "points", 1.0, (0.1, 1.0, 0.45))
    assert explain_choice(decided((1.6, 4.0, 0.75), 2, queue, overlap)) == (
        "engine-2/0: prefix_overlap costs 1.20 points less than at engine-0/0"
        " (the runner-up, dearer by 0.85 points in all)"
    )


def test_a_single_term_is_the_whole_difference() -> None:
    assert explain_choice(decided((30.5, 1500.0, 1600.0), 0)) == (
        "engine-0/0: expected_ttft costs 1,470 ms less than at engine-1/0, the runner-up"
    )


def test_raw_costs_are_in_no_unit() -> None:
    raw = Term("lmetric", "raw", 1.0, (7.0, 4.5))
    assert (
        explain_choice(decided((7.0, 4.5), 1, raw))
        == "engine-1/0: lmetric costs 2.50 less than at engine-0/0, the runner-up"
    )


def test_equals_are_drawn() -> None:
    assert explain_choice(decided((2.0, 2.0, 2.0), 1)) == "engine-1/0: by chance among 3 equals"
    assert explain_choice(decided((2.0, 5.0, 2.0), 2)) == "engine-2/0: by chance among 2 equals"


def test_who_is_alone_needs_no_reason() -> None:
    assert explain_choice(decided((2.0,), 0)) == "engine-0/0: the only candidate"
    assert (
        explain_choice(decided((2.0,), 0, offered=3))
        == "engine-0/0: the only one of 3 candidates that the filters left"
    )


def test_of_a_large_fleet_it_says_how_many_were_compared() -> None:
    def cut(*costs: float, offered: int | None = None) -> str:
        decision = decided(costs, 0, offered=offered)
        return explain_choice(decision._replace(view=decision.view._replace(others=1997)))

    assert cut(2.0, 2.0, 2.0) == "engine-0/0: by chance among 3 equals (priced: 3 of 2,000 candidates)"
    assert cut(30.5, 1500.0, 1600.0) == (
        "engine-0/0: expected_ttft costs 1,470 ms less than at engine-1/0, the runner-up"
        " (priced: 3 of 2,000 candidates)"
    )
    assert cut(2.0) == "engine-0/0: the only one that could win (priced: 1 of 1,998 candidates)"
    assert cut(2.0, offered=3) == (
        "engine-0/0: the only one of 3 candidates that the filters left (priced: 3 of 2,000 candidates)"
    )


def test_a_picker_may_take_a_dearer_one() -> None:
    assert explain_choice(decided((2.0, 2.5, 1.25), 1)) == (
        "engine-1/0: drawn by the picker, although engine-2/0 costs 1.25 ms less"
    )


def test_the_fallback_says_that_it_is_one() -> None:
    view = a_view(a_row("a", load=a_load(requests=3)), a_row("b", load=a_load(requests=1)))
    assert explain_choice(fallback_policy().decide(view)).startswith(
        "the policy failed and the fallback chose: b/0: least_requests costs "
    )
    alone = view._replace(rows=view.rows[:1])
    assert (
        explain_choice(fallback_policy().decide(alone))
        == "the policy failed and the fallback chose: a/0: the only candidate"
    )


def test_the_fallback_is_known_by_its_name() -> None:
    assert FALLBACK == policy.FALLBACK


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0.00"), (0.85, "0.85"), (1.2, "1.20"), (-3.456, "-3.46"), (99.99, "99.99"), (99.996, "100"),
        (1469.5, "1,470"), (1_234_567.0, "1,234,567"), (0.01, "0.01"), (0.0042, "0.0042"), (0.00001234, "1.2e-05"),
    ],
)  # fmt: skip
def test_amounts_have_the_digits_that_people_compare_by(value: float, said: str) -> None:
    assert format_amount(value) == said


WEIGHTED = build_policy(
    "warm",
    schema.PolicyConfig.model_validate(
        {"scorers": [{"name": "queue_depth"}, {"name": "prefix_overlap", "weight": 3}, {"name": "kv_usage"}]}
    ),
)


@examples(100)
@given(views(), st.integers(0, 3))
def test_every_decision_has_a_reason_that_speaks_for_the_choice(view: View, chosen: int) -> None:
    """Whichever row was taken, and by whatever margin: what is said to be less is never less than nothing."""
    decision = WEIGHTED.decide(view)
    for taken in (decision, decision._replace(chosen=min(chosen, len(view.rows) - 1))):
        sentence = explain_choice(taken)
        assert sentence.startswith(f"{taken.target}: ")
        assert "costs -" not in sentence
        assert "by -" not in sentence
        explained = any(word in sentence for word in ("only", "chance", "drawn", "runner-up"))
        assert explained, sentence


WHOLE = a_view(a_row("a"), a_row("b"))
CUT = WHOLE._replace(others=1998)


def policy_of(scorer: str, **more: object) -> Policy:
    return build_policy(scorer, schema.PolicyConfig.model_validate({"scorers": [{"name": scorer}], **more}))


def test_a_sentence_says_how_many_and_why() -> None:
    assert describe_omitted(CUT) == (
        "not priced: 1,998 of 2,000 candidates; each holds the same of the prompt as one of these and has no less work "
        "ahead, so none could do better by a policy in use, though one of them may be the runner-up"
    )
    assert describe_omitted(WHOLE) is None


REQUESTS, TURNS = policy_of("least_requests"), policy_of("round_robin")
WORK, TTFT = policy_of("least_work_left"), policy_of("expected_ttft")
QUEUE_FIRST = policy_of("expected_ttft", filters=[{"name": "near_longest"}])


@pytest.mark.parametrize(
    ("policy", "shown_for", "expected"),
    [
        (TTFT, TTFT, False),
        (WORK, TTFT, False),  # both are settled by the work that is left
        (TTFT, QUEUE_FIRST, False),  # by that, and by the queue where the filter keeps the least busy alone
        (QUEUE_FIRST, TTFT, True),
        (REQUESTS, TTFT, True),
        (TURNS, TTFT, True),  # by all rows together
        (TTFT, None, True),
        (TTFT, TURNS, True),  # who sees all leaves nobody out: the view was somebody else's
    ],
)
def test_a_choice_is_whole_where_the_same_measures_settle_it(
    policy: Policy, shown_for: Policy | None, expected: bool
) -> None:
    assert policy.might_choose_omitted(CUT, shown_for) is expected
    assert policy.might_choose_omitted(WHOLE, shown_for) is False
