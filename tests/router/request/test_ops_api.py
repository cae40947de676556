"""Health, readiness and the metrics page of the public port."""

from __future__ import annotations

from fastapi.testclient import TestClient

from router.request.ops_api import ops_app
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.state import RouterSnapshot


def client(why_not: str | None = None) -> TestClient:
    return TestClient(
        ops_app(lambda: why_not, Metrics(lambda: RouterSnapshot((), (), {}, {}), lambda model: True).scrape)
    )


def test_health_does_not_care_about_engines() -> None:
    answer = client("no engine is ready").get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_when_nothing_speaks_against_it() -> None:
    answer = client().get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_not_ready_says_why() -> None:
    answer = client("no engine is ready").get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "reason": "no engine is ready"})


def test_metrics_are_prometheus_text() -> None:
    answer = client().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "\nwarmroute_in_flight_requests 0.0\n" in answer.text


def test_nothing_else_is_served() -> None:
    for path in ("/", "/docs", "/redoc", "/openapi.json", "/admin/instances"):
        answer = client().get(path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["type"] == "not_found_error"
