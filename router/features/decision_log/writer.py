"""The decision log writer. Its own thread writes every decision as JSON lines in files.

    add() -> a bounded queue -> the thread: encode, write, rotate -> compress, delete the oldest

The event loop only appends to the queue; when the queue is full, the newest record is dropped and counted. The
thread works in slices of a fifth of a millisecond with rests between them, so another thread that needs the
interpreter waits no longer than a slice and a record. If the disk is full or the folder gone, the failure is logged
once per change, counted and retried, and records taken from the queue go back into it: requests are not affected.
`codec.py` encodes records, `files.py` creates and locks files, `compression.py` compresses them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from math import inf
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, final

from router.clock import Clock
from router.config import schema
from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.compression import FileCompressor
from router.features.decision_log.files import OpenLogFile, create_folder, list_plain
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.request.request import Held, Request
from router.request.services import Services
from router.scheduling.policy.record import Record

log = logging.getLogger("warmroute.decision_log")

BLOCK_TOKENS = 512  # as in the Mooncake traces
SLICE_S = 0.0002  # of encoding before a rest
REST_S = 0.0003  # long enough for a waiting thread to wake up on a busy machine
IDLE_S = 0.05
WRITE_RETRY_S, COMPRESS_RETRY_S = 1.0, 60.0  # after a failure
CHECK_S = 1.0  # how often the open file is checked, and fsynced if configured


class DecisionLogStats(NamedTuple):
    """Counts since the start."""

    written: int  # records
    dropped: int  # records: the queue was full, or they have no JSON form
    bytes: int  # before compression
    files: int
    failures: int  # of the disk; each try counts
    error: str | None  # the current failure
    waiting: int  # records in the queue


class LoggedRequest(Held):
    """A request whose record is logged, with the block keys of its prompt; `tokens` is None if they are unknown."""

    def __init__(self, log: DecisionLogWriter, tokens: TokenizedPrompt | None) -> None:
        self._log = log
        self._tokens = tokens

    def on_record(self, record: Record) -> None:
        if self._tokens is not None:
            record.blocks = self._tokens.keys_every(BLOCK_TOKENS)

    def release(self, request: Request) -> None:
        if request.record is not None:
            self._log.add(request.record)


@final
class DecisionLogWriter:
    """Writes the decision log. `run` is the prefix of this process's record ids; `salt` keys the digests of
    names.
    """

    def __init__(self, config: schema.DecisionLogConfig, salt: int, run: str, clock: Clock) -> None:
        folder = Path(config.folder)
        self._config, self._folder, self._run_id, self._clock = config, folder, run, clock
        self._encoder = RecordEncoder(salt)
        self._queue: deque[Record] = deque()
        self._queue_limit = config.queue
        self._overflowed = 0  # set by the event loop; the fields below are set by the thread
        self._written = self._unencodable = self._bytes = self._files = 0
        self._file: OpenLogFile | None = None
        self._records = 0  # in that file
        self._has_folder = False  # it was seen to take files
        self._opened_at = self._checked_at = 0.0
        self._drops_logged = 0
        self._compressor = FileCompressor(folder, config.keep_bytes, sync=config.fsync != "never")
        self._writing = RetriedWork(f"writing the decision log in {folder}", self._write, WRITE_RETRY_S)
        self._compressing = RetriedWork(
            f"compressing the decision log in {folder}", self._compressor.step, COMPRESS_RETRY_S
        )
        self._closing = Event()
        self._close_by = inf
        self._thread = Thread(target=self._run, name="warmroute-decision-log", daemon=True)

    # called on the event loop

    def start(self) -> None:
        """Start the thread, once. A folder that takes no files is logged and retried, at the start as later."""
        self._thread.start()

    def enter(self, request: Request, services: Services) -> None:
        """Have the record of a request logged, as a stage."""
        request.hold(LoggedRequest(self, request.known))

    def add(self, record: Record) -> None:
        """Queue the record of a request that has ended. The record must not change any more."""
        if len(self._queue) < self._queue_limit:
            self._queue.append(record)
        else:
            self._overflowed += 1

    def close(self, within_s: float = 5.0) -> None:
        """Write the queued records, compress, and end the thread; blocks, but hardly longer than `within_s`. Files
        not compressed by then are compressed at the next start; records not written are dropped.
        """
        self._queue_limit = 0
        self._close_by = self._clock.now() + within_s
        self._closing.set()
        self._thread.join(within_s + 1.0)
        if self._thread.is_alive():
            log.error("decision log %s: the writer does not stop, its disk does not answer", self._folder)

    @property
    def stats(self) -> DecisionLogStats:
        return DecisionLogStats(
            self._written,
            self._overflowed + self._unencodable,
            self._bytes,
            self._files,
            self._writing.failures + self._compressing.failures,
            self._writing.trouble or self._compressing.trouble,
            len(self._queue),
        )

    # run by the thread

    def _run(self) -> None:
        for leftover in list_plain(self._folder):
            self._compressor.add(leftover)
        while not self._closing.wait(self._work()):
            pass
        self._writing.retry_now()
        self._compressing.retry_now()
        while (self._queue or self._file) and self._continues(self._writing):
            self._writing.run(self._clock.now())
        while self._compressor.busy and self._continues(self._compressing):
            self._compressing.run(self._clock.now())
        self._compressor.stop()
        self._overflowed += len(self._queue)
        self._queue.clear()
        if self._file is not None:
            self._file.close()

    def _continues(self, work: RetriedWork) -> bool:
        return work.trouble is None and self._clock.now() < self._close_by

    def _work(self) -> float:
        """Do a slice of the work; return how long to rest, in seconds."""
        now = self._clock.now()
        self._writing.run(now)
        self._compressing.run(now)
        self._log_drops()
        writes = bool(self._queue) and self._writing.trouble is None
        return REST_S if writes or (self._compressor.busy and self._compressing.trouble is None) else IDLE_S

    def _write(self) -> bool:
        """Write a slice of the queue; return whether the disk was seen to work."""
        now = self._clock.now()
        if not self._has_folder:  # at the start, not with the first request: whoever starts the router reads its log
            create_folder(self._folder)
            self._has_folder = True
            return True
        try:
            written = self._append(now) if self._queue else 0
            if self._file is not None and (now - self._checked_at >= CHECK_S or self._is_full(self._file, now)):
                self._check(self._file, now)
        except OSError:
            self._drop_file()
            raise
        return written > 0

    def _append(self, now: float) -> int:
        taken: list[Record] = []
        lines: list[bytes] = []
        try:
            file = self._file or self._open(now)
            while self._queue and self._clock.now() - now < SLICE_S:
                record = self._queue.popleft()
                if (line := self._encode(record)) is not None:
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

    def _encode(self, record: Record) -> bytes | None:
        try:
            return self._encoder.encode_record(record)
        except Exception:  # values may come from a plug-in; one without a JSON form must not stop the rest
            self._unencodable += 1
            if self._unencodable & (self._unencodable - 1) == 0:
                log.exception(
                    "decision log: record %s has no JSON form and is dropped (%d so far)", record.id, self._unencodable
                )
            return None

    def _open(self, now: float) -> OpenLogFile:
        at_wall_s = self._clock.wall()
        self._file = file = OpenLogFile(self._folder, at_wall_s, self._files + 1)  # increasing: names must sort by time
        self._records, self._opened_at, self._checked_at = 0, now, now
        file.write(self._encoder.start_file(self._run_id, version("warmroute"), at_wall_s))
        self._files += 1
        return file

    def _is_full(self, file: OpenLogFile, now: float) -> bool:
        due = file.bytes >= self._config.rotate_bytes or now - self._opened_at >= self._config.rotate_s
        return due or (self._closing.is_set() and not self._queue)

    def _check(self, file: OpenLogFile, now: float) -> None:
        """Fsync or close the file if that is due. Raises OSError if the file was removed or replaced."""
        self._checked_at = now
        file.check()
        full = self._is_full(file, now)
        if self._config.fsync == "second" or (full and self._config.fsync == "rotate"):
            file.sync()
        if full:
            self._file = None
            file.close()
            self._compressor.add(file.path)

    def _drop_file(self) -> None:
        """Give up a file that fails. The next attempt uses a new file; a file without a record is removed."""
        file, self._file = self._file, None
        if file is None:
            return
        if self._records:
            file.close()
            self._compressor.add(file.path)
        else:
            file.discard()

    def _log_drops(self) -> None:
        """Log the number of dropped records at the first one, and whenever it has doubled."""
        if self._overflowed >= max(1, 2 * self._drops_logged):
            self._drops_logged = self._overflowed
            log.error(
                "decision log: %d records dropped so far because the queue was full (`decision_log.queue`)",
                self._overflowed,
            )


class RetriedWork:
    """Disk work that is retried `retry_s` after a failure. Failures are logged once per change.

    `work` does a step, and returns whether the step proves that the disk works.
    """

    def __init__(self, what: str, work: Callable[[], bool], retry_s: float) -> None:
        self.failures = 0
        self.trouble: str | None = None
        self._what, self._work, self._retry_s = what, work, retry_s
        self._not_before = -inf

    def retry_now(self) -> None:
        """Retry failed work at the next `run`, without a pause."""
        self.trouble = None
        self._not_before = -inf

    def run(self, now: float) -> None:
        if now < self._not_before:
            return
        try:
            succeeded = self._work()
        except OSError as error:
            self.failures += 1
            self._not_before = now + self._retry_s
            trouble = error.strerror or str(error)  # without the file name, which is new at every try
            if trouble != self.trouble:
                log.error("%s fails: %s; retrying every %g s", self._what, error, self._retry_s)
            self.trouble = trouble
        else:
            if succeeded and self.trouble is not None:
                self.trouble = None
                log.warning("%s works again", self._what)
