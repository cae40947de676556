"""Every endpoint there is: hits on the four that go by cache, and bytes that come and go as they were on all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes.engines import engine, eventually
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "warm-tiny"
STORY = "Tell me a long story about routers. " * 20
OPENING = [{"role": "user", "content": STORY}]
GO_ON = "And then? " * 20
NEXT = {"role": "user", "content": GO_ON}
BY_CACHE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
BY_LOAD: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"model": MODEL, "messages": OPENING},
    "/v1/embeddings": {"model": MODEL, "input": ["one", "two"]},
    "/v1/rerank": {"model": MODEL, "query": "q", "documents": ["a", "b", "c"]},
    "/v1/score": {"model": MODEL, "text_1": "q", "text_2": ["a", "b"]},
    "/tokenize": {"model": MODEL, "prompt": "one two"},
    "/detokenize": {"model": MODEL, "tokens": [5, 6, 7]},
}
VARIES = re.compile(rb'"(created|created_at)":\d+|"id":"[^"]*"')  # between two answers to the same request


def first_body(path: str, **fields: Any) -> dict[str, Any]:
    """A first turn in this endpoint's dialect."""
    by_path: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": STORY},
        "/v1/responses": {"input": OPENING},
        "/v1/messages": {"messages": OPENING, "max_tokens": 16},
    }
    return {"model": MODEL} | by_path.get(path, {"messages": OPENING}) | fields


def next_body(path: str, answer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The turn after that, with what was answered in it."""
    if path == "/v1/completions":
        return {"model": MODEL, "prompt": STORY + answer["choices"][0]["text"] + GO_ON} | fields
    if path == "/v1/responses":
        said = answer["output"][0]["content"][0]["text"]
        return {"model": MODEL, "input": [*OPENING, {"role": "assistant", "content": said}, NEXT]} | fields
    if path == "/v1/messages":
        said = {"role": "assistant", "content": answer["content"]}
        return {"model": MODEL, "max_tokens": 16, "messages": [*OPENING, said, NEXT]} | fields
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    return {"model": MODEL, "messages": [*OPENING, said, NEXT]} | fields


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    """One router in front of four engines for all tests here."""
    async with engine() as a, engine() as b, engine() as c, engine() as d, router_of_module([a, b, c, d]) as running:
        yield running


def by_target(routed: Any, answer: httpx.Response) -> Any:
    """The engine that gave this answer."""
    address = answer.headers["x-warmroute-target"].rpartition("/")[0]
    return next(fake for fake in routed.engines if fake.address == address)


@pytest.mark.parametrize("path", BY_CACHE)
async def test_the_second_turn_meets_the_cache_of_the_first(routed: Any, path: str) -> None:
    salt = {"cache_salt": path}  # so that the four tests do not warm each other's engines
    first = await routed.post(path, first_body(path, **salt))
    assert (await routed.record(first))["cached_tokens"] == 0
    await routed.hear()

    second = await routed.post(path, next_body(path, first.json(), **salt))
    record = await routed.record(second)
    assert len(record["attempts"][0]["candidates"]) == 4
    assert second.headers["x-warmroute-target"] == first.headers["x-warmroute-target"]
    assert record["attempts"][0]["predicted_tokens"] == record["cached_tokens"] > 0
    assert record["prompt_tokens"] == record["prompt_tokens_counted"]
    await routed.hear()

    third = await routed.record(await routed.post(path, next_body(path, first.json(), stream=True, **salt)))
    assert third["target"] == record["target"]
    assert third["attempts"][0]["predicted_tokens"] == third["cached_tokens"] > record["cached_tokens"]


async def test_token_ids_given_by_the_client_are_matched(routed: Any) -> None:
    body = {"model": MODEL, "prompt": list(range(3, 103)), "max_tokens": 1}
    first = await routed.record(await routed.post("/v1/completions", body))
    await routed.hear()
    again = await routed.record(await routed.post("/v1/completions", body))
    assert again["tokens_from"] == "given"
    assert again["target"] == first["target"]
    assert again["attempts"][0]["predicted_tokens"] == again["cached_tokens"] == 96  # six of six whole blocks


async def test_a_burst_on_one_new_prefix_does_not_scatter(routed: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "burst " * 200}]}
    answers = await asyncio.gather(*(routed.post("/v1/chat/completions", body) for _ in range(12)))
    assert len({answer.headers["x-warmroute-target"] for answer in answers}) == 1


@pytest.mark.parametrize("path", BY_LOAD)
async def test_endpoints_placed_by_load_answer_as_the_engine_does(routed: Any, path: str) -> None:
    content = json.dumps(BY_LOAD[path]).encode()
    ours = await routed.post(path, content)
    fake = by_target(routed, ours)
    theirs = await routed.http.post(fake.url + path, content=content, headers={"content-type": "application/json"})
    assert ours.status_code == theirs.status_code == 200
    assert VARIES.sub(b"", ours.content) == VARIES.sub(b"", theirs.content)
    assert fake.seen(path)[-1].body == fake.seen(path)[-2].body == content
    record = await routed.record(ours)
    assert (record["endpoint"], record["status"]) == (path, 200)


async def test_nothing_of_a_request_changes_on_its_way(routed: Any) -> None:
    """Odd spacing, unknown fields, big numbers, duplicate and unknown headers, the query: the engine gets them all."""
    body = (
        b'{ "model":"warm-tiny",\n\t"messages" : [{"role":"user","content":"\\u00e9\\ud83d\\ude00 \xc3\xa9"}],'
        b'"future": {"x": [1e300, -0.0, 12345678901234567890123]}, "seed":1 , "max_tokens":2}'
    )
    headers = [
        ("content-type", "application/json"),
        ("x-custom", "one"),
        ("X-Odd-Case", "k\xe9pt".encode("latin-1")),
        ("traceparent", "00-1-2-03"),
    ]
    answer = await routed.http.post("/v1/chat/completions?a=1&b=%2F", content=body, headers=headers)
    assert answer.status_code == 200
    call = by_target(routed, answer).seen("/v1/chat/completions")[-1]
    assert call.body == body
    assert call.query == "a=1&b=%2F"
    assert call.headers["x-custom"] == "one"
    assert call.headers["x-odd-case"] == "k\xe9pt"
    assert call.headers["traceparent"] == "00-1-2-03"
    assert call.headers["content-length"] == str(len(body))
    assert call.headers["x-request-id"] == answer.headers["x-warmroute-record"]


async def test_a_request_id_of_the_clients_own_is_kept(routed: Any) -> None:
    answer = await routed.post("/v1/completions", first_body("/v1/completions"), headers={"x-request-id": "mine-1"})
    assert answer.json()["id"] == "cmpl-mine-1"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"max_tokens": 10_000_000}),
        ("/v1/chat/completions", {"n": "many"}),
        ("/v1/completions", {"max_tokens": 10_000_000}),
        ("/v1/responses", {"previous_response_id": "resp_unheard_of"}),
        ("/v1/messages", {"max_tokens": 10_000_000}),
    ],
)
async def test_an_engines_refusal_comes_back_as_it_was(routed: Any, path: str, fields: dict[str, Any]) -> None:
    body = first_body(path, **fields)
    ours = await routed.post(path, body)
    theirs = await routed.http.post(by_target(routed, ours).url + path, json=body)
    assert 400 <= ours.status_code < 500
    assert ours.status_code == theirs.status_code
    assert ours.content == theirs.content
    record = await routed.record(ours)
    assert (record["status"], len(record["attempts"])) == (ours.status_code, 1)
    assert {i["targets"][0]["breaker"] for i in (await routed.instances()).values()} == {"closed"}


async def test_answer_headers_come_back_with_two_of_ours(routed: Any) -> None:
    ours = await routed.post("/v1/completions", first_body("/v1/completions"))
    theirs = await routed.http.post(by_target(routed, ours).url + "/v1/completions", json=first_body("/v1/completions"))
    named = {name for name in ours.headers if not name.startswith("x-warmroute-")}
    assert named == set(theirs.headers)
    assert {name for name in ours.headers if name.startswith("x-warmroute-")} == {
        "x-warmroute-target",
        "x-warmroute-record",
    }
    assert ours.headers["server"] == theirs.headers["server"]


@pytest.mark.parametrize("path", BY_CACHE)
async def test_the_first_piece_of_a_stream_does_not_wait_for_the_second(router: Any, path: str) -> None:
    """The second token takes a minute; the first is here at once. Then the client leaves, and the engine is told."""
    async with engine(decode_ms_per_token=60_000) as slow, router([slow]) as r:
        async with r.http.stream("POST", path, json=first_body(path, stream=True)) as answer:
            async with asyncio.timeout(PATIENCE_S):
                got = ""
                pieces = answer.aiter_text()
                while not re.search(r'"(content|text|delta)":\s*"[^"]', got):
                    got += await anext(pieces)
            assert slow.gauges().running == 1
            assert r.booked == 1
        await eventually(lambda: slow.gauges().running == 0)
        await eventually(r.idle)
        (record,) = await r.records(1)
        assert record["attempts"][0]["end"] == "client_gone"


async def test_a_client_that_leaves_before_the_first_byte_frees_everything(router: Any) -> None:
    async with engine(prefill_tokens_per_s=1) as slow, router([slow]) as r:
        leaving = asyncio.create_task(r.post("/v1/chat/completions", first_body("/v1/chat/completions")))
        await eventually(lambda: slow.gauges().running == 1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await eventually(lambda: slow.gauges().running == 0)
        await eventually(r.idle)


async def test_stored_responses_are_asked_for_where_they_are(routed: Any) -> None:
    made = await routed.post("/v1/responses", first_body("/v1/responses", instructions="Be brief. " * 1000))
    id = made.json()["id"]
    kept = await routed.http.get(f"/v1/responses/{id}")
    assert (kept.status_code, kept.json()["id"]) == (200, id)
    assert kept.headers["x-warmroute-target"] == made.headers["x-warmroute-target"]
    cancelled = await routed.http.post(f"/v1/responses/{id}/cancel")
    assert cancelled.status_code == 400  # the engine's word: it was not in the background
    assert "synchronous" in cancelled.json()["error"]["message"]
    for method, path in (("GET", "/v1/responses/resp_nobody"), ("POST", "/v1/responses/resp_nobody/cancel")):
        unknown = await routed.http.request(method, path)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_response")


async def test_a_response_is_known_while_it_is_still_being_made(router: Any) -> None:
    """A stream in the background is cancelled by the id that its first event told."""
    async with engine(decode_ms_per_token=60_000) as a, engine(decode_ms_per_token=60_000) as b, router([a, b]) as r:
        body = first_body("/v1/responses", stream=True)
        async with r.http.stream("POST", "/v1/responses", json=body) as answer:
            async with asyncio.timeout(PATIENCE_S):
                first = await anext(answer.aiter_text())
            id = re.search(r'"id":"(resp_[^"]+)"', first)[1]
            asked = await r.http.post(f"/v1/responses/{id}/cancel")
            assert asked.headers["x-warmroute-target"] == answer.headers["x-warmroute-target"]


async def test_remembered_responses_are_bounded(router: Any) -> None:
    async with engine() as a, router([a], limits={"responses_kept": 2}) as r:
        ids = [(await r.post("/v1/responses", first_body("/v1/responses"))).json()["id"] for _ in range(3)]
        assert [stored.id for stored in r.core.responses()] == ids[1:]
        assert (await r.http.get(f"/v1/responses/{ids[0]}")).status_code == 200  # its engine was queried for it
        assert [stored.id for stored in r.core.responses()] == [ids[2], ids[0]]


async def test_a_response_from_before_a_restart_is_found_at_its_engine(router: Any) -> None:
    async with engine() as a, engine() as b:
        async with router([a, b]) as first:
            made = await first.post("/v1/responses", first_body("/v1/responses", instructions="Be brief. " * 1000))
            id, target = made.json()["id"], made.headers["x-warmroute-target"]
        async with router([a, b]) as second:
            followed = first_body("/v1/responses", previous_response_id=id)
            answers = [
                await second.http.post("/v1/responses", json=followed),
                await second.http.get(f"/v1/responses/{id}"),
                await second.http.post(f"/v1/responses/{id}/cancel"),
            ]
            assert [answer.status_code for answer in answers] == [200, 200, 400]
            assert {answer.headers["x-warmroute-target"] for answer in answers} == {target}


async def test_engines_are_queried_for_an_unknown_response_once(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        for _ in range(3):
            unknown = await r.http.get("/v1/responses/resp_nobody")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_response")
        assert [len(fake.seen("/v1/responses/resp_nobody")) for fake in (a, b)] == [1, 1]
        assert (await r.http.get("/v1/responses/..%2fhealth")).status_code == 404
        assert not any("health" in one.path for fake in (a, b) for one in fake.seen("/v1/responses/..%2fhealth"))


async def test_a_silent_engine_does_not_hide_a_response(router: Any) -> None:
    async with engine() as a, engine() as b:
        async with router([a]) as first:
            id = (await first.post("/v1/responses", first_body("/v1/responses"))).json()["id"]
        async with router([a, b]) as second:
            b.faults(hang=["/v1/responses"])
            async with asyncio.timeout(PATIENCE_S):
                assert (await second.http.get(f"/v1/responses/{id}")).status_code == 200


async def test_a_tenant_that_stores_without_end_loses_its_own(router: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    names = ("modest", "greedy")
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    limits = {"responses_kept": 3}
    clients = {"keys_file": str(keys), "isolation": "tenant"}  # else a forgotten one is found at its engine
    async with engine() as a, router([a], limits=limits, clients=clients) as r:
        ids: dict[str, list[str]] = {name: [] for name in names}
        for name in ("modest", *["greedy"] * 4):
            headers = {"x-api-key": name}
            answer = await r.post("/v1/responses", first_body("/v1/responses"), headers=headers)
            ids[name].append(answer.json()["id"])
        found = {
            name: [(await r.http.get(f"/v1/responses/{id}", headers={"x-api-key": name})).status_code for id in stored]
            for name, stored in ids.items()
        }
        assert found == {"modest": [200], "greedy": [404, 404, 200, 200]}


async def test_everything_was_given_back(routed: Any) -> None:
    """Last: nothing is booked and nothing is held."""
    await eventually(routed.idle)
