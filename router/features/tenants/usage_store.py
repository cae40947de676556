"""The usage of tenants by day in SQLite: a file in WAL mode, or memory.

Every write is one transaction that adds to the sums. So a process that is killed loses only what it had not
written, and two processes may write to one file during a take-over. All calls block: make them in a thread, one at
a time.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from datetime import date

from router.config.private_files import open_private
from router.errors import ConfigError, WarmrouteError
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow

VERSION = 1
BUSY_S = 5.0  # how long another process may write before this one gives up
MEMORY_DAYS = 31  # kept in memory; a file keeps all
EPOCH = date(1970, 1, 1).toordinal()
SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, gpu_s REAL NOT NULL,
    PRIMARY KEY (day, tenant, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refusals (
    day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL, reason TEXT NOT NULL, requests INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (id TEXT NOT NULL);
"""
ADD_USAGE = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, input_tokens = input_tokens + excluded.input_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens, output_tokens = output_tokens + excluded.output_tokens,
    gpu_s = gpu_s + excluded.gpu_s
"""
ADD_REFUSALS = (
    "INSERT INTO refusals VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests"
)
SPENT = """
SELECT tenant, SUM(input_tokens), SUM(cached_tokens), SUM(output_tokens) FROM usage WHERE day = ? GROUP BY tenant
"""


class UsageUnwritten(WarmrouteError):
    """The usage could not be written or read, for the reason in the message."""


class UsageStore:
    """The sums of all days. If `path` is None, they are in memory, and only the last `MEMORY_DAYS` are kept."""

    def __init__(self, path: str | None) -> None:
        """Raise ConfigError for a file that cannot be used."""
        self._path = path
        if path is not None:
            with suppress(OSError):  # SQLite reports the error; the files beside this one get its permissions
                os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        try:
            self._open = sqlite3.connect(path or ":memory:", timeout=BUSY_S, check_same_thread=False)
            self._open.execute("PRAGMA journal_mode=WAL")
            self._open.execute("PRAGMA synchronous=NORMAL")  # a crash of the process loses nothing that was written
            version = self._open.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise ConfigError(f"clients.usage_file: {path}: of a newer warmroute (version {version})")
            self._open.executescript(SCHEMA)
            with self._open:
                self._open.execute(f"PRAGMA user_version = {VERSION}")
                self._open.execute(
                    "INSERT INTO owner SELECT ? WHERE NOT EXISTS (SELECT * FROM owner)", (secrets.token_hex(8),)
                )
            self.owner = str(self._open.execute("SELECT id FROM owner").fetchone()[0])
        except sqlite3.Error as error:
            raise ConfigError(f"clients.usage_file: {path}: {error}") from error

    def add(self, rows: Iterable[UsageRow]) -> None:
        """Add sums. Raises `UsageUnwritten`, and then has added none of them."""
        rows = list(rows)
        used = [
            (
                name_day(row.day),
                row.tenant,
                row.model,
                row.requests,
                row.tokens.input_tokens,
                row.tokens.cached_tokens,
                row.tokens.output_tokens,
                row.gpu_s,
            )
            for row in rows
        ]
        refused = [
            (name_day(row.day), row.tenant, row.model, *entry) for row in rows for entry in sorted(row.refused.items())
        ]
        try:
            with self._open:
                self._open.executemany(ADD_USAGE, used)
                self._open.executemany(ADD_REFUSALS, refused)
                if self._path is None and rows:
                    oldest = name_day(max(row.day for row in rows) - MEMORY_DAYS + 1)
                    self._open.execute("DELETE FROM usage WHERE day < ?", (oldest,))
                    self._open.execute("DELETE FROM refusals WHERE day < ?", (oldest,))
        except sqlite3.Error as error:
            raise UsageUnwritten(str(error)) from error

    def read(self, first: int, last: int) -> list[UsageRow]:
        """Return the sums of the days from `first` to `last`, by day, tenant and model. Raises `UsageUnwritten`."""
        days = name_day(first), name_day(last)
        refused: dict[tuple[str, str, str], dict[str, int]] = {}
        try:
            found = "SELECT * FROM refusals WHERE day BETWEEN ? AND ? ORDER BY day, tenant, model, reason"
            for day, tenant, model, reason, requests in self._open.execute(found, days):
                refused.setdefault((day, tenant, model), {})[reason] = requests
            used = "SELECT * FROM usage WHERE day BETWEEN ? AND ? ORDER BY day, tenant, model"
            return [
                UsageRow(
                    number_day(day),
                    tenant,
                    model,
                    requests,
                    TokenCounts(*tokens),
                    gpu_s,
                    refused.get((day, tenant, model), {}),
                )
                for day, tenant, model, requests, *tokens, gpu_s in self._open.execute(used, days)
            ]
        except sqlite3.Error as error:
            raise UsageUnwritten(str(error)) from error

    def spent(self, day: int) -> dict[str, TokenCounts]:
        """Return the tokens of a day by tenant. Raises `UsageUnwritten`."""
        try:
            rows = self._open.execute(SPENT, (name_day(day),))
            return {tenant: TokenCounts(*tokens) for tenant, *tokens in rows}
        except sqlite3.Error as error:
            raise UsageUnwritten(str(error)) from error

    def close(self) -> None:
        self._open.close()


def name_day(day: int) -> str:
    """Return a day, counted from the epoch, as YYYY-MM-DD."""
    return date.fromordinal(EPOCH + day).isoformat()


def number_day(name: str) -> int:
    """Return the day that YYYY-MM-DD names, counted from the epoch. Raises ValueError."""
    return date.fromisoformat(name).toordinal() - EPOCH
