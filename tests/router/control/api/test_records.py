"""The two endpoints over a real application, and the page over every record that can be."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from router.config import schema
from router.control.api.admin import _describe_errors
from router.control.api.record_page import draw_waterfall, render_page, stack_bars
from router.control.api.records import add_record_routes, prefers_html
from router.control.explain import ExplainRequest
from router.control.record_detail import Others
from router.errors import NoTarget
from router.request.error_body import install_error_handlers
from router.scheduling.policy.decision import Regret, ShadowChoice
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.scheduling.policy.record_view import describe_record
from router.telemetry.recent_records import RecordQuery
from scorers.contract import View
from tests.suites.views import a_load, a_row, a_view, an_overlap, maybe, names, views

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}
WARM = build_policy(
    "warm",
    schema.PolicyConfig.model_validate(
        {
            "filters": [{"name": "max_waiting", "waiting": 4}],
            "scorers": [{"name": "queue_depth"}, {"name": "prefix_overlap", "weight": 3}],
        }
    ),
)
VIEW = a_view(
    a_row("dear", an_overlap(0), a_load(requests=1, running=1, waiting=0)),
    a_row("cheap", an_overlap(3200, cpu=3600, disk=4096), a_load(requests=2, running=2, waiting=1)),
    a_row("full", an_overlap(4096), a_load(requests=40, running=8, waiting=32)),
    prompt_tokens=5000,
    last_target="dear/0",
)


def a_record(view: View = VIEW, **known: Any) -> Record:
    record = Record("run-7", 7, 3.5, 1_700_000_000.25, CHAT, "m", True, "local", 5000, Stages(parse_ms=0.25), **known)
    record.policy = WARM
    record.attempts = [Attempt(WARM.decide(view), 4096, 3200, end="ok")]
    return record


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
    add_record_routes(app, rooms, rooms, [], _describe_errors)
    return app


def door(rooms: Rooms) -> TestClient:
    return TestClient(an_app(rooms))


class Rows(HTMLParser):
    """The texts of a page's table rows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.chosen: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
            if ("class", "chosen") in attrs:
                self.chosen.append("")
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data

    def of(self, first: str) -> list[list[str]]:
        return [[cell.strip() for cell in row] for row in self.rows if row and row[0].strip().startswith(first)]


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


def test_who_was_chosen_and_why() -> None:
    record = a_record()
    text = unescape(render_page(describe_record(record)))
    assert describe_record(record)["why"].startswith("cheap/0: prefix_overlap costs ")
    assert text.count(describe_record(record)["why"]) == 2  # above all, and at its attempt


def test_candidates_stand_by_cost_with_every_term() -> None:
    seen = Rows(render_page(describe_record(a_record())))
    (attempt,) = describe_record(a_record())["attempts"]
    cheap, dear = sorted(attempt["candidates"], key=lambda row: row["cost"])
    costs, parts, state = seen.of("cheap/0")
    terms = cheap["terms"]
    assert costs == [
        "cheap/0 (chosen)",
        f"{terms['queue_depth']['weighted']:.2f} = 1.00 × {terms['queue_depth']['cost']:.2f}",
        f"{terms['prefix_overlap']['weighted']:.2f} = 3.00 × {terms['prefix_overlap']['cost']:.2f}",
        f"{cheap['cost']:.2f}",
        "0.00",
    ]
    assert parts[2:] == [f"{terms[name]['weighted']:.2f}" for name in ("queue_depth", "prefix_overlap")]
    assert state[1:7] == ["3,200", "3,600", "4,096", "3,200", "events", "0.10"]
    assert state[7:] == ["2", "0", "0.00", "2", "1", "–", "0.10"]
    assert seen.of("dear/0")[0][-1] == f"{dear['cost'] - cheap['cost']:.2f}"
    firsts = [row[0].strip() for row in seen.rows]
    assert [first for first in firsts if "/0" in first] == [
        "cheap/0 (chosen)",
        "dear/0",
        "cheap/0",
        "dear/0",
        "cheap/0",
        "dear/0",
    ]
    assert len(seen.chosen) == 3  # its row in each table
    assert "Filtered out: full/0" in render_page(describe_record(a_record()))


def test_who_of_a_large_fleet_was_left_out_is_said_below_the_costs() -> None:
    assert "<p>Not priced: 97 of 100 candidates; " in render_page(describe_record(a_record(VIEW._replace(others=97))))
    assert "Not priced" not in render_page(describe_record(a_record()))


PARTLY = build_policy(
    "partly", schema.PolicyConfig.model_validate({"scorers": [{"name": "warm", "weight": 2}, {"name": "lbgr"}]})
)


def test_costs_are_drawn_in_their_parts_and_the_table_has_the_same_figures() -> None:
    record = a_record(VIEW)
    record.policy, record.attempts = PARTLY, [Attempt(PARTLY.decide(VIEW), 4096, 3200)]
    (attempt,) = describe_record(record)["attempts"]
    cheapest = min(attempt["candidates"], key=lambda row: row["cost"])
    chart = stack_bars(attempt)
    assert chart is not None
    assert chart.names == [
        "warm: compute", "warm: answers held up", "lbgr: compute"
    ]  # and none that is 0 everywhere  # fmt: skip
    first = chart.bars[0]
    assert (first.target, sum(first.values)) == (cheapest["target"], pytest.approx(cheapest["cost"]))
    assert first.values[0] == pytest.approx(2 * cheapest["terms"]["warm"]["parts"]["compute"])
    widths = [sum(segment.width for segment in bar.segments) for bar in chart.bars]
    assert max(widths) == pytest.approx(
        100, abs=0.01
    )  # the dearest takes the whole width, the others their share of it
    costs = sorted(row["cost"] for row in attempt["candidates"])
    assert widths == pytest.approx([100 * cost / costs[-1] for cost in costs], abs=0.01)
    _, parts, _ = Rows(render_page(describe_record(record))).of(first.target)
    assert parts[2:] == [f"{value:.2f}" if abs(value) < 99.995 else f"{value:,.0f}" for value in first.values]


def test_credits_are_drawn_to_the_left() -> None:
    terms = [{"a": {"weight": 1.0, "weighted": cost, "parts": {"load": load, "held": held}}}
             for cost, load, held in ((-1.0, 2.0, -3.0), (5.0, 7.0, -2.0))]  # fmt: skip
    rows = [{"target": str(i), "cost": term["a"]["weighted"], "terms": term} for i, term in enumerate(terms)]
    chart = stack_bars({"candidates": rows})
    assert chart is not None
    assert chart.zero == pytest.approx(30.0)  # from -3 to 7
    assert [[(s.x, s.width) for s in bar.segments] for bar in chart.bars] == [
        [(30.0, 20.0), (0.0, 30.0)], [(30.0, 70.0), (10.0, 20.0)]
    ]  # fmt: skip


def test_parts_that_no_longer_add_up_are_said_to_be_unknown() -> None:
    record = a_record(VIEW)
    decision = PARTLY.decide(VIEW)
    changed = decision.terms[1]._replace(costs=tuple(cost + 1 for cost in decision.terms[1].costs))
    record.policy = PARTLY
    record.attempts = [Attempt(decision._replace(terms=(decision.terms[0], changed)), 4096, 3200)]
    assert "Parts of lbgr are not known: ValueError: its parts do not add up" in render_page(describe_record(record))


def test_what_came_of_it() -> None:
    record = a_record(status=200, ttft_ms=12.345, duration_ms=250.0, cached_tokens=3200, output_tokens=17, done=True)
    record.arm = "warm"
    text = re.sub(r"<[^>]+>", " ", render_page(describe_record(record)))
    flat = " ".join(text.split())
    for fact in (
        "at 2023-11-14 22:13:20.250+00:00", f"policy digest {WARM.digest}", "arm warm", "status 200",
        "first byte, ms 12.35", "duration, ms 250", "cached, predicted 4,096", "cached, delivered 3,200",
        "finished yes", "token ids local",
    ):  # fmt: skip
        assert fact in flat, fact


def test_every_attempt_and_prefill_leg_is_there() -> None:
    record = a_record()
    record.attempts[0].end = "connect"
    lone = WARM.decide(VIEW._replace(rows=VIEW.rows[:1]))
    record.attempts.append(Attempt(lone, 0, 0, prefill=PrefillRecord(WARM.decide(VIEW), 4096, 3200, "ok", 33.0, 3200)))
    text = unescape(render_page(describe_record(record)))
    assert "Attempt 1 of 2: cheap/0" in text
    assert "Attempt 2 of 2: dear/0" in text
    assert "Prefilled by cheap/0" in text
    assert "dear/0: the only candidate" in text


def test_where_the_time_went_is_drawn_and_the_table_has_the_same_figures() -> None:
    record = a_record(ttft_ms=40.0, duration_ms=80.0)
    record.body_ms, record.prepared_ms = 2.0, 10.0
    attempt = record.attempts[0]
    attempt.start_ms, attempt.decide_ms, attempt.duration_ms = 10.0, 0.02, 70.0
    described = describe_record(record)
    bars = {bar.name: bar for bar in draw_waterfall(described)}
    assert [name for name, bar in bars.items() if bar.segment is None] == ["admission", "pool", "match", "connect"]
    assert bars["stream"].segment == (50.0, 50.0, 2)
    assert bars["decide"].segment == (12.5, 0.4, 0)  # a fortieth of a per cent is not seen
    rows = Rows(render_page(described))
    assert rows.of("first token") == [["first token", "1", "", "10.02", "29.98"]]
    assert rows.of("decide") == [["decide", "1", "", "10.00", "0.02"]]
    assert rows.of("pool") == [["pool", "–", "", "–", "–"]]


def test_promise_and_delivery_stand_side_by_side() -> None:
    record = a_record(ttft_ms=40.0)
    record.attempts[0].start_ms = 10.0
    predicted = describe_record(record)["promise"]["predicted_ttft_ms"]
    text = re.sub(r"<[^>]+>", " ", render_page(describe_record(record)))
    flat = " ".join(text.split())
    assert f"from the choice to the first byte, predicted ms {predicted:.0f} " in flat
    assert "from the choice to the first byte, measured ms 30.00 " in flat


def test_others_say_what_they_would_have_chosen_and_by_how_much() -> None:
    described = describe_record(a_record())
    described["others"] = [
        {"policy": "lmetric", "digest": "d", "target": "dear/0", "why": "", "unit": "ms", "cost": 2.0, "fault": None,
         "actual_cost": 5.5, "difference": {"ttft_ms": -1.5, "overlap_tokens": None}, "notes": ["one", "two"]},
        {"policy": "warm", "digest": "d", "target": "cheap/0", "why": "", "unit": "raw", "cost": 2.0, "fault": None,
         "actual_cost": None, "difference": {"ttft_ms": 0.0, "overlap_tokens": 0}, "notes": []},
        {"policy": "odd", "digest": "d", "fault": "policy odd: boom"},
    ]  # fmt: skip
    seen = Rows(render_page(described))
    assert seen.of("lmetric") == [["lmetric", "dear/0", "-1.50", "–", "2.00", "5.50", "3.50", "ms", "one; two"]]
    assert seen.of("warm")[-1] == ["warm", "the same", "0.00", "0", "2.00", "–", "–", "raw", ""]
    assert seen.of("odd") == [["odd", "failed: policy odd: boom"]]
    assert "What other policies would have chosen" not in render_page(describe_record(a_record()) | {"others": []})


@pytest.mark.parametrize("asked", ["configured", "shipped"])
def test_the_shipped_policies_are_asked_on_request(asked: str) -> None:
    rooms = Rooms()
    door(rooms).get("/admin/records/run-7", params={} if asked == "configured" else {"others": asked})
    assert rooms.others == asked
    assert door(rooms).get("/admin/records/run-7", params={"others": "all"}).status_code == 422


def test_shadows_say_what_they_would_have_done() -> None:
    record = a_record()
    record.shadows = [
        ShadowChoice("lmetric", "dear/0", Regret(12.5, -3200)),
        ShadowChoice("least_work_left", "cheap/0", Regret(0.0, 0)),
    ]
    seen = Rows(render_page(describe_record(record)))
    assert seen.of("lmetric") == [["lmetric", "dear/0", "12.50", "-3,200"]]
    assert seen.of("least_work_left") == [["least_work_left", "the same", "0.00", "0"]]


def test_a_record_without_an_attempt_has_a_page() -> None:
    record = a_record(status=503, error="no engine can serve this model now; try again")
    record.attempts = []
    assert "no engine can serve this model now; try again" in render_page(describe_record(record))
    record.error = None
    assert "No target was chosen." in render_page(describe_record(record))


EVIL = "</td><script>alert(1)</script>\"'&"


def test_what_clients_and_engines_are_called_is_escaped() -> None:
    """Every text in a record, wherever it stands."""

    def tainted(value: Any) -> Any:
        if isinstance(value, str):
            return EVIL
        if isinstance(value, dict):
            return {key: tainted(item) for key, item in value.items()}
        return [tainted(item) for item in value] if isinstance(value, list) else value

    record = a_record(status=502, error="x", client="x")
    record.arm = record.asked_by = "x"
    record.shadows = [ShadowChoice("p", "t", Regret(1.0, 1))]
    record.attempts[0].prefill = PrefillRecord(WARM.decide(VIEW), 1, 1)
    html = render_page(tainted(describe_record(record)) | {"at_wall_s": 0.0})
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 20
    assert Rows(html).tags == Rows(render_page(describe_record(record))).tags


@settings(max_examples=40)
@given(views(), maybe(names), st.booleans())
def test_every_record_has_a_page(view: View, word: str | None, done: bool) -> None:
    record = a_record(view, client=word, error=word, done=done)
    seen = Rows(render_page(describe_record(record)))
    candidates = describe_record(record)["attempts"][0]["candidates"]
    for row in candidates:
        assert len(seen.of(row["target"])) >= 2
    assert len(seen.chosen) in (2, 3)


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
