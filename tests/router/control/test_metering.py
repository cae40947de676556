"""The books of one process and their file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from router.clock import ManualClock
from router.config.sections.clients import ClientsConfig, TenantLimits
from router.control.metering import Metering
from router.errors import RequestRefused
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.tenants.ledger import DAY_S
from router.tenants.token_counts import TokenCounts

DAY = 20_000
KEY = (DAY, "acme", "m")


def a_metering(clock: ManualClock, **clients: Any) -> Metering:
    metrics = Metrics(lambda: RouterSnapshot(), lambda model: True)
    config = ClientsConfig.model_validate({"tenant_header": "x-tenant"} | clients)
    return Metering(config, "run", None, metrics.tenants, lambda model: None, clock)


async def test_what_is_counted_is_written_read_and_gone_on_from(tmp_path: Path) -> None:
    clock, file = ManualClock(0.0, DAY * DAY_S + 1), str(tmp_path / "usage.db")
    first = a_metering(clock, usage_file=file)
    first._usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
    (row,) = await first.read(None, None)
    assert (row.day, row.tenant, row.requests, row.tokens) == (DAY, "acme", 1, TokenCounts(100, 0, 25))
    first._usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
    await first.close()
    await first.close()
    assert await first.read(None, None) == []
    second = a_metering(clock, usage_file=file)
    assert second._ledger.used_today("acme") == 2 * (100 + 4 * 25)
    assert [row.requests for row in await second.read(DAY, DAY)] == [2]
    assert await second.read(DAY + 1, DAY + 1) == []
    await second.close()
    clock.advance(DAY_S)
    third = a_metering(clock, usage_file=file)
    assert third._ledger.used_today("acme") == 0
    await third.close()


async def test_what_cannot_be_written_waits_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = str(tmp_path / "usage.db")
    metering = a_metering(ManualClock(0.0, DAY * DAY_S), usage_file=file)
    with sqlite3.connect(file) as other:
        other.execute("ALTER TABLE usage RENAME TO moved")
    metering._usage.add_request(KEY, TokenCounts(1, 0, 0), 0.0)
    await metering.write()
    await metering.write()
    with pytest.raises(RequestRefused, match="the usage cannot be read"):
        await metering.read(None, None)
    with sqlite3.connect(file) as other:
        other.execute("ALTER TABLE moved RENAME TO usage")
    assert [row.requests for row in await metering.read(None, None)] == [1]
    said = [record.getMessage() for record in caplog.records]
    assert ["no such table" in said[0], "can be written again" in said[1], len(said)] == [True, True, 2]
    await metering.close()


async def test_who_is_nearest_to_a_limit_comes_first() -> None:
    classes = {"default": {"limits": {"concurrent": 4}}, "big": {"limits": {"concurrent": 8}}}
    listed = {"restored": {"service_class": "big"}}
    metering = a_metering(ManualClock(), service_classes=classes, tenants=listed)
    limits = TenantLimits(concurrent=4)
    for tenant, requests in (("one", 1), ("three", 3), ("two", 2)):
        for _ in range(requests):
            metering._ledger.open(tenant, limits)
    metering._ledger.restore("restored", TokenCounts())  # without a request here: its class is that of the settings
    found = await metering.describe_limits(9)
    assert [(one.tenant, one.limits["concurrent"]) for one in found] == [
        ("three", (4, 3)),
        ("two", (4, 2)),
        ("one", (4, 1)),
        ("restored", (8, 0)),
    ]
    assert [one.tenant for one in await metering.describe_limits(1)] == ["three"]
    await metering.close()


async def test_a_class_that_only_tokens_name_is_not_guessed() -> None:
    jwt = {"issuer": "i", "audience": "a", "jwks_file": "keys", "class_claim": "plan"}
    metering = a_metering(ManualClock(), jwt=jwt, service_classes={"default": {"limits": {"concurrent": 4}}})
    metering._ledger.restore("acme", TokenCounts())
    assert await metering.describe_limits(9) == [("acme", {})]
    await metering.close()


async def test_where_nobody_says_who_it_is_nothing_is_kept() -> None:
    metering = a_metering(ManualClock(), tenant_header=None)
    assert metering._store is None
    assert await metering.read(None, None) == []
    await metering.close()
