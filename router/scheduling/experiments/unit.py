"""Experiment units: requests that fall on an arm together, and count as one observation.

A unit is a session, a user, a key, a request or a window of time. Its requests depend on each other; the
assignment, on which all inference rests, was drawn once for all of them. A request counts according to its outcome:

    failed      infinitely slow: no answer, a broken one, status >= 500, or 429; else a failing arm would look fast
    4xx         does not count: this is the client's own fault, which is equally likely on any arm
    client left at least as slow as the client waited: slower than x after a wait above x, else does not count
    hanging     still running when its unit is closed: infinitely slow, in time to the first byte or in duration
    other       counts with its measured times

Times are stored as plain numbers: a unit takes about 800 bytes plus 24 bytes per request, and retains no finished
record.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import inf

from router.scheduling.policy.record import Record

AT_ONCE = 1e-9  # ms; the wait of a client that left at once, since negative zero is not negative


def has_failed(record: Record) -> bool:
    """Return whether a request that has ended failed."""
    if _end(record) == "broken" or record.uncontinued is not None:
        return True
    if record.status is None:
        return not client_left(record)
    return record.status >= 500 or record.status == 429


def client_left(record: Record) -> bool:
    """Return whether the client left."""
    return _end(record) == "client_gone"


def is_counted(record: Record) -> bool:
    """Return whether the request counts: a client's mistake does not, since it is no evidence about the arm."""
    if record.status is None or has_failed(record):
        return True
    return record.status < 400 and _end(record) != "rejected"


def first_byte_ms(record: Record) -> float:
    """Return the wait of a counted request in ms: infinite if it failed, negative if the client left after that
    time.
    """
    if has_failed(record):
        return inf
    if record.ttft_ms is not None:
        return record.ttft_ms
    return -max(duration_ms(record), AT_ONCE)


def last_byte_ms(record: Record) -> float:
    """Return the duration of a counted request in ms, with the same special values as `first_byte_ms`."""
    if has_failed(record):
        return inf
    return -max(duration_ms(record), AT_ONCE) if client_left(record) else duration_ms(record)


def duration_ms(record: Record) -> float:
    """Return the duration of a closed record. Raises ValueError if the record is still open."""
    if record.duration_ms is None:
        raise ValueError(
            f"record {record.id} has no duration: close the record before ending its request in the experiment"
        )
    return record.duration_ms


def mean_relative_length(lengths: Iterable[float], median: float) -> float | None:
    """Return the mean of L / (L + `median`) over lengths L in tokens, between 0 and 1: 0.5 if all lengths equal the
    median. None without lengths.
    """
    relative = [length / (length + median) for length in lengths]
    return sum(relative) / len(relative) if relative else None


def slow_share(waits_ms: Iterable[float], limit_ms: float) -> float | None:
    """Return the share of requests that waited longer than `limit_ms`; None if no request shows whether it did."""
    slow = fast = 0
    for wait_ms in waits_ms:
        if wait_ms > limit_ms or -wait_ms > limit_ms or wait_ms == inf:
            slow += 1
        elif wait_ms >= 0:
            fast += 1
    return slow / (slow + fast) if slow + fast else None


class ExperimentUnit:
    """The requests of one unit so far, all on one arm (given by its number)."""

    __slots__ = (
        *("_answered", "_cached", "_failed", "_prompt", "arm", "began_s", "first_bytes", "last_bytes"),
        *("output_tokens", "running"),
    )

    def __init__(self, arm: int, began_s: float) -> None:
        self.arm = arm
        self.began_s = began_s
        self.running: dict[int, Record] = {}  # by record number
        self.first_bytes = array("d")  # ms, see `first_byte_ms`
        self.last_bytes = array("d")
        self.output_tokens = array("d")  # of whole answers
        self._answered = 0
        self._failed = 0
        self._prompt = 0
        self._cached = 0

    def end_request(self, record: Record) -> None:
        """Add the outcome of a running request."""
        del self.running[record.number]
        if not is_counted(record):
            return
        self.first_bytes.append(first_byte_ms(record))
        self.last_bytes.append(last_byte_ms(record))
        if record.status is not None or has_failed(record):
            self._answered += 1
            self._failed += has_failed(record)
        if record.output_tokens and not has_failed(record):
            self.output_tokens.append(record.output_tokens)
        if record.prompt_tokens and record.cached_tokens is not None:
            self._prompt += record.prompt_tokens
            self._cached += min(record.cached_tokens, record.prompt_tokens)

    def is_hanging(self, now_s: float, first_byte_s: float, last_byte_s: float) -> bool:
        """Return whether all running requests have waited longer than these times: for the first byte, or for the
        last byte if the first has arrived.
        """
        return all(
            now_s - record.arrived_s > (first_byte_s if record.ttft_ms is None else last_byte_s)
            for record in self.running.values()
        )

    def close(self) -> None:
        """Count the running requests as infinitely slow."""
        for record in self.running.values():
            self.first_bytes.append(inf if record.ttft_ms is None else record.ttft_ms)
            self.last_bytes.append(inf)
        self.running.clear()

    @property
    def hit_share(self) -> float | None:
        """Reported cached tokens per prompt token; None if no answer reported both."""
        return self._cached / self._prompt if self._prompt else None

    @property
    def error_rate(self) -> float | None:
        """Share of failed requests among those that were answered or failed; None if there are none."""
        return self._failed / self._answered if self._answered else None


def _end(record: Record) -> str | None:
    return record.attempts[-1].end if record.attempts else None
