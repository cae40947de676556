"""The operator's wheel over HTTP, with the real line behind it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from router.control.api.admin import admin_app
from router.scheduling.experiments.results import Finding
from tests.router.control.api.test_admin import LOOPBACK, Rooms, Unexplained, bearer, still_feed, token
from tests.router.control.control_plane import BROKEN, EXPERIMENT, TEXTS, ControlPlane, crowded_holder


class Wheel(NamedTuple):
    house: ControlPlane
    http: TestClient

    def put(self, path: str, text: str | bytes, **asked: Any) -> Response:
        return self.http.put(path, content=text, params=asked)


@pytest.fixture
def wheel() -> Wheel:
    house = ControlPlane()
    house.decided(crowded_holder(), crowded_holder())
    return Wheel(
        house, TestClient(admin_app(Rooms(), house.control, Unexplained(), still_feed(), []), base_url=LOOPBACK)
    )


def error(answer: Response) -> tuple[int, str, str]:
    told = answer.json()["error"]
    return answer.status_code, told["code"], told["message"]


def test_what_is_in_force(wheel: Wheel) -> None:
    told = wheel.http.get("/admin/policies").json()
    digests = {name: policy.digest for name, policy in wheel.house.control.policy_set.policies.items()}
    assert told == {
        "active": "near",
        "names": ["far", "near", "other"],
        "needs": ["CACHE"],
        "policies": [
            {"name": "far", "digest": digests["far"], "role": None},
            {"name": "near", "digest": digests["near"], "role": "active"},
            {"name": "other", "digest": digests["other"], "role": None},
        ],
        "experiment": None,
        "arms": {},
        "rolled_back": [],
        "errors": {},
        "failures": {},
        "switches": {},
        "needs_restart": [],
        "undo": [],
        "audit": {"waiting": 0, "lost": 0, "trouble": None},
    }


def test_roles_in_an_experiment(wheel: Wheel) -> None:
    wheel.put("/admin/experiment", "{arms: {near: 60, far: 40}, shadows: [other]}")
    told = wheel.http.get("/admin/policies").json()
    roles = {policy["name"]: policy["role"] for policy in told["policies"]}
    assert roles == {"near": "active, arm", "far": "arm", "other": "shadow"}
    assert told["arms"] == {"near": 60.0, "far": 40.0}


def test_a_policy_as_text_can_be_put_back(wheel: Wheel) -> None:
    answer = wheel.http.get("/admin/policies/near")
    assert answer.headers["content-type"].startswith("application/yaml")
    assert "name: prefix_overlap" in answer.text
    again = wheel.put("/admin/policies/near", answer.text).json()
    assert again["changed"] is False
    assert error(wheel.http.get("/admin/policies/nera")) == (
        404,
        "unknown_policy",
        'unknown policy "nera": did you mean "near"?',
    )


def test_put_plan_activate_undo(wheel: Wheel) -> None:
    tried = wheel.put("/admin/policies/new", TEXTS["far"], activate=True, dry_run=True).json()
    assert tried["plan"]["sentences"][0] == "2 of the last 2 choices would change (100.0%)"
    assert tried["plan"]["moves"] == [{"source": "a/0", "target": "b/0", "requests": 2}]
    assert "new" not in wheel.http.get("/admin/policies").json()["names"]
    put = wheel.put("/admin/policies/new", TEXTS["far"]).json()
    assert (put["changed"], put["plan"]) == (True, None)
    activated = wheel.http.post("/admin/activate", json={"policy": "new"}).json()
    assert (activated["what"], activated["plan"]["changed"]) == ("activate new", 2)
    assert activated["in_force"]["active"] == wheel.house.active == "new"
    undone = wheel.http.post("/admin/undo").json()
    assert undone["notes"] == ["undone: activate new"]
    assert wheel.house.active == "near"


def test_json_is_yaml_too(wheel: Wheel) -> None:
    answer = wheel.http.put("/admin/policies/new", json={"scorers": [{"name": "least_requests"}]})
    assert answer.json()["changed"] is True


def test_several_at_once_or_none(wheel: Wheel) -> None:
    assert error(wheel.put("/admin/policies", f"{{a: {{{TEXTS['far']}}}, b: {{{BROKEN}}}}}"))[:2] == (
        422,
        "invalid_policies",
    )
    assert "a" not in wheel.http.get("/admin/policies").json()["names"]
    assert wheel.put("/admin/policies", f"{{a: {{{TEXTS['far']}}}, b: {{{TEXTS['near']}}}}}").status_code == 200
    assert {"a", "b"} <= set(wheel.http.get("/admin/policies").json()["names"])


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        (
            "PUT",
            "/admin/policies/new",
            b"scorers: [{name: random}]\npiker: {name: best}",
            (422, "invalid_policy", 'policy new:2: piker: unknown key "piker": did you mean "picker"?'),
        ),
        ("PUT", "/admin/policies/new", b"", (422, "invalid_policy", "policy new:1: the text is empty")),
        ("PUT", "/admin/policies/new", b"\xff", (422, "invalid_text", "the body is not UTF-8 text (byte 0)")),
        (
            "PUT",
            "/admin/policies/new",
            b"#" * 1_000_001,
            (413, "body_too_large", "the body is larger than 131,072 bytes"),
        ),
        (
            "PUT",
            "/admin/experiment",
            b"{arms: {near: 50, far: 49}}",
            (422, "invalid_experiment", "experiment:1: arms: found shares that add up to 99, wanted 100 (percent)"),
        ),
        ("DELETE", "/admin/experiment", b"", (409, "no_experiment", "no experiment is running")),
        ("POST", "/admin/undo", b"", (409, "nothing_to_undo", "there is no switch left to undo")),
        (
            "POST",
            "/admin/activate",
            b'{"policy": "nera"}',
            (404, "unknown_policy", 'unknown policy "nera": did you mean "near"?'),
        ),
        ("POST", "/admin/activate", b"{}", (422, "invalid_value", "policy: missing")),
        (
            "POST",
            "/admin/activate",
            b'{"policy": "far", "dry": true}',
            (422, "invalid_value", "dry: unknown field"),
        ),
        (
            "GET",
            "/admin/audit?limit=0",
            b"",
            (422, "invalid_value", 'limit: found "0", wanted at least 1'),
        ),
    ],
)
def test_refusals(wheel: Wheel, method: str, path: str, body: bytes, said: tuple[int, str, str]) -> None:
    headers = {"content-type": "application/json"} if path == "/admin/activate" else {}
    before = wheel.house.control.policy_set
    assert error(wheel.http.request(method, path, content=body, headers=headers)) == said
    assert wheel.house.control.policy_set is before


def test_an_error_is_shown_until_something_reads_well(wheel: Wheel) -> None:
    wheel.put("/admin/policies/new", BROKEN)
    told = wheel.http.get("/admin/policies").json()
    assert "unknown scorer 'nobody'" in told["errors"]["admin"]["text"]
    assert told["errors"]["admin"]["at_wall_s"] == 5000.0
    assert told["failures"] == {"admin": 1}
    wheel.put("/admin/policies/new", TEXTS["far"])
    assert wheel.http.get("/admin/policies").json()["errors"] == {}


def test_an_experiment_from_its_start_to_its_end(wheel: Wheel) -> None:
    assert wheel.http.get("/admin/experiment").json() == {"running": False, "last": None}
    assert wheel.put("/admin/experiment", EXPERIMENT, dry_run=True).json()["dry_run"] is True
    assert wheel.http.get("/admin/experiment").json()["running"] is False
    (note,) = wheel.put("/admin/experiment", EXPERIMENT).json()["notes"]
    assert note == "the experiment starts now, without results from before"
    told = wheel.http.get("/admin/experiment").json()
    assert told["running"] is True
    assert told["report"]["arms"][1]["arm"] == "far"
    assert "near: 50% of the units; 0 are over and 0 are not, with 0 requests of which 0 failed" in told["sentences"]
    wheel.house.control.handle_finding(Finding("far", "guard", "ttft_p90", "far is slow", 60, 1e5, 900.0, 300.0))
    assert "far is out: it was rolled back" in wheel.http.get("/admin/experiment").json()["sentences"]
    assert wheel.http.delete("/admin/experiment").json()["what"] == "end experiment"
    told = wheel.http.get("/admin/experiment").json()
    assert (told["running"], told["last"]["rolled_back"]) == (False, ["far"])


def test_the_audit_log_says_who(wheel: Wheel) -> None:
    tokens = [token("eye", "read"), token("hand", "read", "write")]
    http = TestClient(admin_app(Rooms(), wheel.house.control, Unexplained(), still_feed(), tokens))
    http.post("/admin/activate", json={"policy": "far"}, headers=bearer("hand"))
    entries = http.get("/admin/audit", params={"limit": 1}, headers=bearer("eye")).json()["entries"]
    assert [(entry["who"], entry["what"], entry["from"]["active"], entry["to"]["active"]) for entry in entries] == [
        ("hand", "activate far", "near", "far")
    ]
    assert entries[0]["plan"][0] == "2 of the last 2 choices would change (100.0%)"
    wheel.http.post("/admin/undo")
    assert wheel.http.get("/admin/audit").json()["entries"][0]["who"] == "anybody"


LOOKING = ["/admin/policies", "/admin/policies/near", "/admin/experiment", "/admin/audit"]
CHANGING = [
    ("PUT", "/admin/policies"),
    ("PUT", "/admin/policies/near"),
    ("POST", "/admin/activate"),
    ("POST", "/admin/undo"),
    ("PUT", "/admin/experiment"),
    ("DELETE", "/admin/experiment"),
]


@pytest.mark.parametrize(("method", "path"), [*[("GET", path) for path in LOOKING], *CHANGING])
def test_rights(wheel: Wheel, method: str, path: str) -> None:
    tokens = [token("eye", "read"), token("pen", "write"), token("over", "override")]
    http = TestClient(admin_app(Rooms(), wheel.house.control, Unexplained(), still_feed(), tokens))
    before = wheel.house.control.policy_set
    assert error(http.request(method, path))[:2] == (401, "invalid_token")
    allowed = "eye" if method == "GET" else "pen"
    for name in {"eye", "pen", "over"} - {allowed}:
        assert error(http.request(method, path, headers=bearer(name)))[:2] == (403, "missing_right")
    assert http.request(method, path, headers=bearer(allowed)).status_code not in (401, 403)
    assert wheel.house.control.policy_set is before


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_other_sites_pages_change_nothing(wheel: Wheel, method: str, path: str) -> None:
    answer = wheel.http.request(method, path, headers={"origin": "https://evil.example"})
    assert error(answer)[:2] == (403, "wrong_origin")
