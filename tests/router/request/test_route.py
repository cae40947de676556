"""Retries of a request; the request path as a whole is tested in `tests/e2e`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from router.config.schema import PolicyConfig, WeightedPluginConfig
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import RelayBroken, RelayDeadline, RelayFinished, RelayNotStarted
from router.request.retry_budget import RetryBudget
from router.request.route import may_retry
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from tests.suites.views import a_row, a_view

DECISION = build_policy("p", PolicyConfig(scorers=[WeightedPluginConfig(name="round_robin")])).decide(
    a_view(a_row("a"))
)


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
            Attempt(
                DECISION,
                None,
                None,
                end=end,
                prefill=None if half is None else PrefillRecord(DECISION, None, None, half),
            )
            for end, half in zip_longest(ends, prefills)
        ],
    )


def test_only_what_did_not_start_is_tried_again_and_a_second_death_is_not() -> None:
    budget = RetryBudget(ratio=0.0, burst=1)
    assert not may_retry(RelayFinished(200, 0.0), a_record("ok"), budget)
    assert not may_retry(RelayBroken(200, ExchangeFailure.CLOSED, 0.0), a_record("broken"), budget)
    assert not may_retry(RelayDeadline(), a_record("deadline"), budget)
    died = RelayNotStarted("died")
    assert may_retry(died, a_record("died"), budget)
    assert not may_retry(died, a_record("died", "died"), budget)
    assert may_retry(RelayNotStarted("connect"), a_record("connect"), budget), "a death is not paid for from the budget"
    assert not may_retry(RelayNotStarted("busy"), a_record("connect", "busy"), budget), "the budget is used up"


def test_an_error_is_tried_again_once_from_the_budget_if_the_request_may_be_repeated() -> None:
    failed, budget = RelayNotStarted("failed"), RetryBudget(ratio=0.0, burst=1)
    assert not may_retry(failed, a_record("failed", "failed"), budget)
    assert not may_retry(failed, a_record("died", "failed"), budget), "two engines worked on it"
    assert not may_retry(RelayNotStarted("died"), a_record("failed", "died"), budget)
    assert not may_retry(failed, a_record("failed"), budget, repeats=False)
    assert may_retry(failed, a_record("failed"), budget)
    assert not may_retry(failed, a_record("failed"), budget), "the budget is used up"
    assert may_retry(RelayNotStarted("failed", prefill=True), a_record("prefill", prefills=["failed"]), budget)


def test_a_prefill_half_that_failed_costs_no_budget_but_its_death_counts() -> None:
    nothing_left = RetryBudget(ratio=0.0, burst=1)
    nothing_left.try_withdraw()
    unreached = RelayNotStarted("connect", prefill=True)
    assert may_retry(unreached, a_record("prefill", prefills=["connect"]), nothing_left)
    died = RelayNotStarted("died", prefill=True)
    assert may_retry(died, a_record("prefill", prefills=["died"]), nothing_left)
    assert not may_retry(died, a_record("prefill", "prefill", prefills=["died", "died"]), nothing_left)
    assert not may_retry(RelayNotStarted("died"), a_record("prefill", "died", prefills=["died"]), nothing_left)


def test_only_attempts_that_their_prefill_half_ended_count_as_failed_prefills() -> None:
    assert a_record("prefill", "connect", "prefill", prefills=["died", "cancelled", "busy"]).failed_prefills == 2
