"""The ledger: every decision as JSON lines in files, written by a thread of its own, off every request's path.

    add() -> a bounded queue -> the thread: encode, write, rotate -> compress, delete the oldest

The event loop only appends to the queue; when that is full, the newest record is dropped and counted. The thread works
in slices of a fifth of a millisecond with rests between them: whoever waits for the interpreter meanwhile waits no
longer than a slice and a record. Where the disk is full or the folder gone, that is logged once per change, counted
and tried again, and what was taken from the queue goes back into it: requests never notice. `codec.py` makes lines of
records, `files.py` knows what a file is, `packing.py` what becomes of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from math import inf
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from router.clock import Clock
from router.config import schema
from router.scheduling.policy.record import Record
from router.telemetry.decision_log.codec import RecordEncoder
from router.telemetry.decision_log.compression import FileCompressor
from router.telemetry.decision_log.files import OpenLogFile, list_plain

log = logging.getLogger("warmroute.ledger")

SLICE_S = 0.0002  # of encoding, then others have their turn
REST_S = 0.0003  # long enough for a waiting thread to wake up on a busy machine
IDLE_S = 0.05
WRITE_AGAIN_S, PACK_AGAIN_S = 1.0, 60.0  # after a failure
TEND_S = 1.0  # how often the open file is looked at, and forced to disk where that is wanted


class WriterStats(NamedTuple):
    """Since the start."""

    written: int  # records
    dropped: int  # records, for want of room or of a JSON form
    bytes: int  # before compression
    files: int
    failures: int  # of the disk, each try counting
    error: str | None  # what fails now; None: nothing
    waiting: int  # records in the queue


class DecisionLogWriter:
    """`run` begins the ids of this process's records; digests of names hang on `salt`."""

    def __init__(self, config: schema.DecisionLogConfig, salt: int, run: str, clock: Clock) -> None:
        folder = Path(config.folder)
        self._config, self._folder, self._run, self._clock = config, folder, run, clock
        self._encoder = RecordEncoder(salt)
        self._queue: deque[Record] = deque()
        self._room = config.queue
        self._overflowed = 0  # the event loop's; all that follow are the thread's
        self._written = self._unencodable = self._bytes = self._files = 0
        self._file: OpenLogFile | None = None
        self._records = 0  # in that file
        self._opened_at = self._tended_at = 0.0
        self._drops_told = 0
        self._packer = FileCompressor(folder, config.keep_bytes, sync=config.fsync != "never")
        self._writing = RetriedWork(f"writing the decision log in {folder}", self._write, WRITE_AGAIN_S)
        self._packing = RetriedWork(f"compressing the decision log in {folder}", self._packer.step, PACK_AGAIN_S)
        self._closing = Event()
        self._close_by = inf
        self._thread = Thread(target=self._work, name="warmroute-ledger", daemon=True)

    # the event loop's

    def start(self) -> None:
        """Once. A folder that cannot be had is not an error here: it is logged and tried again, as at any time."""
        self._thread.start()

    def add(self, record: Record) -> None:
        """Of a request that is over: it must not change any more."""
        if len(self._queue) < self._room:
            self._queue.append(record)
        else:
            self._overflowed += 1

    def close(self, within_s: float = 5.0) -> None:
        """Writes what waits, compresses, and ends the thread. Blocks until then, but hardly longer than `within_s`:
        what is not compressed then is so at the next start, what is not written is dropped.
        """
        self._room = 0
        self._close_by = self._clock.now() + within_s
        self._closing.set()
        self._thread.join(within_s + 1.0)
        if self._thread.is_alive():
            log.error("the decision log in %s does not end: its disk does not answer", self._folder)

    @property
    def stats(self) -> WriterStats:
        return WriterStats(
            self._written,
            self._overflowed + self._unencodable,
            self._bytes,
            self._files,
            self._writing.failures + self._packing.failures,
            self._writing.trouble or self._packing.trouble,
            len(self._queue),
        )

    # the thread's

    def _work(self) -> None:
        for left_over in list_plain(self._folder):
            self._packer.add(left_over)
        while not self._closing.wait(self._turn()):
            pass
        self._writing.hurry()
        self._packing.hurry()
        while (self._queue or self._file) and self._goes_on(self._writing):
            self._writing.go(self._clock.now())
        while self._packer.busy and self._goes_on(self._packing):
            self._packing.go(self._clock.now())
        self._packer.stop()
        self._overflowed += len(self._queue)
        self._queue.clear()
        if self._file is not None:
            self._file.close()

    def _goes_on(self, work: RetriedWork) -> bool:
        return work.trouble is None and self._clock.now() < self._close_by

    def _turn(self) -> float:
        """A slice of what there is to do. How long to rest then, in seconds."""
        now = self._clock.now()
        self._writing.go(now)
        self._packing.go(now)
        self._tell_drops()
        writes = bool(self._queue) and self._writing.trouble is None
        return REST_S if writes or (self._packer.busy and self._packing.trouble is None) else IDLE_S

    def _write(self) -> bool:
        """A slice of the queue goes into the file. True: some of it is there."""
        now = self._clock.now()
        try:
            written = self._append(now) if self._queue else 0
            if self._file is not None and (now - self._tended_at >= TEND_S or self._full(self._file, now)):
                self._tend(self._file, now)
        except OSError:
            self._abandon()
            raise
        return written > 0

    def _append(self, now: float) -> int:
        taken: list[Record] = []
        lines: list[bytes] = []
        try:
            file = self._file or self._open(now)
            while self._queue and self._clock.now() - now < SLICE_S:
                record = self._queue.popleft()
                if (line := self._encoded(record)) is not None:
                    taken.append(record)
                    lines.append(line)
            file.write(b"".join(lines))
        except OSError:
            self._queue.extendleft(reversed(taken))
            raise
        self._records += len(taken)
        self._written += len(taken)
        self._bytes += sum(map(len, lines))
        return len(taken)

    def _encoded(self, record: Record) -> bytes | None:
        try:
            return self._encoder.lines(record)
        except Exception:  # what a record holds may come from a plug-in; one without a JSON form must not end the rest
            self._unencodable += 1
            if self._unencodable & (self._unencodable - 1) == 0:
                log.exception("record %s cannot be written (%d such so far)", record.id, self._unencodable)
            return None

    def _open(self, now: float) -> OpenLogFile:
        at_wall_s = self._clock.wall()
        self._file = file = OpenLogFile(self._folder, at_wall_s, self._files + 1)  # rising: names must sort by time
        self._records, self._opened_at, self._tended_at = 0, now, now
        file.write(self._encoder.opening(self._run, version("warmroute"), at_wall_s))
        self._files += 1
        return file

    def _full(self, file: OpenLogFile, now: float) -> bool:
        due = file.bytes >= self._config.rotate_bytes or now - self._opened_at >= self._config.rotate_s
        return due or (self._closing.is_set() and not self._queue)

    def _tend(self, file: OpenLogFile, now: float) -> None:
        """Is it still ours? Then what is due: to disk, or to the packer."""
        self._tended_at = now
        file.check()
        full = self._full(file, now)
        if self._config.fsync == "second" or (full and self._config.fsync == "rotate"):
            file.sync()
        if full:
            self._file = None
            file.close()
            self._packer.add(file.path)

    def _abandon(self) -> None:
        """The file fails. The next try gets a new one; one without a record must not be left at every try."""
        file, self._file = self._file, None
        if file is None:
            return
        if self._records:
            file.close()
            self._packer.add(file.path)
        else:
            file.discard()

    def _tell_drops(self) -> None:
        """At the 1st, and whenever there are twice as many."""
        if self._overflowed >= max(1, 2 * self._drops_told):
            self._drops_told = self._overflowed
            log.error("the decision log falls behind: %d records dropped so far, its queue was full", self._overflowed)


class RetriedWork:
    """Work with the disk that is tried again some time after it failed. Its trouble is logged once per change.

    `work` does a little, and says whether that proves that all is well.
    """

    def __init__(self, what: str, work: Callable[[], bool], again_s: float) -> None:
        self.failures = 0
        self.trouble: str | None = None
        self._what, self._work, self._again_s = what, work, again_s
        self._not_before = -inf

    def hurry(self) -> None:
        """What failed before is tried once more, now."""
        self.trouble = None
        self._not_before = -inf

    def go(self, now: float) -> None:
        if now < self._not_before:
            return
        try:
            proved = self._work()
        except OSError as error:
            self.failures += 1
            self._not_before = now + self._again_s
            trouble = error.strerror or str(error)  # without the file: that is a new one at every try
            if trouble != self.trouble:
                log.error("%s fails: %s; trying again every %g s", self._what, error, self._again_s)
            self.trouble = trouble
        else:
            if proved and self.trouble is not None:
                self.trouble = None
                log.warning("%s works again", self._what)
