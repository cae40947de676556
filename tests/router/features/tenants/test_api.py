"""`GET /admin/usage` and `GET /admin/tenants`."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from router.features.tenants.api import add_usage_routes
from router.features.tenants.ledger import LimitUse
from router.features.tenants.metering import TenantUse
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_store import number_day
from router.request.error_body import install_error_handlers

DAY = number_day("2026-11-24")


class Rows:
    def __init__(self) -> None:
        self.asked: list[tuple[int | None, int | None]] = []

    async def read(self, first: int | None, last: int | None) -> list[UsageRow]:
        self.asked.append((first, last))
        return [
            UsageRow(DAY, 'ac"me, inc', "m", 2, TokenCounts(10, 20, 30), 0.12345, {"concurrent": 3, "forbidden": 1}),
            UsageRow(DAY + 1, "zeta", ""),
        ]

    async def describe_limits(self, most: int) -> list[TenantUse]:
        return [TenantUse("acme", {"concurrent": LimitUse(8, 2), "budget_per_day": LimitUse(50.0, 0.5)})][:most]


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def http(rows: Any) -> TestClient:
    app = FastAPI()
    install_error_handlers(app)
    add_usage_routes(app, rows, [])
    return TestClient(app)


def test_json_by_day_tenant_and_model(http: TestClient, rows: Rows) -> None:
    first, second = http.get("/admin/usage").json()["usage"]
    assert first == {
        "day": "2026-11-24",
        "tenant": 'ac"me, inc',
        "model": "m",
        "requests": 2,
        "input_tokens": 10,
        "cached_tokens": 20,
        "output_tokens": 30,
        "gpu_s": 0.123,
        "refused": {"concurrent": 3, "forbidden": 1},
    }
    assert (second["day"], second["requests"], second["refused"]) == ("2026-11-25", 0, {})
    http.get("/admin/usage", params={"from": "2026-11-20", "to": "2026-11-24"})
    assert rows.asked == [(None, None), (DAY - 4, DAY)]


def test_csv_has_a_line_per_row(http: TestClient) -> None:
    answer = http.get("/admin/usage", params={"format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text.splitlines() == [
        "day,tenant,model,requests,input_tokens,cached_tokens,output_tokens,gpu_s,refused",
        '2026-11-24,"ac""me, inc",m,2,10,20,30,0.123,4',
        "2026-11-25,zeta,,0,0,0,0,0.0,0",
    ]


def test_what_is_used_of_limits(http: TestClient) -> None:
    limits = {"concurrent": {"allowed": 8, "used": 2}, "budget_per_day": {"allowed": 50.0, "used": 0.5}}
    assert http.get("/admin/tenants").json() == {"tenants": [{"tenant": "acme", "limits": limits}]}
    assert http.get("/admin/tenants", params={"limit": 0}).status_code == 422


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *(("from", value, "a day of the calendar, as YYYY-MM-DD") for value in ("yesterday", "0", "20261201")),
        ("to", "2026-02-30", "a day of the calendar, as YYYY-MM-DD"),
        ("format", "xml", "'json' or 'csv'"),
    ],
)
def test_what_is_no_day_or_format_is_refused(http: TestClient, name: str, value: str, wanted: str) -> None:
    answer = http.get("/admin/usage", params={name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, name)
    assert error["message"] == f'{name}: found "{value}", wanted {wanted}'
