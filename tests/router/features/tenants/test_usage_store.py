"""The usage of tenants in SQLite."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_store import MEMORY_DAYS, UsageStore, UsageUnwritten, name_day, number_day
from tests.paths import ROOT

DAY = number_day("2026-11-24")
ROW = UsageRow(DAY, "acme", "m", 2, TokenCounts(10, 20, 30), 0.5, {"concurrent": 3})
KILLED = """
import os, signal, sys
from router.features.tenants.usage_store import UsageStore
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
store = UsageStore(sys.argv[1])
store.add([UsageRow(int(sys.argv[2]), "acme", "m", 2, TokenCounts(10, 20, 30), 0.5, {"concurrent": 3})])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sums_add_up_by_day_tenant_and_model() -> None:
    store = UsageStore(None)
    other = UsageRow(DAY, "acme", "", refused={"forbidden": 1})
    later = UsageRow(DAY + 1, "zeta", "m", 1, TokenCounts(1, 1, 1), 0.125)
    store.add([ROW, other, later])
    store.add([ROW])
    both = UsageRow(DAY, "acme", "m", 4, TokenCounts(20, 40, 60), 1.0, {"concurrent": 6})
    assert store.read(DAY, DAY + 1) == [other, both, later]
    assert store.read(DAY + 1, DAY + 1) == [later]
    assert store.spent(DAY) == {"acme": TokenCounts(20, 40, 60)}
    assert store.spent(DAY + 2) == {}


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    file = str(tmp_path / "usage.db")
    subprocess.run([sys.executable, "-c", KILLED, file, str(DAY)], cwd=ROOT, check=False)
    store = UsageStore(file)
    assert store.read(DAY, DAY) == [ROW]
    store.add([ROW])
    again = UsageStore(file)
    assert again.owner == store.owner != UsageStore(None).owner
    assert again.spent(DAY) == {"acme": TokenCounts(20, 40, 60)}
    mode = sqlite3.connect(file).execute("PRAGMA journal_mode").fetchone()
    assert mode == ("wal",)


def test_a_write_that_fails_has_added_nothing(tmp_path: Path) -> None:
    file = str(tmp_path / "usage.db")
    store = UsageStore(file)
    with sqlite3.connect(file) as reader:
        reader.execute("DROP TABLE refusals")
    with pytest.raises(UsageUnwritten, match="refusals"):
        store.add([ROW])
    assert store.spent(DAY) == {}
    with pytest.raises(UsageUnwritten):
        store.read(DAY, DAY)


def test_a_file_that_cannot_be_used_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, but it is long enough to be looked at as if it were one" * 20)
    with pytest.raises(ConfigError, match=r"clients\.usage_file"):
        UsageStore(str(tmp_path / "text"))
    with pytest.raises(ConfigError, match=r"clients\.usage_file"):
        UsageStore(str(tmp_path / "no folder" / "usage.db"))
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as made:
        made.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer"):
        UsageStore(str(newer))


def test_memory_keeps_a_month() -> None:
    store = UsageStore(None)
    for day in range(DAY, DAY + 2 * MEMORY_DAYS):
        store.add([UsageRow(day, "acme", "m", 1, refused={"concurrent": 1})])
    kept = store.read(0, DAY + 2 * MEMORY_DAYS)
    assert [row.day for row in kept] == list(range(DAY + MEMORY_DAYS, DAY + 2 * MEMORY_DAYS))


def test_days_have_names() -> None:
    assert name_day(0) == "1970-01-01"
    assert number_day(name_day(DAY)) == DAY
    with pytest.raises(ValueError):
        number_day("yesterday")
