"""The request's line, where it can be looked at alone; as a whole it is tested in `tests/e2e`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from router.config.schema import Policy, WeightedPlugin
from router.proxy.engine_connection import Trouble
from router.proxy.relay import Broken, Deadline, Finished, NotStarted
from router.request.response_observer import Handed
from router.request.retry_budget import RetryBudget
from router.request.route import may_retry, still_there
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Leg, Record, Stages
from tests.suites.views import a_row, a_view

DECISION = build_policy("p", Policy(scorers=[WeightedPlugin(name="round_robin")])).decide(a_view(a_row("a")))


def a_record(*ends: str, prefills: Sequence[str | None] = ()) -> Record:
    return Record(
        id="r-0",
        number=0,
        arrived_s=0.0,
        at_wall_s=0.0,
        endpoint="/v1/chat/completions",
        model="m",
        stream=True,
        tokens_from="unknown",
        prompt_tokens_counted=None,
        stages=Stages(),
        attempts=[
            Attempt(DECISION, None, None, end=end, prefill=None if half is None else Leg(DECISION, None, None, half))
            for end, half in zip_longest(ends, prefills)
        ],
    )


def test_only_what_did_not_start_is_tried_again_and_a_second_death_is_not() -> None:
    budget = RetryBudget(ratio=0.0, burst=1)
    assert not may_retry(Finished(200, 0.0), a_record("ok"), budget)
    assert not may_retry(Broken(200, Trouble.CLOSED, 0.0), a_record("broken"), budget)
    assert not may_retry(Deadline(), a_record("deadline"), budget)
    died = NotStarted("died")
    assert may_retry(died, a_record("died"), budget)
    assert not may_retry(died, a_record("died", "died"), budget)
    assert may_retry(NotStarted("connect"), a_record("connect"), budget), "a death is not paid for from the budget"
    assert not may_retry(NotStarted("busy"), a_record("connect", "busy"), budget), "the budget is used up"


def test_a_prefill_half_that_failed_costs_no_budget_but_its_death_counts() -> None:
    nothing_left = RetryBudget(ratio=0.0, burst=1)
    nothing_left.take()
    unreached = NotStarted("connect", prefill=True)
    assert may_retry(unreached, a_record("prefill", prefills=["connect"]), nothing_left)
    died = NotStarted("died", prefill=True)
    assert may_retry(died, a_record("prefill", prefills=["died"]), nothing_left)
    assert not may_retry(died, a_record("prefill", "prefill", prefills=["died", "died"]), nothing_left)
    assert not may_retry(NotStarted("died"), a_record("prefill", "died", prefills=["died"]), nothing_left)


def test_only_attempts_that_their_prefill_half_ended_count_as_failed_prefills() -> None:
    assert a_record("prefill", "connect", "prefill", prefills=["died", "cancelled", "busy"]).failed_prefills == 2


def test_what_was_handed_over_is_there_for_another_while_nobody_touched_it_and_the_lease_runs() -> None:
    handed = Handed(b"{}", until_s=30.0, leg=Leg(DECISION, None, None, "ok"))
    assert still_there(handed, NotStarted("connect"), 29.9) is handed
    assert still_there(handed, NotStarted("connect"), 30.0) is None
    assert still_there(handed, NotStarted("busy"), 1.0) is None, "who turns it away lets it go"
    assert still_there(handed, NotStarted("died"), 1.0) is None, "it may have fetched it, which frees it"
    assert still_there(None, NotStarted("connect"), 1.0) is None
