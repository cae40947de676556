"""What is said of a view that leaves candidates out, and whose choices on it are whole."""

from __future__ import annotations

import pytest

from router.config import schema
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.pruning import describe_omitted
from tests.suites.views import a_row, a_view

WHOLE = a_view(a_row("a"), a_row("b"))
CUT = WHOLE._replace(others=1998)


def named(scorer: str, **more: object) -> Policy:
    return build_policy(scorer, schema.PolicyConfig.model_validate({"scorers": [{"name": scorer}], **more}))


def test_a_sentence_says_how_many_and_why() -> None:
    assert describe_omitted(CUT) == (
        "not priced: 1,998 of 2,000 candidates; each holds the same of the prompt as one of these and has no less work "
        "ahead, so none could do better by a policy in use, though one of them may be the runner-up"
    )
    assert describe_omitted(WHOLE) is None


REQUESTS, TURNS = named("least_requests"), named("round_robin")
WORK, TTFT = named("least_work_left"), named("expected_ttft")
QUEUE_FIRST = named("expected_ttft", filters=[{"name": "near_longest"}])


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
