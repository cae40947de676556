"""The audit log: who switched what, when, why, and what was foreseen. JSON lines, forced to disk one by one.

An entry counts as soon as `add` has returned; a thread writes it. So a full or hanging disk never holds up a switch,
nor anybody's first token: what could not be written is kept, tried again, and counted. The end of the file is read at
the start. A crash in the middle of a line leaves it torn: it is skipped, and the next one begins on a line of its own.

    {"at_wall_s": 1766000000.1, "who": "guard", "what": "rollback", "from": {...}, "to": {...}, "why": "...", ...}
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from itertools import islice
from pathlib import Path

import msgspec

log = logging.getLogger("warmroute.audit")

MAX_ENTRIES = 1_000
TAIL_BYTES = 8 * 1024 * 1024  # of the file, looked at when starting
RETRY_S = 5.0


class PoliciesInForce(msgspec.Struct, frozen=True):
    """What was in force."""

    active: str
    policies: dict[str, str]  # digests of those in use, by name
    experiment: str | None = None  # its fingerprint
    arms: dict[str, float] = {}
    rolled_back: list[str] = []


class AuditEntry(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}, omit_defaults=True):
    at_wall_s: float
    who: str
    what: str
    before: PoliciesInForce | None
    after: PoliciesInForce
    plan: list[str] | None = None  # in sentences; None: there was none
    why: str | None = None
    arm: str | None = None  # of a rollback


class AuditLog:
    """Keeps the newest `MAX_ENTRIES` entries in memory, and every one in `file` if there is one."""

    def __init__(self, file: Path | str | None = None, retry_s: float = RETRY_S) -> None:
        self.lost = 0  # entries that will never be written
        self.failures = 0  # writes that failed, again and again included
        self.trouble: str | None = None  # why the last write failed; None: it did not
        self._file = None if file is None else Path(file)
        self._retry_s = retry_s
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_ENTRIES)
        self._pending: deque[bytes] = deque()
        self._in_flight = 0  # lines that a thread is just writing
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        if self._file is not None:
            self._entries.extend(read_tail(self._file))

    @property
    def pending(self) -> int:
        """Entries that are not on disk yet."""
        return len(self._pending) + self._in_flight

    def add(self, entry: AuditEntry) -> None:
        self._entries.append(entry)
        if entry.before is not None:  # a start is told by whoever starts
            log.info("%s: %s%s", entry.who, entry.what, "" if entry.why is None else f": {entry.why}")
        if self._file is None:
            return
        if len(self._pending) >= MAX_ENTRIES:
            self._pending.popleft()
            self.lost += 1
        self._pending.append(msgspec.json.encode(entry) + b"\n")
        self._wake.set()

    def latest(self, limit: int = MAX_ENTRIES) -> list[AuditEntry]:
        """Newest first."""
        return list(islice(reversed(self._entries), limit))

    async def run(self) -> None:
        """Writes what was added, for ever: supervise it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(self._retry_s)
                self._wake.set()

    async def flush(self) -> bool:
        """Everything added so far is on disk now. False: it cannot be written."""
        async with self._writing:
            while self._pending:
                line = self._pending.popleft()
                self._in_flight = 1
                try:
                    await asyncio.to_thread(self._write, line)  # goes on when this is cancelled: it is never repeated
                except OSError as error:
                    self._pending.appendleft(line)
                    self._failed(error)
                    return False
                finally:
                    self._in_flight = 0
                self.trouble = None
        return True

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        with self._file.open("ab+") as file:
            if (size := file.seek(0, os.SEEK_END)) > 0:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # a torn line: of a crash, or of our own last try on a full disk
                    line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        trouble = f"{self._file}: {(error.strerror or str(error)).lower()}"
        if trouble != self.trouble:
            log.error("audit entries cannot be written, %d wait: %s", self.pending, trouble)
        self.trouble = trouble


def read_tail(file: Path) -> list[AuditEntry]:
    """Return the last entries of a file, oldest first, at most `MAX_ENTRIES`; broken lines are skipped."""
    try:
        with file.open("rb") as opened:
            start = max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES)
            opened.seek(start)
            lines = opened.read().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("audit file %s cannot be read: %s", file, (error.strerror or str(error)).lower())
        return []
    entries = []
    skipped = 0
    for line in lines[1:] if start else lines:  # the first one of a piece is cut
        try:
            entries += [msgspec.json.decode(line, type=AuditEntry)] if line else []
        except msgspec.DecodeError:
            skipped += 1
    if skipped:
        log.warning("audit file %s: %d lines are no entries and were skipped", file, skipped)
    return entries[-MAX_ENTRIES:]
