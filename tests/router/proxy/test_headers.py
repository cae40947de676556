"""What passes, what does not, in both directions."""

from __future__ import annotations

import pytest

from router.errors import BadRequest
from router.proxy.headers import STEERING, AnswerLabels, HeaderRules, find_hop_headers, response_headers


def forward(*headers: tuple[bytes, bytes], strip: tuple[str, ...] = (), own_keys: bool = False):
    return HeaderRules(strip, own_keys=own_keys).forward(list(headers), "rec-1")


def test_order_and_duplicates_are_kept():
    assert forward((b"b", b"1"), (b"a", b"2"), (b"b", b"3")).lines == b"b: 1\r\na: 2\r\nb: 3\r\nx-request-id: rec-1\r\n"


@pytest.mark.parametrize(
    "name",
    [
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authorization",
        b"proxy-connection",
        b"host",
        b"content-length",
        b"expect",
        b"accept-encoding",
        b"x-warmroute-anything",
    ],
)
def test_names_that_never_pass(name):
    assert forward((name, b"x")).lines == b"x-request-id: rec-1\r\n"


STEERS_LLM_D = ["prefiller-host-port", "encoder-hosts-ports", "kv-cache-source-host-port"]
STEERS_DYNAMO = ["worker-instance-id", "prefill-instance-id", "dp-rank", "prefill-dp-rank"]


@pytest.mark.parametrize(
    "name",
    [
        "x-data-parallel-rank",
        *(f"{prefix}{name}" for prefix in ("x-", "x-llm-d-") for name in STEERS_LLM_D),
        *(f"{prefix}{name}" for prefix in ("x-", "x-dynamo-") for name in STEERS_DYNAMO),
        "x-prefiller-url",
        "x-data-parallel-host-port",
        "x-dynamo-routing-mode",
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        "x-envoy-original-dst-host",
    ],
)
def test_no_client_steers_engines_through_the_proxy_or_a_gateway(name: str) -> None:
    """Whatever the operator's own list of headers is."""
    came = [(name.encode(), b"10.9.9.9:1"), (name.encode(), b"again")]
    for strip in ((), ("x-tenant",)):
        assert forward(*came, strip=strip).lines == b"x-request-id: rec-1\r\n"
        assert set(HeaderRules(strip).edit(came).removed) == {name}


def test_names_that_only_look_like_steering_pass() -> None:
    names = [b"x-dynamo-session-id", b"x-llm-d-inference-fairness-id", b"x-envoy-attempt-count", b"x-session-id"]
    assert not STEERING.intersection(names)
    assert forward(*((name, b"1") for name in names)).lines.count(b": 1\r\n") == len(names)


def test_what_connection_names_does_not_pass():
    lines = forward((b"connection", b"close, X-Secret"), (b"x-secret", b"1"), (b"x-open", b"2")).lines
    assert lines == b"x-open: 2\r\nx-request-id: rec-1\r\n"


def test_every_connection_header_is_read():
    headers = [(b"connection", b"keep-alive"), (b"connection", b"x-a"), (b"connection", b"X-B,")]
    assert find_hop_headers(headers) == {b"keep-alive", b"x-a", b"x-b", b""}


def test_names_the_operator_strips():
    assert forward((b"x-vllm-priority", b"1"), strip=("X-Vllm-Priority",)).lines == b"x-request-id: rec-1\r\n"


def test_the_clients_request_id_is_kept():
    assert forward((b"x-request-id", b"mine")).lines == b"x-request-id: mine\r\n"


def test_credentials_stand_apart_and_may_be_the_routers_own():
    keys = ((b"authorization", b"Bearer a"), (b"x-api-key", b"b"))
    assert forward(*keys).credentials == b"authorization: Bearer a\r\nx-api-key: b\r\n"
    assert forward(*keys, own_keys=True).credentials == b""
    assert forward(*keys).lines == b"x-request-id: rec-1\r\n"


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb"])
def test_line_breaks_are_refused(value):
    with pytest.raises(BadRequest):
        forward((b"a", value))
    with pytest.raises(BadRequest):
        forward((b"authorization", value))


def test_answer_headers():
    came = [
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"x-warmroute-target", b"forged"),
        (b"content-length", b"3"),
    ]
    ours = [(b"x-warmroute-target", b"e/0"), (b"x-warmroute-record", b"r")]
    kept = [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert response_headers(came, AnswerLabels("e/0", "r"), resized=False) == [*kept, (b"content-length", b"3"), *ours]
    assert response_headers(came, AnswerLabels("e/0", "r"), resized=True) == [*kept, *ours]


def test_what_a_gateway_removes_before_it_sends_a_request() -> None:
    headers = [
        (b"host", b"h"),
        (b"accept-encoding", b"gzip"),
        (b"x-prefiller-host-port", b"10.9.9.9:1"),
        (b"x-warmroute-record", b"mine"),
        (b"x-vllm-priority", b"0"),
        (b"authorization", b"Bearer k"),
        (b"x-a", b"1"),
    ]
    edits = HeaderRules(["x-vllm-priority"]).edit(headers)
    assert edits.removed == ["accept-encoding", "x-prefiller-host-port", "x-warmroute-record", "x-vllm-priority"]
    assert not edits.own_id
    edits = HeaderRules(own_keys=True).edit([*headers, (b"x-request-id", b"id")])
    assert "authorization" in edits.removed
    assert edits.own_id
