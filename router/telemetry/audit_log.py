"""The audit log: who switched what, when, why, and what a dry run predicted. JSON lines, fsynced one by one.

An entry counts as soon as `add` has returned; a thread writes it. So a full or hanging disk never delays a switch
or a first token: entries that could not be written are kept, retried, and counted. The end of the file is read at
start. A crash in the middle of a line leaves it torn: a torn line is skipped, and the next entry begins on a line
of its own. With other processes (`router/control/peers`), each process has the entries of all, and one of a host's
workers writes them.

    {"at_wall_s": 1766000000.1, "who": "ann", "what": "activate round_robin", "from": {...}, "to": {...},
     "changes": ["active: warm -> round_robin"], ...}
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from router.config.private_files import open_private

log = logging.getLogger("warmroute.audit")

MAX_ENTRIES = 1_000
TAIL_BYTES = 8 * 1024 * 1024  # of the file, read at start
RETRY_S = 5.0


class PoliciesInForce(msgspec.Struct, frozen=True):
    """The policies in force at one moment."""

    active: str
    policies: dict[str, str]  # digests of the policies in use, by name
    experiment: str | None = None  # its fingerprint
    arms: dict[str, float] = {}
    rolled_back: list[str] = []
    admission: dict[str, Any] = {}  # its settings that are not the defaults


def describe_changes(before: PoliciesInForce, after: PoliciesInForce) -> list[str]:
    """Return the differences, each as `active: warm -> round_robin`."""
    values = {
        "active": (before.active, after.active),
        "arms": (_list_shares(before.arms), _list_shares(after.arms)),
        "rolled back": (", ".join(before.rolled_back), ", ".join(after.rolled_back)),
        "admission": (_describe_settings(before.admission), _describe_settings(after.admission)),
    }
    for name in before.policies.keys() & after.policies.keys():
        values[f"policy {name}"] = before.policies[name], after.policies[name]
    if before.arms == after.arms:  # other shadows, or another seed
        values["experiment"] = before.experiment or "", after.experiment or ""
    return [f"{what}: {was or 'none'} -> {now or 'none'}" for what, (was, now) in values.items() if was != now]


def _list_shares(arms: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:g} %" for name, share in arms.items())


def _describe_settings(admission: dict[str, Any]) -> str:
    return msgspec.json.encode(admission).decode() if admission else "defaults"


class AuditEntry(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}, omit_defaults=True):
    at_wall_s: float
    who: str
    what: str
    before: PoliciesInForce | None
    after: PoliciesInForce
    plan: list[str] | None = None  # of the dry run, in sentences; None: there was no dry run
    why: str | None = None
    arm: str | None = None  # of a rollback
    replica: str | None = None  # run id of the process where it happened; None: this process
    split: str | None = None  # fingerprint of the model split that `arm` belongs to; None: of no split
    changes: list[str] = []  # of what is in force, as `active: warm -> round_robin`
    number: int | None = None  # among the entries of that process's run, from 1; None: this process's entry


class AuditLog:
    """The newest `MAX_ENTRIES` entries in memory, and all entries in `file` if this process `writes` the file."""

    def __init__(self, file: Path | str | None = None, retry_s: float = RETRY_S, *, writes: bool = True) -> None:
        self.writes = writes
        self.lost = 0  # entries that will never be written
        self.failures = 0  # writes that failed, each try counting
        self.trouble: str | None = None  # why the last write failed; None: it succeeded
        self._file = None if file is None else Path(file)
        self._retry_s = retry_s
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_ENTRIES)
        self._pending: deque[bytes] = deque()
        self._in_flight = 0  # lines that a thread is writing now
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        if self._file is not None:
            self._entries.extend(read_tail(self._file))

    @property
    def pending(self) -> int:
        """The number of entries that are not on disk yet."""
        return len(self._pending) + self._in_flight

    def add(self, entry: AuditEntry) -> None:
        self._entries.append(entry)
        if entry.before is not None:  # a start is logged elsewhere
            said = (entry.who, entry.what, "; ".join(entry.changes), entry.why)
            log.info("%s", ": ".join(part for part in said if part))
        if self._file is None or not self.writes:
            return
        if len(self._pending) >= MAX_ENTRIES:
            self._pending.popleft()
            self.lost += 1
        self._pending.append(msgspec.json.encode(entry) + b"\n")
        self._wake.set()

    def latest(self, limit: int = MAX_ENTRIES) -> list[AuditEntry]:
        """Return up to `limit` entries, newest first."""
        return list(islice(reversed(self._entries), limit))

    async def run(self) -> None:
        """Write entries as they are added, forever: run this supervised."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(self._retry_s)
                self._wake.set()

    async def flush(self) -> bool:
        """Write everything added so far to disk; return whether that succeeded."""
        async with self._writing:
            while self._pending:
                line = self._pending.popleft()
                self._in_flight = 1
                try:
                    await asyncio.to_thread(self._write, line)  # runs on if this is cancelled: no line is repeated
                except OSError as error:
                    self._pending.appendleft(line)
                    self._on_failure(error)
                    return False
                finally:
                    self._in_flight = 0
                self.trouble = None
        return True

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        with open(self._file, "ab+", opener=open_private) as file:
            if (size := file.seek(0, os.SEEK_END)) > 0:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # a torn line, from a crash or an earlier try on a full disk
                    line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _on_failure(self, error: OSError) -> None:
        self.failures += 1
        trouble = f"{self._file}: {(error.strerror or str(error)).lower()}"
        if trouble != self.trouble:
            log.error("audit log: entries cannot be written, %d waiting: %s", self.pending, trouble)
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
        log.error("audit log %s cannot be read: %s", file, (error.strerror or str(error)).lower())
        return []
    entries = []
    skipped = 0
    for line in lines[1:] if start else lines:  # the first line may be cut
        try:
            entries += [msgspec.json.decode(line, type=AuditEntry)] if line else []
        except msgspec.DecodeError:
            skipped += 1
    if skipped:
        log.warning("audit log %s: %d lines are not entries and were skipped", file, skipped)
    return entries[-MAX_ENTRIES:]
