"""Policies that share the live requests, and policies asked for by name, over real sockets: who decided, as the records
say; what engines, clients and metrics see of it; and that a bad arm goes by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.scheduling.experiments.policy_set import slice_instances
from tests.e2e.chats import PATH, beside
from tests.e2e.conftest import MODEL, WARM, Json, Router, RouterClient
from tests.fakes.engines import FakeEngine, engine, eventually

POLICIES: Json = {
    "warm": WARM,
    "calm": {"scorers": [{"name": "least_requests"}]},
    "turns": {"scorers": [{"name": "round_robin"}]},
    "dice": {"scorers": [{"name": "random"}]},
}
HALVES = {"calm": 50, "dice": 50}
NAMES = ("left", "right")
TOKENS = [
    {"name": name, "hash": hashlib.sha256(name.encode()).hexdigest(), "rights": rights}
    for name, rights in (("reader", ["read"]), ("writer", ["read", "write"]), ("chooser", ["override"]))
]
SOON: Json = {"observe_s": 0.2, "guard": {"metric": "ttft_p90", "alpha": 0.05, "min_units": 5}}


def chat(text: str = "hello", **fields: Any) -> Json:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{text} " * 40}], "max_tokens": 4} | fields


def members(*fakes: FakeEngine) -> list[Json]:
    return [{"url": fake.url, "name": name} for name, fake in zip(NAMES, fakes, strict=True)]


async def ask(r: RouterClient, session: str, text: str = "hello", **headers: str) -> httpx.Response:
    return await r.post(PATH, chat(text), headers={"x-session-id": session} | headers)


async def records(r: RouterClient, sessions: Sequence[str]) -> list[Json]:
    """Of one good answer each, one after the other."""
    told = []
    for session in sessions:
        answer = (await ask(r, session)).raise_for_status()
        told.append(await r.record(answer))
    return told


async def told_experiment(r: RouterClient) -> Json:
    return dict((await r.admin.get("/admin/experiment")).raise_for_status().json())


# -- a policy asked for by name


@asynccontextmanager
async def overridable(router: Any, engines: Sequence[FakeEngine], **config: Any) -> AsyncIterator[Router]:
    """`calm` is active, which needs no tokens; three admin tokens are named as what they are."""
    settings = {"policies": POLICIES, "active": "calm", "admin": {"tokens": TOKENS}} | config
    async with router(members(*engines), **settings) as r:
        r.engines = engines
        r.admin.headers["authorization"] = "Bearer reader"
        yield r


async def test_who_may_chooses_the_policy_of_a_request_and_no_engine_hears_of_it(router: Any) -> None:
    async with engine() as a, engine() as b, overridable(router, [a, b]) as r:
        chosen = {"X-Warmroute-Policy": "warm", "X-Warmroute-Token": "chooser"}
        told = []
        for _ in range(3):
            told.append(await r.record((await ask(r, "s", **chosen)).raise_for_status()))
            await r.hear()
        assert [(one["policy"], one["asked_by"], one["arm"]) for one in told] == [("warm", "chooser", None)] * 3
        assert [one["attempts"][0]["policy"] for one in told] == ["warm"] * 3
        assert [one["tokens_from"] for one in told] == ["local"] * 3, "it needs the cache, though nobody else does"
        assert len({one["target"] for one in told}) == 1
        assert told[2]["attempts"][0]["predicted_tokens"] == told[2]["cached_tokens"] > 0
        (plain,) = await records(r, ["s"])
        assert (plain["policy"], plain["asked_by"]) == ("calm", None)
        assert plain["prompt_tokens_counted"] is None, "without the header nobody pays for tokens"
        seen = [call for fake in (a, b) for call in fake.seen(PATH)]
        assert len(seen) == 4
        assert not [name for call in seen for name in call.headers if name.startswith("x-warmroute")]
        assert all(call.headers["x-session-id"] == "s" for call in seen), "others do get through"


@pytest.mark.parametrize("token", [None, "", "writer", "CHOOSER"])
async def test_who_may_not_choose_is_refused_and_counted(router: Any, token: str | None) -> None:
    async with engine() as a, engine() as b, overridable(router, [a, b]) as r:
        headers = {"x-warmroute-policy": "warm"} | ({} if token is None else {"x-warmroute-token": token})
        refused = await ask(r, "s", **headers)
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("permission_error", "missing_right", None)
        assert "x-warmroute-token" in error["message"]
        anthropic = await r.post("/v1/messages", chat(), headers=headers)
        assert anthropic.status_code == 403
        assert anthropic.json()["type"] == "error"
        assert set(anthropic.json()["error"]) == {"type", "message"}
        assert await r.metric("warmroute_errors_total", reason="forbidden") == 2
        assert a.seen(PATH) == b.seen(PATH) == []
        assert await r.records() == []


async def test_where_there_are_no_tokens_nobody_may_choose(router: Any) -> None:
    async with engine() as a, engine() as b, router(members(a, b), policies=POLICIES, active="calm") as r:
        refused = await ask(r, "s", **{"x-warmroute-policy": "warm", "x-warmroute-token": "chooser"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_right")


async def test_a_policy_that_is_not_there_is_refused_with_those_that_are(router: Any) -> None:
    async with engine() as a, engine() as b, overridable(router, [a, b]) as r:
        refused = await ask(r, "s", **{"x-warmroute-policy": "wram", "x-warmroute-token": "chooser"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_policy")
        assert all(name in refused.json()["error"]["message"] for name in ("`wram`", "calm, dice, turns, warm"))
        assert await r.metric("warmroute_errors_total", reason="bad_request") == 1


# -- arms and shadows


async def test_a_session_stays_on_its_arm_also_after_a_restart(router: Any) -> None:
    sessions = [f"s{n}" for n in range(12)]
    settings = {"policies": POLICIES, "experiment": {"arms": HALVES, "seed": 3}}
    async with engine() as a, engine() as b:
        arms: list[dict[str, str]] = []
        for _ in range(2):
            async with router(members(a, b), **settings) as r:
                told = await records(r, sessions * 3)
                assert all(one["policy"] == one["arm"] == one["attempts"][0]["policy"] for one in told)
                arms += [
                    dict(zip(sessions, (one["arm"] for one in told[i : i + 12]), strict=True)) for i in (0, 12, 24)
                ]
                for arm in HALVES:
                    count = sum(one["arm"] == arm for one in told)
                    assert await r.metric("warmroute_arm_requests_total", arm=arm) == count
        assert all(one == arms[0] for one in arms)
        assert set(arms[0].values()) == set(HALVES)


async def test_two_routers_with_one_seed_give_the_same_arms_and_another_seed_gives_others(router: Any) -> None:
    sessions = [f"s{n}" for n in range(12)]

    def settings(seed: int) -> Json:
        return {"policies": POLICIES, "experiment": {"arms": HALVES, "seed": seed}}

    async with (
        engine() as a,
        engine() as b,
        router(members(a, b), **settings(3)) as one,
        router(members(a, b), **settings(3)) as two,
        router(members(a, b), **settings(4)) as other,
    ):
        arms = [[told["arm"] for told in await records(r, sessions)] for r in (one, two, other)]
        assert arms[0] == arms[1] != arms[2]


async def test_retries_keep_their_arm(router: Any) -> None:
    """One engine cuts every connection before its first byte; until its breaker opens, requests try the other one."""
    settings = {"policies": POLICIES, "experiment": {"arms": HALVES, "seed": 3}}
    async with engine() as a, engine() as b:
        a.faults(die_before_first_byte=1.0)
        async with router(members(a, b), **settings) as r:
            told = await records(r, [f"s{n}" for n in range(16)])
        twice = [one for one in told if len(one["attempts"]) == 2]
        assert len(twice) >= 3  # in a row open the breaker
        for one in twice:
            assert [attempt["end"] for attempt in one["attempts"]] == ["died", "ok"]
            assert {attempt["policy"] for attempt in one["attempts"]} == {one["arm"]}
        assert len(b.seen(PATH)) == 16


async def test_shadows_say_what_they_would_have_done_and_change_nothing(router: Any) -> None:
    """Two routers with the same seed choose alike, whether somebody looks on or not."""
    arms = {"turns": 50, "dice": 50}
    sessions = [f"s{n % 5}" for n in range(20)]
    chosen = []
    async with engine() as a, engine() as b:
        for shadows in ([], ["warm", "calm"]):
            experiment = {"arms": arms, "seed": 3, "shadows": shadows}
            async with router(members(a, b), policies=POLICIES, active="turns", experiment=experiment) as r:
                told = await records(r, sessions)
                chosen.append([(one["arm"], one["target"], one["attempts"][0]["policy"]) for one in told])
                assert all([shadow["policy"] for shadow in one["shadows"]] == shadows for one in told)
                for shadow in shadows:
                    agreed = sum(o["target"] == one["target"] for one in told for o in one["shadows"]
                                 if o["policy"] == shadow)  # fmt: skip
                    assert await r.metric("warmroute_shadow_decisions_total", policy=shadow) == 20
                    assert await r.metric("warmroute_shadow_agreements_total", policy=shadow) == agreed
                    assert await r.metric("warmroute_policy_in_force", role="shadow", policy=shadow) == 1
        assert chosen[0] == chosen[1]
        assert len({target for _, target, _ in chosen[0]}) == 2


# -- isolated arms


def owned(experiment: Json) -> dict[str, str]:
    """Which arm has which engine."""
    return slice_instances(experiment["seed"], tuple(experiment["arms"].items()), tuple(sorted(NAMES)))


@asynccontextmanager
async def isolated(
    router: Any, experiment: Json, options: dict[str, Json], **config: Any
) -> AsyncIterator[tuple[Router, dict[str, FakeEngine]]]:
    """One engine for each of two arms, with these options by arm."""
    experiment = {"isolate": "instances"} | experiment
    of_left, of_right = (options.get(owned(experiment)[name], {}) for name in NAMES)
    async with engine(**of_left) as left, engine(**of_right) as right:
        fleet = {"instances": members(left, right)} | config.pop("fleet", {})
        settings = {"policies": POLICIES, "active": "warm", "fleet": fleet, "experiment": experiment} | config
        async with router(**settings) as r:
            engines = dict(zip(NAMES, (left, right), strict=True))
            yield r, {owned(experiment)[name]: fake for name, fake in engines.items()}


async def test_isolated_arms_use_their_own_engines_and_others_when_these_are_gone(router: Any) -> None:
    experiment = {"arms": HALVES, "seed": 3}
    own = {arm: name for name, arm in owned(experiment).items()}
    async with isolated(router, experiment, {}) as (r, engines):
        told = await records(r, [f"s{n}" for n in range(16)])
        assert {(one["arm"], one["target"]) for one in told} == {(arm, f"{own[arm]}/0") for arm in HALVES}
        (lonely,) = {one["arm"] for one in told} - {"calm"}
        engines[lonely].faults(die_before_first_byte=1.0)
        told = await records(r, [f"s{n}" for n in range(16)])  # every one is answered
        assert {one["arm"] for one in told} == set(HALVES)
        assert {one["target"] for one in told} == {f"{own['calm']}/0"}


# -- bad arms go by themselves


async def traffic(r: RouterClient, statuses: Counter[int], crowd: int = 8) -> None:
    """New sessions without end, so many at a time, of which no two share a block."""
    numbers = itertools.count()

    async def one_after_the_other() -> None:
        while True:
            session = f"u{next(numbers)}"
            statuses[(await ask(r, session, session)).status_code] += 1

    await asyncio.gather(*(one_after_the_other() for _ in range(crowd)))


def rolled_back(r: Router) -> list[str]:
    return sorted(r.core.selector.policy_set.rolled_back)


async def all_on_the_first_arm(r: RouterClient) -> None:
    told = await records(r, [f"after{n}" for n in range(12)])
    assert {one["arm"] for one in told} == set(HALVES), "the draw is as before"
    assert {one["policy"] for one in told} == {"calm"}


async def test_a_slow_arm_is_rolled_back_and_stays_so_over_a_restart(router: Any, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    experiment = {"arms": HALVES, "seed": 3, **SOON}
    options = {"dice": {"prefill_tokens_per_s": 1000}}  # 0.1 s or more for these prompts; the other takes no time
    admin = {"audit_file": str(audit)}
    async with isolated(router, experiment, options, admin=admin) as (r, _):
        assert rolled_back(r) == []
        statuses: Counter[int] = Counter()
        async with beside(traffic(r, statuses, crowd=4)):
            await eventually(lambda: rolled_back(r) == ["dice"], 15.0)
        await eventually(r.idle)
        assert set(statuses) == {200}
        await all_on_the_first_arm(r)
        told = await told_experiment(r)
        assert (told["running"], told["rolled_back"]) == (True, ["dice"])
        counted = {arm["arm"]: arm for arm in told["report"]["arms"]}
        assert counted["dice"]["out"].startswith("ttft_p90: ")
        assert counted["dice"]["units_closed"] >= 5
        newest = (await r.admin.get("/admin/audit")).json()["entries"][0]
        assert (newest["who"], newest["what"], newest["arm"]) == ("guard", "rollback", "dice")
        assert newest["why"] == counted["dice"]["out"]
        assert await r.metric("warmroute_arm_rolled_back", arm="dice") == 1
        assert await r.metric("warmroute_arm_rolled_back", arm="calm") == 0
        assert await r.metric("warmroute_policy_switches_total", source="guard") == 1
        await eventually(lambda: '"rollback"' in audit.read_text())
    async with isolated(router, experiment, {}, admin=admin) as (r, _):
        assert rolled_back(r) == ["dice"]
        await all_on_the_first_arm(r)
        assert (await told_experiment(r))["rolled_back"] == ["dice"]
    async with isolated(router, experiment | {"seed": 4}, {}, admin=admin) as (r, _):
        assert rolled_back(r) == [], "another seed is another experiment"


async def test_two_equally_fast_arms_stay(router: Any) -> None:
    surely = SOON | {"guard": SOON["guard"] | {"alpha": 0.001}}  # one run in a thousand may be wrong
    async with isolated(router, {"arms": HALVES, "seed": 3, **surely}, {}) as (r, _):
        statuses: Counter[int] = Counter()
        async with beside(traffic(r, statuses, crowd=2)):
            await eventually(
                lambda: r.core.experiment is not None and min(r.core.experiment.units.values()) >= 60, 15.0
            )
        assert rolled_back(r) == []
        assert r.core.experiment is not None
        assert [arm.out for arm in r.core.experiment.report().arms] == [None, None]


async def test_an_arm_that_fails_is_rolled_back_within_seconds(router: Any) -> None:
    experiment = {"arms": HALVES, "seed": 3, "limits": {"error_rate_max": "1%"}}
    unbroken = {"breaker": {"failures": 1_000_000}}  # else its requests would soon go elsewhere, and be answered
    options = {arm: {"decode_ms_per_token": 5} for arm in HALVES}
    alone = {"retry_burst": 0}  # the same: they would be answered by the other arm's engine
    async with isolated(router, experiment, options, fleet=unbroken, limits=alone) as (r, engines):
        engines["dice"].faults(error_rate=1.0)
        statuses: Counter[int] = Counter()
        async with beside(traffic(r, statuses, crowd=2)):
            await eventually(lambda: rolled_back(r) == ["dice"], 12.0)
        assert set(statuses) == {200, 500}
        engines["dice"].faults(error_rate=0.0)
        await all_on_the_first_arm(r)
        why = (await r.admin.get("/admin/audit")).json()["entries"][0]["why"]
        assert why.startswith("error_rate_max: ")
        counted = {arm["arm"]: arm for arm in (await told_experiment(r))["report"]["arms"]}
        assert counted["dice"]["failed"] == counted["dice"]["requests"] > 0
        assert counted["calm"]["out"] is None
        json.dumps(counted, allow_nan=False)  # infinite P90s are text
