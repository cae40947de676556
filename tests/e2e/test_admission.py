"""Admission control, live: who waits until there is room for its context, who is refused, and what is left after it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.e2e.chats import PATH, Chat, Said, beside
from tests.e2e.conftest import MODEL, Json, Router
from tests.fakes.engines import engine, eventually
from tests.patience import PATIENCE_S

SMALL: Json = {"block_tokens": 16, "blocks": 40}  # 640 tokens
ON: Json = {"enabled": True, "rule": {"name": "fit", "idle_below": 0}}  # idle fleets hold sessions back, too
CACHE_AND_LOAD: Json = {"warm": {"scorers": [{"name": "prefix_overlap"}, {"name": "queue_depth"}]}}


async def gate(r: Router) -> Json:
    """Return the only model's admission, as the admin API shows it."""
    (shown,) = (await r.admin.get("/admin/admission")).raise_for_status().json()["models"]
    return dict(shown)


async def waiting(r: Router) -> int:
    shown = (await r.admin.get("/admin/admission")).json()["models"]
    return sum(len(model["waiting"]) for model in shown)


async def until_waiting(r: Router, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await waiting(r) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def a_full_house(r: Router) -> Chat:
    """One chat that takes more than half of the cache."""
    first = Chat(r, "first", words=240)
    said = await first.turn()
    assert said.ok
    shown = await gate(r)
    assert shown["capacity_tokens"] == 640
    assert 320 < shown["context_tokens"] < 640
    return first


async def test_a_new_session_waits_for_room_and_a_live_one_does_not(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON | {"idle_s": 3.0}) as r:
        first = await a_full_house(r)
        second = Chat(r, "second", words=240)
        async with beside(second.turn()) as coming:
            await until_waiting(r, 1)
            assert (await first.turn()).ok, "a later turn of a live session"
            (held,) = (await gate(r))["waiting"]
            assert (held["position"], held["queue"]) == (1, "new")
            assert held["waited_s"] > 0
            assert await r.metric("warmroute_admission_waiting_requests", model=MODEL, queue="new") == 1
            said = await coming
        assert said.ok, "the first one has been silent for so long that it is not live any more"
        assert int(said.headers["x-warmroute-waited-ms"]) > 100
        assert (await r.record(said.record))["stages"]["admission_ms"] > 100
        assert await r.metric("warmroute_admission_waits_total", model=MODEL, queue="new", end="passed") == 1
        assert await r.metric("warmroute_admission_wait_seconds_sum", model=MODEL, queue="new") > 0.1
        await eventually(r.idle)


async def test_who_has_waited_too_long_gets_429_in_its_dialect(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON | {"max_wait_s": 0.2}) as r:
        await a_full_house(r)
        said = await Chat(r, "second", words=240).turn()
        assert (said.status, said.error and said.error["code"]) == (429, "no_room")
        assert said.error is not None
        assert "number 1 in the queue" in said.error["message"]
        assert int(said.headers["retry-after"]) >= 1
        words = "another word for it " * 150
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": words}]}
        answer = await r.post("/v1/messages", body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
        assert await r.metric("warmroute_admission_waits_total", model=MODEL, end="refused") == 2
        assert await waiting(r) == 0
        assert len(a.seen(PATH)) == 1, "no engine heard of it"
        assert r.idle()


async def test_a_client_that_leaves_while_it_waits_is_out_of_the_line(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON) as r:
        await a_full_house(r)
        before = await gate(r)
        async with beside(Chat(r, "second", words=240).turn()):
            await until_waiting(r, 1)
        await until_waiting(r, 0)
        after = await gate(r)
        names = ("known_sessions", "context_tokens")
        assert [after[name] for name in names] == [before[name] for name in names]
        assert await r.metric("warmroute_admission_waits_total", model=MODEL, end="client_gone") == 1
        await eventually(r.idle)


async def test_a_turn_whose_context_is_gone_is_parked_ahead_of_new_sessions(router: Any) -> None:
    """Two chats on two engines fit. One engine is drained: its chat's context is where nobody may go, and what is left
    holds only one of them.
    """
    slow = SMALL | {"prefill_tokens_per_s": 1000}
    async with engine(**slow) as a, engine(**slow) as b, router([a, b], admission=ON, policies=CACHE_AND_LOAD) as r:
        first, second = Chat(r, "first", words=240), Chat(r, "second", words=240)
        async with beside(first.turn()) as asked:  # at once, so that they go to different engines
            elsewhere = await second.turn()
            said = await asked
        assert elsewhere.instance != said.instance
        assert (await gate(r))["capacity_tokens"] == 1280
        assert (await r.admin.post(f"/admin/instances/{said.instance}/drain")).status_code == 200
        async with asyncio.timeout(PATIENCE_S):
            while (await gate(r))["capacity_tokens"] != 640:
                assert (await second.turn(forget=True)).ok
        async with beside(Chat(r, "third", words=240).turn()):
            await until_waiting(r, 1)
            async with beside(first.turn()):
                await until_waiting(r, 2)
                assert [held["queue"] for held in (await gate(r))["waiting"]] == ["parked", "new"]
        await until_waiting(r, 0)
        assert (await second.turn()).ok
        await eventually(r.idle)


async def test_what_an_engine_refused_is_given_back(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON, limits={"retry_burst": 1}) as r:
        first = await a_full_house(r)
        before = await gate(r)
        a.faults(refuse=True)
        said = await first.turn()
        assert said.status == 503
        after = await gate(r)
        assert after["context_tokens"] == before["context_tokens"]
        assert after["known_sessions"] == before["known_sessions"]


async def test_more_sessions_than_fit_hit_more_with_the_door_than_without(router: Any) -> None:
    """Eight chats at once, each of about 450 tokens, on two engines of 640: without admission control each turn
    evicts what another chat needs.
    """

    async def served(admission: Json) -> tuple[float, float]:
        """Hit share, and prompt tokens computed per turn."""
        slow = SMALL | {"prefill_tokens_per_s": 20_000, "decode_ms_per_token": 0}
        async with engine(**slow) as a, engine(**slow) as b, router([a, b], admission=admission) as r:

            async def talk(chat: Chat) -> list[Said]:
                return [await chat.turn() for _ in range(4)]

            said = [
                one
                for each in await asyncio.gather(*(talk(Chat(r, f"c{number}", words=240)) for number in range(8)))
                for one in each
            ]
            assert all(one.ok for one in said)
            records = [await r.record(one.record) for one in said]
            await eventually(r.idle)
        asked = sum(record["prompt_tokens"] for record in records)
        cached = sum(record["cached_tokens"] for record in records)
        return cached / asked, (asked - cached) / len(records)

    without = await served({})
    with_door = await served(ON | {"idle_s": 1.0})
    assert with_door[0] > without[0] + 0.1, (without, with_door)
    assert with_door[1] < 0.8 * without[1], (without, with_door)


async def test_a_rule_is_switched_while_requests_wait_and_those_are_handed_to_the_new_one(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON) as r:
        await a_full_house(r)
        async with beside(Chat(r, "second", words=240).turn()) as coming:
            await until_waiting(r, 1)
            text = "enabled: true\nrule: {name: thunderagent, pause_above: 0.9}"
            told = await r.admin.put("/admin/admission", content=text, params={"dry_run": True})
            assert (told.status_code, told.json()["changed"]) == (200, True)
            assert (await r.admin.get("/admin/admission")).json()["rule"]["name"] == "fit"
            assert (await r.admin.put("/admin/admission", content=text)).status_code == 200
            shown = (await r.admin.get("/admin/admission")).json()
            assert shown["rule"] == {"name": "thunderagent", "pause_above": 0.9}
            assert await waiting(r) == 1, "85 % of 640 tokens do not hold both"
            wrong = await r.admin.put("/admin/admission", content="enabled: true\nrule: {name: thunder}")
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid_admission")
            assert (await r.admin.put("/admin/admission", content="enabled: true\nrule: {name: none}")).is_success
            assert (await coming).ok
        assert await r.metric("warmroute_admission_waits_total", model=MODEL, queue="new", end="passed") == 1
        assert (await r.admin.post("/admin/undo")).is_success
        assert (await r.admin.get("/admin/admission")).json()["rule"]["name"] == "thunderagent"
        await eventually(r.idle)


async def test_an_experiment_names_the_rule_of_each_arm_and_records_say_which_one_admitted_them(router: Any) -> None:
    arms = {
        "fit": {"share": 50, "policy": "warm", "admission": {"name": "fit"}},
        "cap": {"share": 50, "policy": "warm", "admission": {"name": "concurrency"}},
    }
    experiment = {"unit": "time", "window_s": 1e6, "arms": arms}
    async with engine(**SMALL) as a, router([a], admission=ON) as r:
        assert (await r.admin.put("/admin/experiment", json=experiment)).status_code == 200
        record = await r.record((await Chat(r, "first").turn()).record)
        named = {"fit": "fit", "cap": "concurrency"}
        assert record["admission_rule"] == named[record["arm"]]
        report = (await r.admin.get("/admin/experiment")).json()["report"]
        assert {arm["arm"]: arm["admission"] for arm in report["arms"]} == named
        off = await r.admin.put("/admin/admission", content="enabled: false")
        assert (off.status_code, "admission.enabled" in off.text) == (422, True)


async def test_off_leaves_no_trace(router: Any) -> None:
    async with engine(**SMALL) as a, router([a]) as r:
        said = await Chat(r, "first", words=240).turn()
        assert (await Chat(r, "second", words=240).turn()).ok
        assert "x-warmroute-waited-ms" not in said.headers
        assert (await r.record(said.record))["stages"]["admission_ms"] is None
        shown = (await r.admin.get("/admin/admission")).json()
        assert shown == {"enabled": False, "rule": {"name": "fit"}, "models": []}
        page = (await r.http.get("/metrics")).text
        assert [line for line in page.splitlines() if line.startswith("warmroute_admission")] == []


async def test_what_no_engine_computes_a_prompt_for_is_not_kept_waiting(router: Any) -> None:
    async with engine(**SMALL) as a, router([a], admission=ON | {"max_wait_s": 0.2}) as r:
        await a_full_house(r)
        answer = await r.post("/tokenize", {"model": MODEL, "prompt": "some words"})
        assert answer.status_code == 200
