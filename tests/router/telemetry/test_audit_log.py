"""The audit log on a real disk: what is there after a restart, a torn line, a disk that refuses."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from router.telemetry.audit_log import MAX_ENTRIES, AuditEntry, AuditLog, PoliciesInForce, describe_changes
from tests.fakes.engines import eventually

NEAR = PoliciesInForce("near", {"near": "aa"})
FAR = PoliciesInForce("far", {"far": "bb"}, "e1", {"near": 90, "far": 10}, ["far"])


def an_entry(i: int = 0) -> AuditEntry:
    return AuditEntry(1000.0 + i, "ann", f"switch {i}", NEAR, FAR, ["3 of 4 choices would change"], None, None)


def test_newest_first_and_bounded() -> None:
    audit = AuditLog()
    for i in range(MAX_ENTRIES + 5):
        audit.add(an_entry(i))
    assert [entry.what for entry in audit.latest(2)] == [f"switch {MAX_ENTRIES + 4}", f"switch {MAX_ENTRIES + 3}"]
    assert len(audit.latest()) == MAX_ENTRIES
    assert audit.pending == 0  # no file: nothing waits


async def test_one_line_of_json_each() -> None:
    audit = AuditLog()
    audit.add(an_entry())
    assert msgspec.json.decode(msgspec.json.encode(audit.latest(1)[0])) == {
        "at_wall_s": 1000.0,
        "who": "ann",
        "what": "switch 0",
        "from": {
            "active": "near",
            "policies": {"near": "aa"},
            "experiment": None,
            "arms": {},
            "rolled_back": [],
            "admission": {},
        },
        "to": {
            "active": "far",
            "policies": {"far": "bb"},
            "experiment": "e1",
            "arms": {"near": 90.0, "far": 10.0},
            "rolled_back": ["far"],
            "admission": {},
        },
        "plan": ["3 of 4 choices would change"],
    }


def test_what_changed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmroute.audit")
    changes = ["active: near -> far", "arms: none -> near 90 %, far 10 %", "rolled back: none -> far"]
    assert describe_changes(NEAR, FAR) == changes
    assert describe_changes(NEAR, NEAR) == []
    queued = {"enabled": True, "rule": {"name": "fit"}}
    after = msgspec.structs.replace(NEAR, policies={"near": "cc"}, admission=queued)
    assert describe_changes(NEAR, after) == [
        'admission: defaults -> {"enabled":true,"rule":{"name":"fit"}}',
        "policy near: aa -> cc",
    ]
    AuditLog().add(msgspec.structs.replace(an_entry(), changes=changes[:1], why="it is better"))
    assert caplog.messages == ["ann: switch 0: active: near -> far: it is better"]


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(file)
    for i in range(3):
        audit.add(an_entry(i))
    assert audit.pending == 3
    assert await audit.flush()
    assert audit.pending == 0
    again = AuditLog(file)
    assert again.latest() == audit.latest()
    again.add(an_entry(3))
    assert await again.flush()
    assert len(file.read_bytes().splitlines()) == 4


async def test_a_torn_line_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(file)
    audit.add(an_entry(0))
    assert await audit.flush()
    with file.open("ab") as torn:
        torn.write(b'{"at_wall_s": 1001.0, "who": "an')
    again = AuditLog(file)
    assert "1 lines are not entries" in caplog.text
    again.add(an_entry(2))
    assert await again.flush()
    assert [entry.what for entry in AuditLog(file).latest()] == ["switch 2", "switch 0"]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = msgspec.json.encode(an_entry()) + b"\n"
    (tmp_path / "audit.jsonl").write_bytes(line * 10)
    monkeypatch.setattr("router.telemetry.audit_log.TAIL_BYTES", 4 * len(line) + 5)
    # The piece begins 5 bytes before the last four lines: what it cuts does not count.
    assert len(AuditLog(tmp_path / "audit.jsonl").latest()) == 4


async def test_a_disk_that_refuses_holds_up_nothing_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    audit = AuditLog(folder / "audit.jsonl", retry_s=0.01)
    running = asyncio.create_task(audit.run())
    try:
        audit.add(an_entry(0))
        audit.add(an_entry(1))
        await eventually(lambda: audit.failures >= 3)
        assert (audit.pending, audit.trouble) == (2, f"{folder}/audit.jsonl: no such file or directory")
        assert caplog.text.count("audit log: entries cannot be written") == 1
        folder.mkdir()
        await eventually(lambda: audit.pending == 0)
        assert audit.trouble is None
        assert [entry.what for entry in AuditLog(folder / "audit.jsonl").latest()] == ["switch 1", "switch 0"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_waits_is_bounded_and_the_loss_is_counted(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "no" / "audit.jsonl")
    for i in range(MAX_ENTRIES + 2):
        audit.add(an_entry(i))
    assert (audit.pending, audit.lost) == (MAX_ENTRIES, 2)
    assert await audit.flush() is False
    assert audit.pending == MAX_ENTRIES


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert AuditLog(tmp_path).latest() == []  # a folder
    assert f"audit log {tmp_path} cannot be read: is a directory" in caplog.text
