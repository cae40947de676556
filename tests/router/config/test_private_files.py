"""Whatever holds names or prompts of clients can be read by its owner alone, as soon as it is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from router.cli.terminal.output import write_json
from router.config.private_files import open_private
from router.features.decision_log.compression import compress
from router.features.decision_log.files import COMPRESSED, UNFINISHED, OpenLogFile
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_store import UsageStore, number_day
from router.kvcache import snapshots
from router.lab.workloads.traces import write_lines
from router.telemetry.audit_log import AuditEntry, AuditLog, PoliciesInForce

PRIVATE = 0o600


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: mode(file) for file in folder.iterdir()}


async def audit(file: Path) -> None:
    log = AuditLog(file)
    log.add(AuditEntry(1.0, "ann", "switch", None, PoliciesInForce("a", {})))
    assert await log.flush()


async def usage(file: Path) -> None:
    store = UsageStore(str(file))
    store.add([UsageRow(number_day("2026-11-24"), "acme", "m", 1, TokenCounts(1, 2, 3), 0.5, {})])
    beside = {name: found for name, found in modes(file.parent).items() if name != file.name}
    assert set(beside) == {f"{file.name}-wal", f"{file.name}-shm"}, "SQLite's own files are here while it is open"
    assert set(beside.values()) == {mode(file)}
    store.close()


async def report(file: Path) -> None:
    write_json(Console(quiet=True), file, {"sessions": ["ann"]})


@pytest.mark.parametrize("write", [audit, usage, report])
async def test_a_file_is_private_and_keeps_the_permissions_that_it_was_given(write: Callable, tmp_path: Path) -> None:
    new, shared = tmp_path / "new" / "file.json", tmp_path / "shared" / "file.json"
    for file in (new, shared):
        file.parent.mkdir()
    await write(new)
    assert modes(new.parent) == {new.name: PRIVATE}
    shared.touch()
    shared.chmod(0o640)  # the operator lets a group read it
    await write(shared)
    assert mode(shared) == 0o640
    await write(new)
    assert mode(new) == PRIVATE


def test_decision_logs_are_private_while_written_and_when_compressed(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path, 0.0)
    file.write(b"one\n")
    assert mode(file.path) == PRIVATE
    file.close()
    file.path.with_suffix(UNFINISHED).touch(0o644)  # a killed process left it
    steps = compress(file.path, sync=False)
    next(steps)
    assert modes(tmp_path) == {file.path.name: PRIVATE, file.path.with_suffix(UNFINISHED).name: PRIVATE}
    list(steps)
    assert modes(tmp_path) == {file.path.with_suffix(COMPRESSED).name: PRIVATE}


def test_compressed_logs_of_an_earlier_version_become_private(tmp_path: Path) -> None:
    file = OpenLogFile(tmp_path, 0.0)
    file.close()
    file.path.chmod(0o644)
    list(compress(file.path, sync=False))
    assert modes(tmp_path) == {file.path.with_suffix(COMPRESSED).name: PRIVATE}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_traces_are_private(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.tmp").touch(0o644)
    assert write_lines(tmp_path / name, [b"{}\n"]) == 1
    assert modes(tmp_path) == {name: PRIVATE}


def test_snapshots_are_private(tmp_path: Path) -> None:
    (tmp_path / "index.new").touch(0o644)
    snapshots.write(tmp_path / "index", 1, [])
    assert modes(tmp_path) == {"index": PRIVATE}


def test_an_open_umask_changes_nothing(tmp_path: Path) -> None:
    os.umask(0)
    with open(tmp_path / "file", "wb", opener=open_private):
        assert mode(tmp_path / "file") == PRIVATE
