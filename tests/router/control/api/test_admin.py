"""The admin API: what it shows, who may use it, and that its OpenAPI description is right."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from schemathesis.specs.openapi.checks import positive_data_acceptance

from router.config.sections.listeners import AdminTokenConfig
from router.control.api.admin import admin_app
from router.control.explain import ExplainRequest
from router.control.feature import Feature
from router.control.live.feed import LiveFeed
from router.control.record_detail import Others
from router.errors import NoTarget
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport
from router.telemetry.record_query import RecordQuery
from router.telemetry.request_flow import TargetRequest
from tests.router.control.control_plane import ControlPlane
from tests.suites.properties import examples

LOOPBACK = "http://127.0.0.1:8001"


class Rooms:
    """Two instances and one record."""

    features: Mapping[str, Feature] = {}

    def __init__(self) -> None:
        self.draining = {"a": False, "b": False}
        self.forgotten: list[str] = []

    def describe_instances(self) -> list[dict[str, Any]]:
        return [
            {"id": id, "url": f"http://{id}", "state": "draining" if on else "ready", "silent_faults": []}
            for id, on in self.draining.items()
        ]

    def dump_config(self) -> str:
        return "active: warm\n"

    def describe_silent_faults(self) -> list[dict[str, Any]]:
        return []

    def describe_discovery(self) -> dict[str, str | None]:
        return {"config": None, "file": "fleet.yaml: no such file"}

    def forget_cache(self, instance: str) -> bool:
        if instance in self.draining:
            self.forgotten.append(instance)
        return instance in self.draining

    def drain(self, instance: str, on: bool) -> bool:
        if instance not in self.draining:
            return False
        self.draining[instance] = on
        return True

    def describe_instance(self, id: str) -> dict[str, Any] | None:
        return next((described for described in self.describe_instances() if described["id"] == id), None)

    async def describe_cache(self, limit: int) -> dict[str, Any]:
        return {"prefixes": []}

    async def list_target_requests(self, target: str, limit: int) -> list[TargetRequest]:
        return []

    async def find_record(self, record_id: str, others: Others) -> dict[str, Any] | None:
        return {"id": "r1", "target": "a/0", "attempts": []} if record_id == "r1" else None

    async def find_records(self, query: RecordQuery) -> list[bytes]:
        self.query = query
        return [b'{"id":"r%d","target":null}' % n for n in range(query.limit)]

    def describe_workers(self) -> list[dict[str, Any]]:
        return [{"number": n, "pid": 100 + n, "up": n == 0, "policies": {"warm": "0a"}} for n in range(2)]

    def describe_replicas(self) -> list[ReplicaReport]:
        return [ReplicaReport("10.0.0.2:9004", "1f3a", False, True, 0.1, 0.002, 120, 240, 0)]

    def describe_feature(self, name: str) -> dict[str, Any] | None:
        return {"leader": "mooncake master a:9003", "models": []} if name == "pool" else None


def still_feed(rooms: Rooms | None = None) -> LiveFeed:
    """A feed that nobody looks at."""
    return LiveFeed(rooms or Rooms(), Tasks("test"))


class Unexplained:
    """Nobody could serve anything."""

    body_bytes = 1000
    extra_paths = ()

    async def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        raise NoTarget("nobody")


def token(name: str, *rights: str) -> AdminTokenConfig:
    digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
    return AdminTokenConfig.model_validate({"name": name, "hash": digest, "rights": list(rights)})


def open_door(rooms: Rooms | None = None) -> TestClient:
    return TestClient(
        admin_app(rooms or Rooms(), ControlPlane().control, Unexplained(), still_feed(), []), base_url=LOOPBACK
    )


def guarded() -> TestClient:
    tokens = [token("eye", "read"), token("hand", "read", "write")]
    return TestClient(admin_app(Rooms(), ControlPlane().control, Unexplained(), still_feed(), tokens))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token"}


def test_instances_with_all_that_is_told() -> None:
    body = open_door().get("/admin/instances").json()
    assert body["instances"][0] == {"id": "a", "url": "http://a", "state": "ready", "silent_faults": []}
    assert len(body["instances"]) == 2
    assert body["discovery"] == {"config": None, "file": "fleet.yaml: no such file"}


def test_workers_with_what_decides_in_each() -> None:
    body = open_door().get("/admin/workers").json()
    assert body["workers"][1] == {"number": 1, "pid": 101, "up": False, "policies": {"warm": "0a"}}
    assert len(body["workers"]) == 2


def test_drain_and_undrain() -> None:
    rooms = Rooms()
    client = open_door(rooms)
    assert client.post("/admin/instances/b/drain").json() == {"id": "b", "draining": True}
    assert rooms.draining == {"a": False, "b": True}
    assert client.post("/admin/instances/b/undrain").json() == {"id": "b", "draining": False}
    assert rooms.draining == {"a": False, "b": False}


def test_replicas() -> None:
    (replica,) = open_door().get("/admin/replicas").json()["replicas"]
    assert (replica["address"], replica["up"], replica["lag_s"]) == ("10.0.0.2:9004", True, 0.002)


def test_weights_changed_forgets_one_cache() -> None:
    rooms = Rooms()
    client = open_door(rooms)
    assert client.post("/admin/instances/b/weights-changed").json() == {"id": "b"}
    assert rooms.forgotten == ["b"]


@pytest.mark.parametrize("action", ["drain", "undrain", "weights-changed"])
def test_draining_nobody(action: str) -> None:
    answer = open_door().post(f"/admin/instances/zz/{action}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_instance")


def test_a_record() -> None:
    assert open_door().get("/admin/records/r1").json() == {"id": "r1", "target": "a/0", "attempts": []}
    assert open_door().get("/admin/records/r2").status_code == 404


def test_records_up_to_a_limit() -> None:
    assert len(open_door().get("/admin/records").json()["records"]) == 50
    assert len(open_door().get("/admin/records?limit=2").json()["records"]) == 2
    for wrong in ("0", "1001", "many"):
        answer = open_door().get(f"/admin/records?limit={wrong}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "limit")


def test_records_by_what_is_known_of_them() -> None:
    rooms = Rooms()
    given = {
        "id": "3f-", "session": "ana", "client": "team", "model": "m", "target": "a/0",
        "since": "2026-11-23T03:00:00Z", "until": "1795403000.5", "limit": 7,
        "status": "5xx", "error": "any", "slowest": "ttft_ms",
    }  # fmt: skip
    assert open_door(rooms).get("/admin/records", params=given).status_code == 200
    assert rooms.query == RecordQuery(
        7, "3f-", ("ana",), "team", "m", "a/0", 1795402800.0, 1795403000.5, "5xx", "any", "ttft_ms"
    )
    assert open_door(rooms).get("/admin/records").status_code == 200
    assert rooms.query == RecordQuery()
    assert open_door(rooms).get("/admin/records?error=attempt&target=a/0").status_code == 200
    assert rooms.query == RecordQuery(error="attempt", target="a/0")
    answer = open_door(rooms).get("/admin/records?error=dedline")
    assert 'unknown reason "dedline": did you mean "deadline"?' in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("text", "wall_s"),
    [
        ("0", 0.0), ("1795402800.25", 1795402800.25), ("-1", -1.0),
        ("2026-11-23T03:00:00Z", 1795402800.0), ("2026-11-23T04:00:00+01:00", 1795402800.0),
        ("2026-11-23T03:00:00.250", 1795402800.25), ("2026-11-23 03:00", 1795402800.0), ("2026-11-23", 1795392000.0),
    ],
)  # fmt: skip
def test_times_are_seconds_or_iso_8601_in_utc_unless_they_say_otherwise(text: str, wall_s: float) -> None:
    rooms = Rooms()
    assert open_door(rooms).get("/admin/records", params={"since": text}).status_code == 200
    assert rooms.query.since_s == wall_s


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize("text", ["", "yesterday", "nan", "inf", "2026-13-01", "2026-11-23T03:00:00 01:00"])
def test_what_is_no_time_is_refused_with_its_name(name: str, text: str) -> None:
    answer = open_door().get("/admin/records", params={name: text})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (422, name, "invalid_value")
    assert error["message"].startswith(f'{name}: found "{text}", wanted seconds since 1970, or a time in ISO 8601')


def test_an_end_before_the_beginning_is_refused() -> None:
    answer = open_door().get("/admin/records", params={"since": "2", "until": "1"})
    said = "since: found 2, which is later than until, 1: exchange the two"
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, said)
    assert open_door().get("/admin/records", params={"since": "2", "until": "2"}).status_code == 200


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("records?limit=many", 'limit: found "many", wanted a whole number'),
        ("records?limit=0", 'limit: found "0", wanted at least 1'),
        ("records?limit=1001", 'limit: found "1001", wanted at most 1000'),
        ("records?slowest=x", "slowest: found \"x\", wanted 'ttft_ms' or 'duration_ms'"),
        ("records?status=8xx", 'status: found "8xx", wanted a status such as 503, 5xx or none'),
        ("records?model=" + "m" * 513, f'model: found "{"m" * 256}...", wanted at most 512 characters'),
        (
            "records?since=5m",
            'since: found "5m", wanted seconds since 1970, or a time in ISO 8601 such as 2026-11-23T03:00:00Z',
        ),
        ("records/r1?others=all", "others: found \"all\", wanted 'configured' or 'shipped'"),
        ("live/target", "id: missing"),
        ("cache/tree?limit=1.5", 'limit: found "1.5", wanted a whole number'),
        ("audit?limit=", 'limit: found "", wanted a whole number'),
    ],
)
def test_a_wrong_value_of_a_parameter_is_named_with_what_is_wanted(query: str, said: str) -> None:
    answer = open_door().get(f"/admin/{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"]) == (422, "invalid_value", said)


RECORD_PARAMETERS = "client, error, id, limit, model, session, since, slowest, status, target, until"


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("GET", "/admin/records?limit=2&targt=a/0", RECORD_PARAMETERS),
        ("GET", "/admin/records/r1?targt=a/0", "others"),
        ("GET", "/admin/instances?targt=a/0", "none"),
        ("GET", "/admin/live?targt=a/0", "none"),
        ("POST", "/admin/instances/a/drain?targt=a/0", "none"),
    ],
)
def test_an_unknown_query_parameter_is_refused_with_the_known_ones(method: str, path: str, takes: str) -> None:
    rooms = Rooms()
    answer = open_door(rooms).request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "targt", "unknown_parameter")
    assert error["message"] == f"targt: unknown query parameter; {method} {path.partition('?')[0]} takes {takes}"
    assert not rooms.draining["a"]


def test_a_filter_is_not_longer_than_a_name() -> None:
    assert open_door().get("/admin/records", params={"session": "x" * 513}).status_code == 422


# who may come in


def test_without_a_token_nobody_comes_in() -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eye-token"}, bearer("other")):
        answer = guarded().get("/admin/instances", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_token"


def test_reading_is_not_writing() -> None:
    client = guarded()
    assert client.get("/admin/instances", headers=bearer("eye")).status_code == 200
    answer = client.post("/admin/instances/a/drain", headers=bearer("eye"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_right")
    assert client.post("/admin/instances/a/drain", headers=bearer("hand")).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1:8001", "localhost:8001", "[::1]:8001", "LOCALHOST"])
def test_open_door_answers_to_its_loopback_names(host: str) -> None:
    assert open_door().get("/admin/instances", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8001", "[", ""])
def test_open_door_refuses_other_names(host: str) -> None:
    answer = open_door().get("/admin/instances", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
)
def test_open_door_refuses_other_sites_pages(headers: dict[str, str]) -> None:
    rooms = Rooms()
    answer = open_door(rooms).post("/admin/instances/a/drain", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_origin")
    assert rooms.draining["a"] is False


def test_open_door_takes_its_own_pages() -> None:
    headers = {"origin": LOOPBACK, "sec-fetch-site": "same-origin"}
    assert open_door().post("/admin/instances/a/drain", headers=headers).status_code == 200


def test_tokens_are_enough_from_anywhere() -> None:
    headers = {**bearer("eye"), "host": "router.internal:8001"}
    assert guarded().get("/admin/instances", headers=headers).status_code == 200


# its description

OWN_ERRORS = {
    ("get", "/admin/live/target"): {"404"},
    ("get", "/admin/records/{id}"): {"404"},
    ("post", "/admin/instances/{id}/drain"): {"404"},
    ("post", "/admin/instances/{id}/undrain"): {"404"},
    ("post", "/admin/instances/{id}/weights-changed"): {"404"},
    ("put", "/admin/policies"): {"413"},
    ("get", "/admin/policies/{name}"): {"404"},
    ("put", "/admin/policies/{name}"): {"413"},
    ("post", "/admin/activate"): {"404", "413"},
    ("post", "/admin/undo"): {"409"},
    ("post", "/admin/explain"): {"404", "413", "429", "503"},
    ("put", "/admin/admission"): {"413"},
    ("put", "/admin/experiment"): {"413"},
    ("delete", "/admin/experiment"): {"409"},
}


def test_every_error_is_described() -> None:
    paths = open_door().get("/admin/openapi.json").json()["paths"]
    assert len(paths) == 20
    for path, methods in paths.items():
        for method, description in methods.items():
            wanted = {"200", "400", "401", "403", "422"} | OWN_ERRORS.get((method, path), set())
            assert wanted == set(description["responses"]), (method, path)


schema = schemathesis.openapi.from_asgi(
    "/admin/openapi.json",
    admin_app(Rooms(), ControlPlane().control, Unexplained(), still_feed(), [token("hand", "read", "write")]),
)


@schema.parametrize()
@examples(40)
def test_openapi_tells_the_truth(case: schemathesis.Case) -> None:
    # A policy is text, and so is a time: what stands in it no JSON schema can say.
    of_text = case.method == "PUT" or case.path == "/admin/records"
    case.call_and_validate(headers=bearer("hand"), excluded_checks=[positive_data_acceptance] if of_text else [])


def test_a_refused_method_is_told_all_that_there_are() -> None:
    answer = open_door().post("/admin/experiment")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
    assert answer.json()["error"]["message"] == "POST /admin/experiment: method not allowed"


def test_an_endpoint_of_a_feature_that_is_not_configured_says_so() -> None:
    answer = open_door().get("/admin/usage")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert answer.json()["error"]["message"] == (
        "GET /admin/usage: no such endpoint of the admin API; those of a feature are there where it is configured, "
        "those of clients at `listen.port`"
    )


def test_the_pool_or_that_there_is_none() -> None:
    assert open_door().get("/admin/pool").json() == {
        "configured": True,
        "leader": "mooncake master a:9003",
        "models": [],
    }

    class Without(Rooms):
        def describe_feature(self, name: str) -> dict[str, Any] | None:
            return None

    assert open_door(Without()).get("/admin/pool").json() == {"configured": False}
