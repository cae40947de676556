"""What strangers send to a real router: broken bodies, wrong methods, other protocols, pages of other origins."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.prompt.tokenization.tokenization import Tokenization
from router.request.public_paths import PATHS
from tests.fakes.engines import engine
from tests.patience import PATIENCE_S
from tests.router.prompt.api.hostile_bodies import PIECES, VALID, WHOLE, render

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL, ADAPTER = "warm-tiny", "poet"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
PROMPTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
USER = [{"role": "user", "content": "hello"}]
RIGHT: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 2},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
    RESPONSES: {"input": "hello", "max_output_tokens": 2},
    MESSAGES: {"messages": USER, "max_tokens": 2},
}
ORIGIN = {"origin": "https://a.example"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    async with engine(loras={ADAPTER: "/poet"}) as fake, router_of_module([fake], log={"access": True}) as running:
        yield running


async def raw(routed: Any, request: bytes) -> bytes:
    """All that comes back for these bytes, until the router closes the connection."""
    host, port = routed.url.rpartition("//")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def error(answer: httpx.Response, status: int, path: str = "") -> dict[str, Any]:
    """The error in an answer of the router's own, whose form is that of the path."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    body = answer.json()
    assert ("type" in body) is path.startswith(MESSAGES)
    return dict(body["error"])


# bodies


@pytest.mark.parametrize("path", [*PROMPTS, "/v1/embeddings"])
async def test_broken_bodies_are_refused_counted_and_logged(routed: Any, path: str, caplog: Any) -> None:
    valid = VALID[path] | {b"model": json.dumps(MODEL).encode()}
    bodies = [body for body in WHOLE if body or path != "/v1/embeddings"]
    bodies += [render(valid)[:-1], render(valid)[:-1] + b",}", b"\xef\xbb\xbf" + render(valid)]
    bodies += [render(valid | {b"user": piece}) for piece in (b'"\\ud83d"', b"NaN", b"[1,]", b"[" * 100_000)]
    before = await routed.metric("warmroute_errors_total", endpoint=path, reason="bad_request")
    refused = 0
    with caplog.at_level(logging.INFO):
        for body in bodies:
            answer = await routed.post(path, body)
            if "x-warmroute-target" in answer.headers:
                continue  # the engine's own verdict, as of {}
            assert error(answer, 400, path)["message"], body[:80]
            refused += 1
    assert refused >= 25
    assert await routed.metric("warmroute_errors_total", endpoint=path, reason="bad_request") == before + refused
    lines = [record.getMessage() for record in caplog.records if record.name == "warmroute.access"]
    assert sum(f"path={path} status=400" in line and " target=" not in line for line in lines) == refused
    assert warnings(caplog) == []


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the router warned of, but for prefills that take longer: on a busy machine they do."""
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if "prefills take" not in text]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_odd_value_has_an_answer_and_no_traceback(routed: Any, path: str, caplog: Any) -> None:
    """The fields that the router itself decodes; a 5xx may only be the engine's."""
    valid = VALID[path] | {b"model": json.dumps(MODEL).encode(), b"max_tokens": b"1"}
    fields = (
        b"stream_options",
        b"stop",
        b"documents",
        b"user",
        b"vllm_xargs",
        b"messages" if path == CHAT else b"prompt",
    )
    for name in fields:
        for piece in PIECES:
            answer = await routed.post(path, render(valid | {name: piece}))
            assert answer.status_code < 500 or "x-warmroute-target" in answer.headers, (name, piece[:60], answer.text)
    assert warnings(caplog) == []


@pytest.mark.parametrize("path", [*PROMPTS, "/v1/embeddings", "/tokenize"])
async def test_a_compressed_body_is_415(routed: Any, path: str) -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "input": "x"} | RIGHT.get(path, {})).encode())
    for coding in ("gzip", "deflate, gzip", "GZIP", "br", "zstd"):
        answer = await routed.post(path, body, headers={"content-encoding": coding})
        assert coding.lower() in error(answer, 415, path)["message"]
        assert answer.headers["accept-encoding"] == "identity"


async def test_the_identity_coding_is_none(routed: Any) -> None:
    for coding in ("identity", "", "Identity, identity"):
        answer = await routed.post(CHAT, RIGHT[CHAT] | {"model": MODEL}, headers={"content-encoding": coding})
        assert answer.status_code == 200


async def test_a_fault_of_the_routers_own_is_counted_and_logged_once(
    routed: Any, monkeypatch: Any, caplog: Any
) -> None:
    def fail(*anything: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Tokenization, "tokenize", fail)
    for path in PROMPTS:
        caplog.clear()
        answer = await routed.post(path, RIGHT[path] | {"model": MODEL})
        assert error(answer, 500, path)["type"] == ("api_error" if path == MESSAGES else "server_error")
        assert await routed.metric("warmroute_errors_total", endpoint=path, reason="internal_error") == 1
        assert await routed.metric("warmroute_requests_total", endpoint=path, status="5xx") == 1
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert (record.getMessage(), record.exc_info is not None) == (f"POST {path} failed", True)
    monkeypatch.undo()
    assert (await routed.post(CHAT, RIGHT[CHAT] | {"model": MODEL})).status_code == 200
    assert routed.idle()


# methods


@pytest.mark.parametrize("entry", PATHS, ids=[entry.path for entry in PATHS])
async def test_wrong_methods(routed: Any, entry: Any) -> None:
    path = entry.path.replace("{id}", "resp_1").replace("{model}", MODEL)
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - set(entry.methods):
        answer = await routed.http.request(method, path, content=b"{}")
        assert error(answer, 405, path)["type"] == "invalid_request_error"
        assert set(answer.headers["allow"].split(", ")) == set(entry.methods)
    if "HEAD" not in entry.methods:
        answer = await routed.http.head(path)
        assert (answer.status_code, answer.content) == (405, b"")


@pytest.mark.parametrize(
    "path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/ready", "/metrics", "/v1/models/no"]
)
async def test_a_head_has_no_body_and_the_connection_goes_on(routed: Any, path: str) -> None:
    whole = await routed.http.get(path)
    requests = b"HEAD %b HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    head, _, rest = (await raw(routed, requests % path.encode())).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % whole.status_code)
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b'{"status":"ok"}')
    if path != "/metrics":
        assert f"content-length: {len(whole.content)}".encode() in head


async def test_a_websocket_gets_426_and_may_go_on_by_post(routed: Any) -> None:
    body = json.dumps(RIGHT[RESPONSES] | {"model": MODEL}).encode()
    handshake = (
        b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    post = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    post += b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
    answers = await raw(routed, handshake + post % (len(body), body))
    head, _, rest = answers.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert {b"upgrade: HTTP/1.1", b"connection: upgrade"} < set(head.split(b"\r\n"))
    assert b"use POST" in rest
    assert b"HTTP/1.1 200 OK" in rest
    plain = await routed.http.get("/v1/responses")
    assert (plain.status_code, plain.headers["allow"]) == (405, "POST")


# models


async def test_one_model_by_its_name(routed: Any) -> None:
    cards = {card["id"]: card for card in (await routed.http.get("/v1/models")).json()["data"]}
    assert set(cards) == {MODEL, ADAPTER}
    for name, card in cards.items():
        assert (await routed.http.get(f"/v1/models/{name}")).json() | {"created": 0} == card | {"created": 0}
    unknown = error(await routed.http.get("/v1/models/org%2Fname"), 404)
    assert (unknown["code"], unknown["param"], "`org/name`" in unknown["message"]) == ("model_not_found", "model", True)


async def test_a_models_name_with_a_slash(router: Any) -> None:
    async with engine(model="org/name:7b") as fake, router([fake]) as r:
        for path in ("/v1/models/org/name:7b", "/v1/models/org%2Fname%3A7b", "/v1/models/org%2fname:7b?x=1"):
            assert (await r.http.get(path)).json()["id"] == "org/name:7b"


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}])
async def test_without_a_model_the_only_one_answers(routed: Any, path: str, named: dict[str, Any]) -> None:
    body = json.dumps(RIGHT[path] | named).encode()
    answer = await routed.post(path, body)
    if path == MESSAGES:  # where vLLM demands a name
        assert (answer.status_code, "x-warmroute-target" in answer.headers) == (400, True)
    else:
        assert (answer.status_code, answer.json()["model"]) == (200, MODEL)
    assert routed.engines[0].seen(path)[-1].body == body
    assert (await routed.record(answer))["model"] == MODEL
    assert error(await routed.post(path, RIGHT[path] | {"model": 3}), 400, path)["message"].startswith("`model`")


async def test_without_a_model_streams_are_as_usual(routed: Any) -> None:
    answer = await routed.post(CHAT, RIGHT[CHAT] | {"stream": True})
    assert (answer.status_code, answer.text.endswith("data: [DONE]\n\n")) == (200, True)


async def test_without_a_model_among_several_is_400(router: Any) -> None:
    async with engine() as a, engine(model="other") as b, router([a, b]) as r:
        for path in PROMPTS:
            refused = error(await r.post(path, RIGHT[path]), 400, path)
            assert refused["message"] == f"`model` is missing; models here: other, {MODEL}"
        assert (await r.post("/v1/embeddings", {"input": "x"})).status_code == 200  # placed by load, as before


async def test_a_tenant_gets_no_model_by_not_naming_it(router: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(f"{sha256(name.encode()).hexdigest()} {name}" for name in ("one", "two")))
    classes = {"default": {"models": ["poet"]}, "all": {}}
    clients = {"keys_file": str(keys), "service_classes": classes, "tenants": {"two": {"service_class": "all"}}}
    async with engine(loras={ADAPTER: "/poet"}) as fake, router([fake], clients=clients) as r:
        for path in (*PROMPTS, "/v1/embeddings", "/rerank"):
            body = RIGHT.get(path, {"input": "x", "query": "x", "documents": ["x"], "prompt": "x"})
            for named in ({}, {"model": ""}, {"model": None}):
                refused = error(await r.post(path, body | named, headers={"x-api-key": "one"}), 403, path)
                assert MODEL in refused["message"]
            served = await r.post(path, body, headers={"x-api-key": "two"})
            assert served.status_code == (400 if path == MESSAGES else 200)  # vLLM's own demand
            assert len(fake.seen(path)) == 1
        cards = (await r.http.get("/v1/models", headers={"x-api-key": "one"})).json()["data"]
        assert [card["id"] for card in cards] == [ADAPTER]
        assert (await r.http.get(f"/v1/models/{MODEL}", headers={"x-api-key": "one"})).status_code == 404
        assert (await r.http.get(f"/v1/models/{MODEL}", headers={"x-api-key": "two"})).status_code == 200


# paths of engines


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_all_names_of_rerank(router: Any, path: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{sha256(b'k').hexdigest()} somebody")
    clients = {"keys_file": str(keys), "isolation": "tenant"}
    async with engine() as fake, router([fake], clients=clients) as r:
        body = {"model": MODEL, "query": "x", "documents": ["y", "z"]}
        answer = await r.post(path, body, headers={"x-api-key": "k"})
        assert (answer.status_code, len(answer.json()["results"])) == (200, 2)
        (got,) = fake.seen(path)
        assert set(json.loads(got.body)) == {*body, "cache_salt"}


async def test_requests_about_a_response_reach_its_engine(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        answers = [await r.post(RESPONSES, RIGHT[RESPONSES] | {"model": MODEL, "store": True}) for _ in range(4)]
        for answer in answers:
            path = f"{RESPONSES}/{answer.json()['id']}"
            target = answer.headers["x-warmroute-target"]
            for method, below in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
                about = await r.http.request(method, path + below)
                assert about.headers["x-warmroute-target"] == target
                (seen,) = [one for fake in (a, b) for one in fake.seen(path + below) if one.method == method]
                assert seen.body == b""
        unknown = error(await r.http.delete(f"{RESPONSES}/resp_unknown"), 404)
        assert unknown["code"] == "unknown_response"


# dialects and origins


async def test_clients_of_anthropics_api_get_its_errors_everywhere(routed: Any) -> None:
    version = {"anthropic-version": "2023-06-01"}
    for method, path, status in (
        ("GET", "/v1/models/no", 404),
        ("GET", "/nowhere", 404),
        ("GET", MESSAGES, 405),
        ("POST", "/v1/models", 405),
        ("POST", CHAT, 400),
    ):
        answer = await routed.http.request(method, path, headers=version)
        assert (answer.status_code, answer.json()["type"]) == (status, "error"), path


@pytest.mark.parametrize("engine_allows", [[], ["*"]])
async def test_a_page_of_another_origin(router: Any, engine_allows: list[str]) -> None:
    """Whatever the engine is set to, the page reads one header, which is the router's."""
    async with engine(allowed_origins=engine_allows) as fake, router([fake], edge={"cors_origins": ["*"]}) as r:
        asked = ORIGIN | {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for path in (CHAT, "/v1/models", "/nowhere"):
            preflight = await r.http.options(path, headers=asked)
            assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "*")
            assert preflight.headers["access-control-allow-headers"] == "authorization"
        for answer in (
            await r.http.get("/v1/models", headers=ORIGIN),
            await r.http.get("/nowhere", headers=ORIGIN),
            await r.post(CHAT, b"{", headers=ORIGIN),
            await r.post(CHAT, RIGHT[CHAT] | {"model": MODEL}, headers=ORIGIN),
            await r.post(CHAT, RIGHT[CHAT] | {"model": MODEL, "stream": True}, headers=ORIGIN),
        ):
            assert answer.headers.get_list("access-control-allow-origin") == ["*"], answer.url
        plain = await r.post(CHAT, RIGHT[CHAT] | {"model": MODEL})
        assert "access-control-allow-origin" not in plain.headers


async def test_by_default_the_engine_says_which_pages_may_read_its_answers(router: Any) -> None:
    async with engine(allowed_origins=["*"]) as fake, router([fake]) as r:
        served = await r.post(CHAT, RIGHT[CHAT] | {"model": MODEL}, headers=ORIGIN)
        assert served.headers.get_list("access-control-allow-origin") == ["*"]
        own = await r.http.get("/v1/models", headers=ORIGIN)
        assert "access-control-allow-origin" not in own.headers


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/3.7\r\nhost: r\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nhost: r\r\nx: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_request_is_counted(routed: Any, raw: bytes, status: int) -> None:
    before = await routed.metric("warmroute_errors_total", endpoint="other", reason="unfit")
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(routed.url).port)
    writer.write(raw)
    assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
    writer.close()
    assert await routed.metric("warmroute_errors_total", endpoint="other", reason="unfit") == before + 1
