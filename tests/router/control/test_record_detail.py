"""A record in full: every other policy decides once, on its first view."""

from __future__ import annotations

import asyncio

import msgspec

from router.config import schema
from router.config.lookup import list_shipped_policies
from router.control.record_detail import describe_in_full
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from tests.suites.views import a_load, a_row, a_view, an_overlap

NAMES = ("least_requests", "prefix_overlap", "random")
POLICIES = {
    name: build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": name}]})) for name in NAMES
}
VIEW = a_view(a_row("a", an_overlap(800), a_load(requests=4)), a_row("b", an_overlap(0)), prompt_tokens=1000)


def a_record(*attempts: Attempt) -> Record:
    return Record(
        "r-1", 1, 5.0, 9.0, "/v1/completions", "m", True, "local", 1000, Stages(), attempts=list(attempts),
        policy=POLICIES["least_requests"],
    )  # fmt: skip


async def test_every_policy_of_the_router_but_the_one_that_decided() -> None:
    decided = POLICIES["least_requests"]
    retry = decided.decide(VIEW._replace(rows=VIEW.rows[1:]))
    described = await describe_in_full(
        a_record(Attempt(decided.decide(VIEW), 0, 0), Attempt(retry, 0, 0)), POLICIES, "configured"
    )
    assert [other["policy"] for other in described["others"]] == ["prefix_overlap", "random"]
    assert described["others"][0]["target"] == "a/0"  # a candidate of the first attempt alone
    assert msgspec.json.decode(msgspec.json.encode(described)) == described


async def test_the_shipped_ones_as_well_unless_the_router_has_one_of_the_name() -> None:
    record = a_record(Attempt(POLICIES["least_requests"].decide(VIEW), 0, 0))
    described = await describe_in_full(record, POLICIES, "shipped")
    others = {other["policy"]: other for other in described["others"]}
    assert set(others) == {*NAMES, *list_shipped_policies()} - {"least_requests"}
    assert len(others) == len(described["others"])
    assert others["random"]["digest"] == POLICIES["random"].digest
    assert not [name for name, other in others.items() if other["fault"] is not None]


async def test_requests_go_on_between_the_decisions() -> None:
    record = a_record(Attempt(POLICIES["least_requests"].decide(VIEW), 0, 0))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = turns
    await describe_in_full(record, POLICIES, "configured")
    beside.cancel()
    assert turns - before == 2


async def test_a_request_without_a_choice_has_none_by_others() -> None:
    assert (await describe_in_full(a_record(), POLICIES, "configured"))["others"] == []
