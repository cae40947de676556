"""The endpoints over a real application."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from router.control.api.record_page import render_page
from router.control.api.records import add_record_routes, prefers_html
from router.control.explain import ExplainRequest
from router.control.record_detail import Others
from router.errors import NoTarget
from router.request.error_body import install_error_handlers
from router.scheduling.policy.record import Record
from router.scheduling.policy.record_view import describe_record
from router.telemetry.record_query import RecordQuery
from tests.router.control.api.scene import WARM, Rows, a_record

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}


class Rooms:
    """One record, and answers that repeat the question."""

    body_bytes = 1000
    extra_paths = frozenset({"/v1/audio"})

    def __init__(self, record: Record | None = None) -> None:
        self.kept = describe_record(record or a_record())
        self.asked: ExplainRequest | None = None

    async def find_record(self, record_id: str, others: Others) -> dict[str, Any] | None:
        self.others = others
        return self.kept if record_id == self.kept["id"] else None

    async def find_records(self, query: RecordQuery) -> list[bytes]:
        return []

    async def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        if asked.policy == "nobody":
            raise NoTarget("no engine can serve this model now")
        self.asked = asked
        return {"target": "a/0", "why": "a/0: the only candidate", "policy": asked.policy or "warm", "notes": []}


def an_app(rooms: Rooms) -> FastAPI:
    app = FastAPI(openapi_url="/admin/openapi.json")
    install_error_handlers(app)
    add_record_routes(app, rooms, rooms, [])
    return app


def door(rooms: Rooms) -> TestClient:
    return TestClient(an_app(rooms))


# which of the two


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True), ("text/html", True), ("TEXT/HTML", True), ("text/*", True), ("text/html;q=0.1", True),
        ("text/html;q=0.9, application/json;q=0.8", True), ("text/html ; q=0.9 , */* ; q=0.8", True),
        (None, False), ("", False), ("*/*", False), ("application/json", False), ("image/png", False),
        ("application/json, text/html", False), ("text/html;q=0.5, */*", False), ("text/html;q=0", False),
        ("text/html;q=2", False), ("text/html;q=much", False), ("text/*, text/html;q=0", False),
        ("application/*;q=0.2, text/html;q=0.1", False), (",;,", False),
    ],
)  # fmt: skip
def test_html_only_for_whoever_prefers_it(accept: str | None, html: bool) -> None:
    assert prefers_html(accept) is html


@given(st.text())
def test_any_accept_header_is_answered(accept: str) -> None:
    assert prefers_html(accept) in (True, False)


def test_a_record_as_json_and_as_a_page() -> None:
    client = door(Rooms())
    plain = client.get("/admin/records/run-7", headers={"accept": "*/*"})
    assert plain.headers["content-type"] == "application/json"
    assert plain.json() == describe_record(a_record()) | {"policy_digest": WARM.digest}
    shown = client.get("/admin/records/run-7", headers={"accept": BROWSER})
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.text == render_page(describe_record(a_record()))
    assert plain.headers["vary"] == shown.headers["vary"] == "accept"


@pytest.mark.parametrize("accept", ["*/*", BROWSER])
def test_no_such_record(accept: str) -> None:
    answer = door(Rooms()).get("/admin/records/other", headers={"accept": accept})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_record")


# the page


def test_the_page_needs_nothing_from_elsewhere_and_may_have_nothing() -> None:
    answer = door(Rooms()).get("/admin/records/run-7", headers={"accept": BROWSER})
    (style,) = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
    seen = Rows(answer.text)
    assert not seen.tags & {"script", "link", "img", "iframe", "form", "a", "object"}
    assert not seen.attributes & {"src", "href", "style"}
    assert "@import" not in style
    assert "url(" not in style


@pytest.mark.parametrize("asked", ["configured", "shipped"])
def test_the_shipped_policies_are_asked_on_request(asked: str) -> None:
    rooms = Rooms()
    door(rooms).get("/admin/records/run-7", params={} if asked == "configured" else {"others": asked})
    assert rooms.others == asked
    assert door(rooms).get("/admin/records/run-7", params={"others": "all"}).status_code == 422


# explain


def test_a_question_arrives_whole() -> None:
    rooms = Rooms()
    given_ = {"path": CHAT, "policy": "lmetric", "session": "s", "parent": "p", "client": "team"}
    given_ |= {"ttft_ms": "500", "tpot_ms": "20"}
    answer = door(rooms).post("/admin/explain", params=given_, content=b'{"a": 1}', headers={"content-type": "x/y"})
    assert answer.json() == {"target": "a/0", "why": "a/0: the only candidate", "policy": "lmetric", "notes": []}
    assert rooms.asked == ExplainRequest(CHAT, b'{"a": 1}', "x/y", "lmetric", "s", "p", "team", "500", "20")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings", "/v1/audio"])
def test_whatever_is_routed_can_be_asked_about(path: str) -> None:
    assert door(Rooms()).post("/admin/explain", params={"path": path}, json=BODY).status_code == 200


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "other", "/v1/chat/completions/"])
def test_what_is_not_routed_is_not_explained(path: str) -> None:
    rooms = Rooms()
    answer = door(rooms).post("/admin/explain", params={"path": path}, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")
    assert answer.json()["error"]["message"] == f"POST {path} is not served here"
    assert rooms.asked is None


def test_a_path_is_needed() -> None:
    answer = door(Rooms()).post("/admin/explain", json=BODY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "path")


def test_a_body_has_the_bound_of_a_requests() -> None:
    client = door(Rooms())
    assert client.post("/admin/explain", params={"path": CHAT}, content=b"x" * 1000).status_code == 200
    answer = client.post("/admin/explain", params={"path": CHAT}, content=b"x" * 1001)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")
    pieces = client.post("/admin/explain", params={"path": CHAT}, content=(b"x" * 300 for _ in range(4)))
    assert pieces.status_code == 413


def test_refusals_come_in_the_admin_shape() -> None:
    answer = door(Rooms()).post("/admin/explain", params={"path": "/v1/messages", "policy": "nobody"}, json=BODY)
    assert (answer.status_code, answer.json()) == (
        503,
        {
            "error": {
                "message": "no engine can serve this model now", "type": "overloaded_error", "param": None, "code": None
            }
        },
    )  # fmt: skip


api = schemathesis.openapi.from_asgi("/admin/openapi.json", an_app(Rooms()))


@api.parametrize()
def test_openapi_tells_the_truth(case: schemathesis.Case) -> None:
    is_search = case.path == "/admin/records"  # no JSON schema can say what a time is
    case.call_and_validate(excluded_checks=[positive_data_acceptance] if is_search else [])
