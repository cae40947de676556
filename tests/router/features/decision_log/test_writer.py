"""The decision log's thread, on real files: what is written, when it is not, and that nobody else notices."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.clock import ManualClock, SystemClock
from router.config import schema
from router.features.decision_log.files import OpenLogFile, list_compressed, list_plain
from router.features.decision_log.format import LoggedPolicy, LoggedRecord
from router.features.decision_log.reader import Entry, UnreadableLine, read
from router.features.decision_log.writer import DecisionLogWriter
from router.scheduling.policy.policy import build_policy
from tests.patience import PATIENCE_S
from tests.router.telemetry.records import a_record, until

WALL_S = 1_700_000_000.0
Make = Callable[..., DecisionLogWriter]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0, WALL_S)


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    """Decision logs in `tmp_path / "decision_log"` by a clock that stands still; all are closed in the end."""
    made: list[DecisionLogWriter] = []

    def one(start: bool = True, **settings: Any) -> DecisionLogWriter:
        config = schema.DecisionLogConfig(folder=str(tmp_path / "decision_log"), **settings)
        decision_log = DecisionLogWriter(config, 7, "run", clock)
        made.append(decision_log)
        if start:
            decision_log.start()
        return decision_log

    yield one
    for decision_log in made:
        if decision_log._thread.is_alive():
            decision_log.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "decision_log"


def entries(folder: Path) -> list[Entry]:
    return list(read([folder]))


def numbers(folder: Path) -> list[int]:
    return [entry.number for entry in entries(folder) if isinstance(entry, LoggedRecord)]


def put(decision_log: DecisionLogWriter, *numbers_: int) -> None:
    """Hands records over and waits until they are with the kernel."""
    before = decision_log.stats.written
    for number in numbers_:
        decision_log.add(a_record(number))
    until(lambda: decision_log.stats.written == before + len(numbers_))


def pass_time(clock: ManualClock, seconds: float, done: Callable[[], bool]) -> None:
    clock.advance(seconds)
    until(done)


def test_a_record_is_in_the_file_before_anything_is_closed(make: Make, folder: Path) -> None:
    decision_log = make()
    put(decision_log, 1, 2)
    (path,) = list_plain(folder)
    assert path.name == "decisions-20231114T221320Z-0001.jsonl"
    assert numbers(folder) == [1, 2]
    stats = decision_log.stats
    assert (stats.written, stats.dropped, stats.files, stats.failures, stats.error, stats.waiting) == (
        2,
        0,
        1,
        0,
        None,
        0,
    )
    assert 0 < stats.bytes < path.stat().st_size  # all but the first line


def test_closing_writes_compresses_and_leaves_no_thread(make: Make, folder: Path) -> None:
    decision_log = make()
    for number in range(500):
        decision_log.add(a_record(number))
    decision_log.close()
    assert numbers(folder) == list(range(500))
    assert [list_plain(folder), len(list_compressed(folder))] == [[], 1]
    assert "warmroute-decision-log" not in {thread.name for thread in threading.enumerate()}
    decision_log.add(a_record(501))
    assert (decision_log.stats.written, decision_log.stats.dropped, decision_log.stats.waiting) == (500, 1, 0)


def test_without_records_there_is_no_file(make: Make, folder: Path) -> None:
    make().close()
    assert list(folder.iterdir()) == []


def test_a_full_queue_drops_the_newest_and_counts(make: Make, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    decision_log = make(start=False, queue=3)
    for number in range(5):
        decision_log.add(a_record(number))
    assert (decision_log.stats.waiting, decision_log.stats.dropped) == (3, 2)
    decision_log.start()
    until(lambda: decision_log.stats.written == 3)
    put(decision_log, 5)
    decision_log.close()
    assert numbers(folder) == [0, 1, 2, 5]
    assert [line for line in caplog.messages if "dropped" in line] == [
        "decision log: 2 records dropped so far because the queue was full (`decision_log.queue`)"
    ]


def test_a_file_that_is_large_enough_is_compressed_and_the_next_stands_alone(make: Make, folder: Path) -> None:
    decision_log = make(rotate_bytes=2000)
    for number in range(6):
        put(decision_log, number)
    decision_log.close()
    files = list_compressed(folder)
    assert len(files) > 1
    assert decision_log.stats.files == len(files)
    assert numbers(folder) == list(range(6))
    for file in files:
        assert isinstance(next(read([file])), LoggedPolicy)


def test_a_file_that_is_old_enough_is_compressed_though_nothing_comes(
    make: Make, folder: Path, clock: ManualClock
) -> None:
    decision_log = make(rotate_s=60.0)
    put(decision_log, 1)
    pass_time(clock, 59.0, lambda: True)
    put(decision_log, 2)
    assert list_compressed(folder) == []
    pass_time(clock, 1.0, lambda: len(list_compressed(folder)) == 1)
    until(lambda: list_plain(folder) == [])
    put(decision_log, 3)
    assert numbers(folder) == [1, 2, 3]
    assert decision_log.stats.files == 2


def test_the_oldest_files_go(make: Make, folder: Path) -> None:
    decision_log = make(rotate_bytes=1, keep_bytes=3000)
    for number in range(20):
        put(decision_log, number)
    decision_log.close()
    kept = numbers(folder)
    assert 0 < len(kept) < 20
    assert kept == list(range(20))[-len(kept) :]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3000


def test_a_policy_stands_before_the_first_record_that_it_decided(make: Make, folder: Path) -> None:
    other = build_policy("other", schema.PolicyConfig.model_validate({"scorers": [{"name": "random"}]}))
    decision_log = make()
    for number, policy in enumerate((None, other, None)):
        decision_log.add(a_record(number) if policy is None else a_record(number, policy=policy))
    decision_log.close()
    kinds = [entry.name if isinstance(entry, LoggedPolicy) else entry.number for entry in entries(folder)]  # type: ignore[union-attr]
    assert kinds == ["default", 0, "other", 1, 2]


def test_a_record_that_cannot_be_written_is_counted_and_the_others_are(
    make: Make, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decision_log = make()
    decision_log.add(a_record(1, status=object()))
    put(decision_log, 2)
    decision_log.close()
    assert numbers(folder) == [2]
    assert (decision_log.stats.written, decision_log.stats.dropped) == (1, 1)
    assert "decision log: record run-1 has no JSON form and is dropped (1 so far)" in caplog.messages


def test_a_folder_that_cannot_be_created_is_logged_once_and_retried(
    make: Make, folder: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder.write_text("a file stands where the folder should")
    decision_log = make()
    until(lambda: decision_log.stats.failures == 1)  # before there is a record
    decision_log.add(a_record(1))
    for failures in (2, 3):
        pass_time(clock, 1.0, lambda wanted=failures: decision_log.stats.failures == wanted)  # type: ignore[misc]
    assert decision_log.stats.error == "File exists"
    assert decision_log.stats.waiting == 1
    folder.unlink()
    pass_time(clock, 1.0, lambda: decision_log.stats.written == 1)
    assert numbers(folder) == [1]
    until(lambda: decision_log.stats.error is None and len(caplog.messages) == 2)
    assert caplog.messages == [
        f"writing the decision log in {folder} fails: [Errno 17] File exists: '{folder}'; retrying every 1 s",
        f"writing the decision log in {folder} works again",
    ]


def test_what_a_lasting_failure_leaves_is_dropped_at_the_end(make: Make, folder: Path) -> None:
    folder.write_text("a file stands where the folder should")
    decision_log = make()
    decision_log.add(a_record(1))
    until(lambda: decision_log.stats.failures == 1)
    decision_log.add(a_record(2))
    decision_log.close()
    assert (decision_log.stats.written, decision_log.stats.dropped, decision_log.stats.waiting) == (0, 2, 0)
    assert not decision_log._thread.is_alive()


def test_a_failure_that_is_over_when_the_router_ends_costs_nothing(make: Make, folder: Path) -> None:
    folder.write_text("a file stands where the folder should")
    decision_log = make()
    decision_log.add(a_record(1))
    until(lambda: decision_log.stats.failures == 1)
    folder.unlink()
    decision_log.close()
    assert numbers(folder) == [1]


def test_a_folder_that_was_moved_away_is_made_again(make: Make, folder: Path, clock: ManualClock) -> None:
    decision_log = make()
    put(decision_log, 1)
    folder.rename(folder.with_name("moved"))
    pass_time(clock, 1.0, lambda: decision_log.stats.failures == 1)
    decision_log.add(a_record(2))
    pass_time(clock, 1.0, lambda: decision_log.stats.written == 2)
    assert numbers(folder) == [2]
    assert numbers(folder.with_name("moved")) == [1]


def test_what_an_earlier_run_left_is_compressed(make: Make, folder: Path) -> None:
    first = make()
    put(first, 1)
    (path,) = list_plain(folder)
    content = path.read_bytes()
    first.close()
    (packed,) = list_compressed(folder)
    packed.unlink()
    path.write_bytes(content + b'{"record": {"id": "tor')  # as a crash leaves it
    make()
    until(lambda: list_compressed(folder) != [] and list_plain(folder) == [])
    record, torn = [entry for entry in entries(folder) if not isinstance(entry, LoggedPolicy)]
    assert isinstance(record, LoggedRecord)
    assert isinstance(torn, UnreadableLine)
    assert torn.torn


def test_the_file_of_another_process_that_runs_is_left_alone(make: Make, folder: Path) -> None:
    theirs = OpenLogFile(folder, WALL_S)
    decision_log = make()
    put(decision_log, 1)
    decision_log.close()
    assert list_plain(folder) == [theirs.path]
    assert numbers(folder) == [1]
    theirs.close()


@pytest.mark.parametrize(("fsync", "syncs"), [("never", 0), ("rotate", 3), ("second", 5)])
def test_forced_to_disk_as_the_configuration_says(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, fsync: str, syncs: int
) -> None:
    """Closing costs one for the plain file and, compressed, one for that and one for the folder."""
    seen: list[int] = []
    force = os.fsync

    def counted(handle: int) -> None:
        force(handle)
        seen.append(handle)

    monkeypatch.setattr(os, "fsync", counted)
    decision_log = make(fsync=fsync)
    put(decision_log, 1)
    for wanted in (1, 2):
        pass_time(clock, 1.0, lambda wanted=wanted: fsync != "second" or len(seen) == wanted)  # type: ignore[misc]
    decision_log.close()
    assert len(seen) == syncs


DISK_FULL = """
import resource, sys, time
from pathlib import Path
from router.clock import SystemClock
from router.config import schema
from router.features.decision_log.writer import DecisionLogWriter
from tests.router.telemetry.records import a_record, until

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # beyond, writes fail: EFBIG
log = DecisionLogWriter(schema.DecisionLogConfig(folder=sys.argv[1], rotate_bytes=10**9), 7, "run", SystemClock())
log.start()
for number in range(100):
    log.add(a_record(number))
until(lambda: log.stats.failures > 0)
assert not list(Path(sys.argv[1]).iterdir())  # or there would be one more at every try
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
until(lambda: log.stats.failures > 1)
assert log.stats.waiting > 0, log.stats
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
until(lambda: log.stats.written == 100)
log.close()
print(log.stats.failures, log.stats.dropped, log.stats.error)
"""


def test_a_full_disk_loses_nothing_that_the_queue_can_hold(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DISK_FULL, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    failures, dropped, error = done.stdout.split()
    assert int(failures) >= 2
    assert (dropped, error) == ("0", "None")
    assert numbers(folder) == list(range(100))
    assert not [entry for entry in entries(folder) if isinstance(entry, UnreadableLine)]


KILLED = """
import sys
from router.clock import SystemClock
from router.config import schema
from router.features.decision_log.writer import DecisionLogWriter
from tests.router.telemetry.records import a_record

log = DecisionLogWriter(schema.DecisionLogConfig(folder=sys.argv[1], rotate_bytes=400_000), 7, "run", SystemClock())
log.start()
number = 0
while True:
    if log.stats.waiting < 1000:
        log.add(a_record(number))
        number += 1
"""


def test_a_process_that_is_killed_leaves_readable_files(make: Make, folder: Path) -> None:
    """Amid writing and compressing: at most the last line of a plain file may be lost, and the next start tidies up."""
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)])
    until(lambda: len(list_compressed(folder)) >= 2 and list_plain(folder) != [])
    time.sleep(0.05)  # somewhere amid a line
    os.kill(child.pid, signal.SIGKILL)
    child.wait()

    kept = numbers(folder)
    assert len(kept) > 100
    assert kept == list(range(len(kept)))
    assert all(entry.torn for entry in entries(folder) if isinstance(entry, UnreadableLine))

    make().close(within_s=20.0)
    assert list_plain(folder) == []
    assert not list(folder.glob("*.tmp"))
    assert numbers(folder) == kept


def test_a_slow_disk_is_not_waited_for(folder: Path) -> None:
    """`close` has its bound: what it cannot write by then is dropped, and said so."""
    decision_log = DecisionLogWriter(schema.DecisionLogConfig(folder=str(folder)), 7, "run", SystemClock())
    for number in range(10_000):
        decision_log.add(a_record(number))
    decision_log.start()
    began = time.monotonic()
    decision_log.close(within_s=0.05)
    assert time.monotonic() - began < PATIENCE_S / 2
    stats = decision_log.stats
    assert stats.written < 10_000
    assert stats.written + stats.dropped == 10_000
    assert numbers(folder) == list(range(stats.written))
