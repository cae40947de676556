"""The admin API over real sockets: what it tells is what happened, and draining works."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fakes.engines import engine, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "warm-tiny"
CHAT = "/v1/chat/completions"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{text} " * 60}]} | fields


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    policies = {"warm": {"scorers": [{"name": "queue_depth"}, {"name": "prefix_overlap", "weight": 3}]}}
    async with engine() as a, engine() as b, router_of_module([a, b], policies=policies) as running:
        yield running


async def test_a_record_tells_the_whole_story(routed: Any) -> None:
    """Its terms add up to its costs, the cheapest row was taken, and the engine's own counts are in it."""
    await routed.post(CHAT, chat("record"))
    await routed.hear()
    answer = await routed.post(CHAT, chat("record", stream=True))
    record = await routed.record(answer)
    (attempt,) = record["attempts"]
    for row in attempt["candidates"]:
        assert set(row["terms"]) == {"queue_depth", "prefix_overlap"}
        assert sum(term["weighted"] for term in row["terms"].values()) == pytest.approx(row["cost"])
    cheapest = min(attempt["candidates"], key=lambda row: row["cost"])
    assert attempt["target"] == cheapest["target"] == record["target"] == answer.headers["x-warmroute-target"]
    assert cheapest["overlap"]["gpu_tokens"] == attempt["predicted_tokens"] == record["cached_tokens"] > 0
    assert (attempt["end"], attempt["policy"], record["status"], record["stream"]) == ("ok", "warm", 200, True)
    stages = [record["stages"][name] for name in ("parse_ms", "tokens_ms", "keys_ms", "match_ms", "decide_ms")]
    assert all(stage >= 0 for stage in stages)
    assert 0 < record["ttft_ms"] <= record["duration_ms"]
    assert "content" not in json.dumps(record)  # nothing of what was said


async def test_the_stages_of_a_request_follow_each_other_until_its_end(routed: Any) -> None:
    record = await routed.record(await routed.post(CHAT, chat("timeline", stream=True)))
    ran = [stage for stage in record["timeline"] if stage["start_ms"] is not None]
    assert [stage["name"] for stage in ran] == [
        "body", "parse", "tokens", "match", "decide", "connect", "first_token", "stream"
    ]  # fmt: skip
    ends = [stage["start_ms"] + stage["duration_ms"] for stage in ran]
    assert all(after["start_ms"] >= end - 1e-6 for end, after in zip(ends, ran[1:], strict=False))
    assert record["ttft_ms"] == pytest.approx(ran[-1]["start_ms"])
    assert ends[-1] <= record["duration_ms"]
    promise = record["promise"]
    assert promise["cached_tokens"] == record["cached_tokens"]
    assert 0 < promise["measured_ttft_ms"] < record["ttft_ms"]
    assert promise["predicted_ttft_ms"] > 0


async def test_the_router_s_other_policies_say_what_they_would_have_chosen(router: Any) -> None:
    policies = {name: {"scorers": [{"name": name}]} for name in ("warm", "least_requests", "prefix_overlap")}
    async with engine() as a, engine() as b, router([a, b], policies=policies) as r:
        record = await r.record(await r.post(CHAT, chat("others")))
        assert {"least_requests", "prefix_overlap"} <= {other["policy"] for other in record["others"]}
        assert "warm" not in {other["policy"] for other in record["others"]}
        targets = {row["target"] for row in record["attempts"][0]["candidates"]}
        assert all(other["target"] in targets and other["fault"] is None for other in record["others"])


async def test_a_session_is_found_by_the_name_that_its_client_gave(routed: Any) -> None:
    answers = [await routed.post(CHAT, chat("mine"), headers={"x-session-id": name}) for name in ("ana", "bea", "ana")]
    found = (await routed.admin.get("/admin/records", params={"session": "ana"})).json()["records"]
    mine = [answers[i].headers["x-warmroute-record"] for i in (2, 0)]
    assert [record["id"] for record in found] == mine
    same = (await routed.admin.get("/admin/records", params={"session": found[0]["session"]})).json()["records"]
    assert [record["id"] for record in same] == mine


async def test_records_come_newest_first_and_are_bounded(router: Any) -> None:
    async with engine() as a, router([a], records={"keep": 3}) as r:
        ids = [(await r.post(CHAT, chat("x"))).headers["x-warmroute-record"] for _ in range(5)]
        assert [record["id"] for record in await r.records()] == ids[:1:-1]
        assert [record["id"] for record in await r.records(1)] == ids[-1:]
        gone = await r.admin.get(f"/admin/records/{ids[0]}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_record")


async def test_a_record_can_be_read_while_its_request_runs(router: Any) -> None:
    async with engine(prefill_tokens_per_s=1) as slow, router([slow]) as r:
        asking = asyncio.create_task(r.post(CHAT, chat("slow")))
        await eventually(lambda: slow.gauges().running == 1)
        (record,) = await r.records()
        assert (record["done"], record["status"], record["attempts"][0]["end"]) == (False, None, "running")
        (target,) = (await r.instances())[slow.address]["targets"]
        assert (target["load"]["requests"], target["load"]["prefilling"]) == (1, 1)
        waiting = (await r.admin.get(f"/admin/records/{record['id']}")).json()["timeline"][-1]
        assert (waiting["name"], waiting["duration_ms"]) == ("first_token", None)
        assert waiting["start_ms"] > 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(r.idle)


async def test_instances_tell_state_index_and_streams(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        await r.post(CHAT, chat("instances"))
        await r.hear()
        told = await r.instances()
        assert set(told) == {a.address, b.address}
        assert a.gauges().cached_blocks + b.gauges().cached_blocks > 0
        for fake in (a, b):
            instance = told[fake.address]
            assert (instance["state"], instance["models"], instance["trouble"]) == ("ready", [MODEL], None)
            assert instance["tokenizer"]["source"] == "local"
            (target,) = instance["targets"]
            assert (target["block_tokens"], target["breaker"]) == (16, "closed")
            stream = target["stream"]
            assert (stream["state"], stream["gaps"], stream["malformed"], stream["orphans"]) == ("live", 0, 0, 0)
            assert stream["blocks"] == {"gpu": fake.gauges().cached_blocks, "cpu": 0, "disk": 0}


async def test_a_drained_instance_finishes_what_it_has_and_gets_nothing_new(router: Any) -> None:
    async with engine(decode_ms_per_token=20) as a, engine() as b, router([a, b]) as r:
        await r.http.post(a.url + CHAT, json=chat("drain", max_tokens=1))  # only this engine holds it
        await r.hear()
        running = asyncio.create_task(r.post(CHAT, chat("drain", stream=True, max_tokens=10)))
        await eventually(lambda: a.gauges().running == 1)

        drained = await r.admin.post(f"/admin/instances/{a.address}/drain")
        assert drained.json() == {"id": a.address, "draining": True}
        assert (await r.instances())[a.address]["state"] == "draining"
        for _ in range(4):
            answer = await r.post(CHAT, chat("drain"))
            assert answer.headers["x-warmroute-target"] == f"{b.address}/0"
        finished = await running
        assert finished.content.endswith(b"data: [DONE]\n\n")
        assert finished.headers["x-warmroute-target"] == f"{a.address}/0"
        assert (await r.instances())[a.address]["state"] == "drained"

        undrained = await r.admin.post(f"/admin/instances/{a.address}/undrain")
        assert undrained.json() == {"id": a.address, "draining": False}
        assert (await r.instances())[a.address]["state"] == "ready"
        assert await r.metric("warmroute_instance_state", engine=a.address, state="ready") == 1


@pytest.mark.parametrize("told_by", ["the operator", "its event"])
async def test_what_an_engine_of_other_weights_held_is_forgotten(router: Any, told_by: str) -> None:
    async with engine(events=told_by == "its event") as fake, router([fake]) as r:
        await r.post(CHAT, chat("old weights"))
        await r.hear()
        before = await r.record(await r.post(CHAT, chat("old weights")))
        await r.hear()
        assert before["attempts"][0]["expected_tokens"] > 0
        await r.http.post(f"{fake.url}/reset_prefix_cache")
        if told_by == "the operator":
            answer = await r.admin.post(f"/admin/instances/{fake.address}/weights-changed")
            assert answer.json() == {"id": fake.address}
        else:  # vLLM publishes events with its next step, this one too
            await r.http.post(fake.url + CHAT, json=chat("anything else", max_tokens=1))
            await r.hear()
        after = await r.record(await r.post(CHAT, chat("old weights")))
        assert after["attempts"][0]["expected_tokens"] == after["cached_tokens"] == 0


async def test_what_is_not_there(routed: Any) -> None:
    for method, path in (
        ("GET", "/admin/records/none"),
        ("POST", "/admin/instances/none/drain"),
        ("POST", "/admin/instances/none/undrain"),
        ("GET", "/admin/nothing"),
        ("GET", CHAT),
        ("GET", "/metrics"),
    ):
        answer = await routed.admin.request(method, path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error"), path
    assert (await routed.admin.get("/admin/records", params={"limit": 0})).status_code == 422


async def test_policies(routed: Any) -> None:
    told = (await routed.admin.get("/admin/policies")).json()
    assert (told["active"], told["names"]) == ("warm", ["warm"])
    assert told["needs"] == ["CACHE", "LOAD"]
    assert [policy["role"] for policy in told["policies"]] == ["active"]


async def test_tokens_have_rights(router: Any) -> None:
    tokens = [
        {"name": name, "hash": hashlib.sha256(name.encode()).hexdigest(), "rights": rights}
        for name, rights in (("reader", ["read"]), ("writer", ["read", "write"]), ("blind", ["write"]))
    ]
    async with engine() as a, router([a], admin={"tokens": tokens}) as r:
        drain = f"/admin/instances/{a.address}/undrain"
        expected = {
            None: (401, 401),
            "wrong": (401, 401),
            "reader": (200, 403),
            "writer": (200, 200),
            "blind": (403, 200),
        }
        for token, statuses in expected.items():
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            read = await r.admin.get("/admin/instances", headers=headers)
            write = await r.admin.post(drain, headers=headers)
            assert (read.status_code, write.status_code) == statuses, token


async def test_a_browser_on_another_site_gets_nothing(routed: Any) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert (await routed.admin.get("/admin/instances", headers=headers)).status_code == 403


async def test_metrics_agree_with_the_records(router: Any) -> None:
    async with engine() as a, router([a]) as r:
        records = []
        for _ in range(3):
            records.append(await r.record(await r.post(CHAT, chat("metrics"))))
            await r.hear()
        assert await r.metric("warmroute_requests_total", endpoint=CHAT, status="2xx") == 3
        for name, field in (("prompt", "prompt_tokens"), ("delivered", "cached_tokens"), ("output", "output_tokens")):
            assert await r.metric(f"warmroute_{name}_tokens_total") == sum(record[field] for record in records)
        predicted = sum(record["attempts"][0]["predicted_tokens"] or 0 for record in records)
        assert await r.metric("warmroute_predicted_tokens_total") == predicted > 0
        assert await r.metric("warmroute_engine_attempts_total", engine=a.address, end="ok") == 3
        assert await r.metric("warmroute_engine_ttft_seconds_count", engine=a.address) == 3
        for name in ("predicted", "delivered"):
            of_all = await r.metric(f"warmroute_{name}_tokens_total")
            assert await r.metric(f"warmroute_engine_{name}_tokens_total", engine=a.address) == of_all
        assert await r.metric("warmroute_in_flight_requests") == 0
        assert await r.metric("warmroute_target_requests") == 0
        held = (await r.instances())[a.address]["targets"][0]["stream"]["blocks"]["gpu"]
        assert await r.metric("warmroute_index_blocks", tier="gpu") == held > 0


async def test_the_api_keeps_to_its_own_description(routed: Any) -> None:
    """schemathesis: every status, content type and body that the OpenAPI document promises, and no 5xx."""
    description = (await routed.admin.get("/admin/openapi.json")).json()
    schema = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=routed.admin_url)
    called: set[str] = set()

    def run() -> None:
        for operation in schema.get_all_operations():
            _fuzz(operation.ok(), called)

    await asyncio.to_thread(run)
    assert called == set(description["paths"])


def _fuzz(operation: Any, called: set[str]) -> None:
    @settings(
        max_examples=8,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        called.add(operation.path)
        # A policy is text, and so is a time: what stands in it no JSON schema can say.
        of_text = case.method == "PUT" or operation.path == "/admin/records"
        case.call_and_validate(excluded_checks=[positive_data_acceptance] if of_text else [])

    one()
