"""Files that are there, half there, not ours to read; and a keeper that writes while its source goes on."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path

import pytest

from router.kvcache import snapshots as snapshot
from router.kvcache.event_sequencer import StreamCursor
from router.kvcache.events import TargetId
from router.kvcache.snapshot_format import SavedIndex, SavedTarget, SavedTargetBlocks
from router.kvcache.snapshots import Snapshots, load, write
from router.tasks import Tasks
from tests.patience import PATIENCE_S

SHELF = SavedTargetBlocks("m", 16, [], [], [])


def target(name: str, seq: int) -> SavedTarget:
    return SavedTarget(TargetId(name), SHELF, StreamCursor(seq, 1.5, False), 0)


class Source:
    """Two targets, one of which tells nothing; the other's cursor is how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.given_up = asyncio.Event()

    def snapshot_targets(self) -> list[TargetId]:
        return [TargetId("a/0"), TargetId("b/0")]

    def snapshot(self, name: TargetId) -> SavedTarget | None:
        if name == "b/0":
            return None
        self.asked += 1
        return target(name, self.asked)

    def discard_restored(self) -> None:
        self.given_up.set()


def test_what_was_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    file = tmp_path / "index"
    file.write_bytes(b"something older, open to all")
    file.chmod(0o644)
    write(file, 7, [target("a/0", 3)])
    assert load(file) == SavedIndex(7, [target("a/0", 3)])
    assert load(file, whole=False) == SavedIndex(7, [])
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_dead_router_left_half_written_is_in_nobodys_way(tmp_path: Path) -> None:
    file = tmp_path / "index"
    (tmp_path / "index.new").write_bytes(b"half")
    write(file, 7, [])
    assert load(file) == SavedIndex(7, [])


def test_what_a_dead_router_left_half_written_is_removed_by_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "index"
    write(file, 7, [])
    (tmp_path / "index.new").write_bytes(b"half")
    assert load(file) == SavedIndex(7, [])
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_last_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "index"
    write(file, 7, [target("a/0", 3)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # as on a full disk
    try:
        with pytest.raises(OSError, match="too large"):
            write(file, 7, [target("a/0", 4)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load(file) == SavedIndex(7, [target("a/0", 3)])
    assert list(tmp_path.iterdir()) == [file]


def test_where_there_is_no_file_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path / "index") is None
    assert not caplog.records


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "index").write_bytes(b"what is this")
    assert load(tmp_path / "index") is None
    assert load(tmp_path) is None  # a folder
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
    assert "not a snapshot of this version" in caplog.text
    assert "cannot read" in caplog.text


async def test_it_is_kept_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "JOIN_WITHIN_S", 0.01)
    file, source, tasks = tmp_path / "index", Source(), Tasks("test")
    Snapshots(file, 0.01, 7, source, tasks).start()
    async with asyncio.timeout(PATIENCE_S):
        await source.given_up.wait()
        while (found := load(file)) is None or found.targets[0].cursor.last_seq < 3:  # noqa: ASYNC110  a thread writes it
            await asyncio.sleep(0.005)
    await tasks.close()
    assert found.secret == 7
    assert [one.target for one in found.targets] == ["a/0"]


async def test_what_cannot_be_written_is_said_and_not_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshots = Snapshots(tmp_path / "nowhere" / "index", 60.0, 7, Source(), Tasks("test"))
    await snapshots.save()
    assert "index snapshot not written" in caplog.text
