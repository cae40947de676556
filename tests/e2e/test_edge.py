"""What may come in, as what, and what is taken from it: paths, fields, headers, keys, certificates."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import subprocess
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
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
MESSAGES = '"messages":[{"role":"user","content":"hi"}],"max_tokens":2'
SMUGGLED = '{"remote_host":"evil","do_remote_prefill":true}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    async with engine() as fake, router_of_module([fake]) as running:
        yield running


def arrived(routed: Any, path: str = CHAT) -> Any:
    return routed.engines[0].seen(path)[-1]


async def raw(routed: Any, request: bytes) -> bytes:
    """The head of the answer to these bytes, on a connection of their own."""
    host, port = routed.url.rpartition("//")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()


# What is taken out


@pytest.mark.parametrize("field", ["kv_transfer_params", "vllm_xargs"])
@pytest.mark.parametrize(
    "spelled",
    [
        '"{f}":{v},"model":"warm-tiny",{m}',
        '"model":"warm-tiny",{m} , "{f}" : {v} ',
        '"{e}":{v},"model":"warm-tiny",{m}',
        '"{f}":{v},"model":"warm-tiny",{m},"{f}":{v}',
        '"{f}":null,"model":"warm-tiny","{e}":{v},{m}',
        '"model":"other","{f}":{v},"model":"warm-tiny",{m}',
    ],
    ids=["first", "last, odd spaces", "escaped", "twice", "twice, once escaped", "beside another duplicate"],
)
async def test_fields_that_only_the_router_may_set_never_arrive(routed: Any, field: str, spelled: str) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" if i % 2 else c for i, c in enumerate(field))
    text = spelled
    for mark, value in (("{f}", field), ("{e}", escaped), ("{v}", SMUGGLED), ("{m}", MESSAGES)):
        text = text.replace(mark, value)
    answer = await routed.post(CHAT, ("{" + text + "}").encode())
    assert answer.status_code == 200
    got = arrived(routed)
    assert set(json.loads(got.body)) == {"model", "messages", "max_tokens"}
    assert b"evil" not in got.body


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"])
async def test_they_arrive_nowhere_else_either(routed: Any, path: str) -> None:
    both = {"input": "x", "prompt": "x", "messages": BODY["messages"], "max_tokens": 2, "model": MODEL}
    await routed.post(path, both | {"kv_transfer_params": {"a": 1}, "vllm_xargs": {"b": 2}})
    assert set(json.loads(arrived(routed, path).body)) == set(both)


async def test_the_same_names_deeper_inside_are_the_clients_own(routed: Any) -> None:
    body = BODY | {"metadata": {"kv_transfer_params": 1, "vllm_xargs": 2}}
    content = json.dumps(body).encode()
    assert (await routed.post(CHAT, content)).status_code == 200
    assert arrived(routed).body == content


async def test_headers_that_only_the_router_may_set_never_arrive(routed: Any) -> None:
    given = {
        "X-Data-Parallel-Rank": "1",
        "x-vllm-priority": "-5",
        "X-Warmroute-Target": "there",
        "x-warmroute-anything": "1",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
        "te": "trailers",
        "proxy-authorization": "secret",
        "accept-encoding": "gzip",
        "x-kept": "1",
    }
    answer = await routed.post(CHAT, BODY, headers=given)
    assert answer.status_code == 200
    names = set(arrived(routed).headers)
    assert "x-kept" in names
    assert not names & ({name.lower() for name in given} - {"x-kept", "connection"})
    assert answer.headers["x-warmroute-target"] != "there"


async def test_what_is_stripped_can_be_configured(router: Any) -> None:
    edge = {"strip_fields": ["priority"], "strip_headers": ["x-tenant"]}
    async with engine() as a, router([a], edge=edge) as r:
        steering = {"x-data-parallel-rank": "1", "x-prefiller-host-port": "10.9.9.9:1"}
        await r.post(CHAT, BODY | {"priority": 1}, headers=steering | {"x-tenant": "t", "x-vllm-priority": "1"})
        (got,) = a.seen(CHAT)
        assert set(json.loads(got.body)) == set(BODY)
        assert not {"x-tenant", *steering} & set(got.headers)
        assert got.headers["x-vllm-priority"] == "1"


async def test_a_template_of_the_clients_is_not_rendered_here(routed: Any) -> None:
    record = await routed.record(await routed.post(CHAT, BODY | {"chat_template": "{{ messages }}"}))
    assert record["tokens_from"] == "client_template"
    assert record["prompt_tokens_counted"] is None


# What is not served


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("POST", "/sleep"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/inference/v1/generate"),
        ("GET", "/kv_event_sources"),
        ("GET", "/version"),
        ("POST", "/emulate/restart"),
        ("GET", "/admin/instances"),
        ("POST", "/admin/instances/x/drain"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/"),
        ("POST", f"/{CHAT}"),
        ("POST", f"{CHAT}/"),
        ("POST", "/V1/chat/completions"),
        ("POST", "/v1/chat/Completions"),
        ("POST", "/v1/./chat/completions"),
        ("POST", "/v1/completions/../load_lora_adapter"),
        ("POST", "/v1/completions/%2e%2e/load_lora_adapter"),
        ("POST", "/v1%2Fchat%2Fcompletions%00"),
        ("POST", "/v1/chat/completions;x=1"),
        ("POST", "/v1/chat/completions%3Fx=1"),
        ("POST", "/v1/chat/completions%20"),
        ("GET", "/v1/responses/../models"),
        ("GET", "/v1/responses/a%2Fb"),
        ("POST", "/v1/responses/resp_1/cancel/"),
    ],
)
async def test_everything_else_is_404_and_reaches_no_engine(routed: Any, method: str, path: str) -> None:
    """Sent as raw bytes: an HTTP client would tidy the path up."""
    fake = routed.engines[0]
    before = [call for call in fake.server.app.requests if call.path != "/metrics"]
    body = json.dumps(BODY).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    answer = await raw(routed, head.encode() + body)
    assert answer.split(b" ")[1] == b"404", answer
    after = [call for call in fake.server.app.requests if call.path != "/metrics"]
    assert [call for call in after if call not in before and call.path != "/health"] == []


@pytest.mark.parametrize("path", ["/v1/chat/completion%73", "/v1%2fchat%2fcompletions", "/%76%31/models"])
async def test_an_escaped_path_is_no_way_round_the_list(routed: Any, path: str) -> None:
    """An escape that stands for a listed path may be served as that or be refused, but never as another."""
    answer = await routed.post(path, BODY) if "models" not in path else await routed.http.get(path)
    assert answer.status_code in (200, 404)
    if answer.status_code == 200 and "models" not in path:
        assert arrived(routed).path == CHAT


async def test_unserved_paths_name_themselves_in_the_openai_shape(routed: Any) -> None:
    answer = await routed.http.post("/v1/load_lora_adapter", json={})
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "unknown_path")
    assert "/v1/load_lora_adapter" in error["message"]


async def test_the_list_can_be_extended(router: Any) -> None:
    extra = [{"path": "/reset_prefix_cache"}, {"path": "/version", "method": "GET"}]
    async with engine() as a, router([a], edge={"extra_endpoints": extra}) as r:
        assert (await r.http.post("/reset_prefix_cache")).status_code == 200
        assert len(a.seen("/reset_prefix_cache")) == 1
        version = await r.http.get("/version")
        assert (version.status_code, version.json()) == (200, {"version": "0.32.0"})
        wrong = await r.http.get("/reset_prefix_cache")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await r.record(version))["endpoint"] == "/version"


# Requests that two parsers could read in two ways


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"content-length: +5\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: -1\r\n",
        b"x-a : b\r\ncontent-length: 5\r\n",
        b"x-a: b\n\r\ncontent-length: 5\r\n",
        b"content-length: 99999999999999999999\r\n",
    ],
)
async def test_ambiguous_requests_are_refused(routed: Any, headers: bytes) -> None:
    before = len(routed.engines[0].seen(CHAT))
    answer = await raw(routed, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n{}   ")
    assert answer.split(b" ")[1] in (b"400", b"413")
    assert len(routed.engines[0].seen(CHAT)) == before


async def test_a_chunked_request_arrives_with_a_length(routed: Any) -> None:
    content = json.dumps(BODY).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield content[:10]
        yield content[10:]

    answer = await routed.http.post(CHAT, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 200
    got = arrived(routed)
    assert got.body == content
    assert got.headers["content-length"] == str(len(content))
    assert "transfer-encoding" not in got.headers


async def test_two_requests_in_one_go_get_two_answers_in_order(routed: Any) -> None:
    bodies = [json.dumps(BODY | {"max_tokens": n}).encode() for n in (1, 2)]
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-id: {}\r\n"
    sent = b"".join(
        head.format(n).encode() + b"content-length: %d\r\n\r\n" % len(body) + body for n, body in enumerate(bodies)
    )
    host, port = routed.url.rpartition("//")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    ids = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in bodies:
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            ids.append(json.loads(await reader.readexactly(length))["id"])
    writer.close()
    await writer.wait_closed()
    assert ids == ["chatcmpl-0", "chatcmpl-1"]


# Credentials


async def test_client_keys(router: Any, tmp_path: Path) -> None:
    """With a keys file only its keys come in, and no engine ever sees them."""
    digest = hashlib.sha256(b"sk-good").hexdigest()
    keys = tmp_path / "keys"
    keys.write_text(f"# clients\n{digest} alice\n")
    async with engine() as a, router([a], clients={"keys_file": str(keys)}) as r:
        good = [{"authorization": "Bearer sk-good"}, {"x-api-key": "sk-good"}]
        bad = [{}, {"authorization": "Bearer sk-bad"}, {"authorization": f"Bearer {digest}"}, {"x-api-key": ""}]
        for headers in good:
            assert (await r.post(CHAT, BODY, headers=headers)).status_code == 200
            assert not {"authorization", "x-api-key"} & set(a.seen(CHAT)[-1].headers)
        for headers in bad:
            refused = await r.post(CHAT, BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v1/models", "/v1/load_lora_adapter"):
            assert (await r.http.get(path)).status_code == 401
        anthropic = await r.post("/v1/messages", BODY)
        assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (401, "authentication_error")
        assert (await r.http.get("/health")).status_code == 200
        assert len(a.seen(CHAT)) == len(good)


async def test_without_a_keys_file_a_clients_key_goes_on_to_the_engine(routed: Any) -> None:
    await routed.post(CHAT, BODY, headers={"authorization": "Bearer sk-client"})
    assert arrived(routed).headers["authorization"] == "Bearer sk-client"


async def test_an_instances_own_key_takes_the_clients_place(router: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")
    async with engine(api_key="sk-engine") as a, router([{"url": a.url, "api_key_env": "ENGINE_KEY"}]) as r:
        for headers in ({}, {"authorization": "Bearer sk-client"}, {"x-api-key": "sk-client"}):
            assert (await r.post(CHAT, BODY, headers=headers)).status_code == 200
            got = a.seen(CHAT)[-1].headers
            assert got["authorization"] == "Bearer sk-engine"
            assert "x-api-key" not in got


async def test_an_instance_with_a_wrong_key_never_joins(router: Any) -> None:
    async with engine(api_key="sk-engine") as a, router([a], wait=False) as r:
        await eventually(lambda: r.app.core.health.trouble(a.address))
        assert (await r.http.get("/ready")).status_code == 503
        assert "401" in (await r.instances())[a.address]["trouble"]


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: Any) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*make, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    return cert, key


async def test_metrics_on_a_port_of_their_own_with_a_token(router: Any) -> None:
    metrics = {"port": 0, "token_hash": hashlib.sha256(b"secret").hexdigest()}
    async with engine() as a, router([a], metrics=metrics) as r:
        assert (await r.http.get("/metrics")).status_code == 404
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{r.app.metrics_port}", timeout=PATIENCE_S) as own:
            assert (await own.get("/metrics")).status_code == 401
            answer = await own.get("/metrics", headers={"authorization": "Bearer secret"})
            assert "\nwarmroute_in_flight_requests 0.0\n" in answer.text
            for path in ("/health", CHAT, "/v1/models", "/admin/instances"):
                assert (await own.get(path)).status_code == 404


async def test_tls_on_both_sides(router: Any, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    listen = {"tls": {"cert_file": cert, "key_file": key}}
    async with (
        engine(cert_file=cert, key_file=key) as a,
        router([{"url": a.url, "ca_file": cert}], listen=listen, wait=False) as r,
        r.client(verify=ssl.create_default_context(cafile=cert)) as client,
    ):
        assert a.url.startswith("https://")
        assert r.url.startswith("https://")
        await eventually(lambda: r.app.unready_reason() is None)
        answer = await client.post(CHAT, json=BODY)
        assert answer.status_code == 200
        async with client.stream("POST", CHAT, json=BODY | {"stream": True}) as stream:
            assert (await stream.aread()).endswith(b"data: [DONE]\n\n")


async def test_an_engine_with_a_certificate_nobody_vouches_for_never_joins(
    router: Any, certificate: tuple[str, str]
) -> None:
    cert, key = certificate
    async with engine(cert_file=cert, key_file=key) as a, router([{"url": a.url}], wait=False) as r:
        await eventually(lambda: r.app.core.health.trouble(a.address))
        assert not a.server.app.requests
