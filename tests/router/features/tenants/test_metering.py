"""The books of one process and their file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.clock import ManualClock
from router.config.sections.clients import ClientsConfig, TenantLimits
from router.errors import RequestRefused
from router.features.tenants.ledger import DAY_S
from router.features.tenants.metering import Metering
from router.features.tenants.tenant_tables import TenantTables
from router.features.tenants.token_counts import TokenCounts
from router.tasks import Tasks
from router.telemetry.metrics.prometheus import Metrics

DAY = 20_000
KEY = (DAY, "acme", "m")


def a_metering(clock: ManualClock, **clients: Any) -> Metering:
    metrics = Metrics(lambda model: True, lambda engine: True)
    config = ClientsConfig.model_validate({"tenant_header": "x-tenant"} | clients)
    return Metering(config, "run", TenantTables(metrics.counter, metrics.model_label, ()), lambda model: None, clock)


@asynccontextmanager
async def metering_of(clock: ManualClock, **clients: Any) -> AsyncIterator[Metering]:
    """The metering of the process with the file."""
    metering, tasks = a_metering(clock, **clients), Tasks("test")
    metering.open_file(tasks)
    yield metering
    await metering.close()
    await tasks.close()


async def test_what_is_counted_is_written_read_and_gone_on_from(tmp_path: Path) -> None:
    clock, file = ManualClock(0.0, DAY * DAY_S + 1), str(tmp_path / "usage.db")
    async with metering_of(clock, usage_file=file) as first:
        first.usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
        (row,) = await first.read(None, None)
        assert (row.day, row.tenant, row.requests, row.tokens) == (DAY, "acme", 1, TokenCounts(100, 0, 25))
        first.usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
    await first.close()
    assert await first.read(None, None) == []
    async with metering_of(clock, usage_file=file) as second:
        assert second.ledger.used_today("acme") == 2 * (100 + 4 * 25)
        assert second.ledger.owner == first.ledger.owner
        assert [row.requests for row in await second.read(DAY, DAY)] == [2]
        assert await second.read(DAY + 1, DAY + 1) == []
    clock.advance(DAY_S)
    async with metering_of(clock, usage_file=file) as third:
        assert third.ledger.used_today("acme") == 0


async def test_a_worker_without_the_file_writes_what_nobody_has_taken_over_when_it_stops(tmp_path: Path) -> None:
    clock, file = ManualClock(0.0, DAY * DAY_S + 1), str(tmp_path / "usage.db")
    async with metering_of(clock, usage_file=file) as on_duty:
        other, idle = a_metering(clock, usage_file=file), a_metering(clock, usage_file=file)
        other.usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
        sent = other.usage.take()
        other.reclaim = lambda: [other.usage.add(row) for row in sent]  # type: ignore[assignment, return-value]
        other.usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
        await other.write()
        assert await on_duty.read(None, None) == []
        await other.close()
        await idle.close()
        assert [row.requests for row in await on_duty.read(None, None)] == [2]


async def test_a_file_that_cannot_be_used_when_a_worker_stops_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = a_metering(ManualClock(0.0, DAY * DAY_S), usage_file=str(tmp_path))  # a folder
    worker.usage.add_request(KEY, TokenCounts(100, 0, 25), 0.5)
    await worker.close()
    assert "no process has taken over is lost: clients.usage_file" in caplog.text


async def test_what_cannot_be_written_waits_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = str(tmp_path / "usage.db")
    async with metering_of(ManualClock(0.0, DAY * DAY_S), usage_file=file) as metering:
        await check_repeated_writes(metering, file, caplog)


async def check_repeated_writes(metering: Metering, file: str, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(file) as other:
        other.execute("ALTER TABLE usage RENAME TO moved")
    metering.usage.add_request(KEY, TokenCounts(1, 0, 0), 0.0)
    await metering.write()
    await metering.write()
    with pytest.raises(RequestRefused, match="the usage cannot be read"):
        await metering.read(None, None)
    with sqlite3.connect(file) as other:
        other.execute("ALTER TABLE moved RENAME TO usage")
    assert [row.requests for row in await metering.read(None, None)] == [1]
    said = [record.getMessage() for record in caplog.records]
    assert ["no such table" in said[0], "can be written again" in said[1], len(said)] == [True, True, 2]


async def test_who_is_nearest_to_a_limit_comes_first() -> None:
    classes = {"default": {"limits": {"concurrent": 4}}, "big": {"limits": {"concurrent": 8}}}
    listed = {"restored": {"service_class": "big"}}
    metering = a_metering(ManualClock(), service_classes=classes, tenants=listed)
    limits = TenantLimits(concurrent=4)
    for tenant, requests in (("one", 1), ("three", 3), ("two", 2)):
        for _ in range(requests):
            metering.ledger.open(tenant, limits)
    metering.ledger.restore("restored", TokenCounts())  # without a request here: its class is that of the settings
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
    metering.ledger.restore("acme", TokenCounts())
    assert await metering.describe_limits(9) == [("acme", {})]
    await metering.close()


async def test_where_nobody_says_who_it_is_nothing_is_kept() -> None:
    metering = a_metering(ManualClock(), tenant_header=None)
    assert metering._store is None
    assert await metering.read(None, None) == []
    await metering.close()
