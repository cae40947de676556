"""Matches entries of a gateway's access log with the answers that the gateway relays without the picker (the thin
profile).

Envoy sends a log entry when an exchange has ended, in batches, on one stream for each of its workers. An entry is
matched with its answer by the key that the choice carried in its metadata. An answer whose entry does not arrive is
given up when its gateway has had no log stream for a while (the stream ended, or the gateway sends no logs), and
after a time limit in any case.

A gateway's log streams may end at other pickers than its requests: other processes, and other hosts. An entry is
then forwarded to the picker where its answer is open, and each picker keeps track of the gateways that have log
streams at any picker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from router.prompt.usage import Usage

UNFOLLOWED_S = 30.0  # without a log stream of the gateway
LONGEST_S = 6 * 3600.0


class LoggedEnd(NamedTuple):
    """An answer's end. `details` are Envoy's response code details; `served` and `usage`: None if unknown."""

    status: int
    details: str
    served: str | None
    usage: Usage | None


class OpenAnswer:
    """An answer that a gateway relays: `end` is set when its log entry has arrived. Used with `with`."""

    __slots__ = ("_log", "end", "gateway", "key", "left_s")

    def __init__(self, log: AnswerLog, key: str, gateway: str) -> None:
        self._log = log
        self.key = key
        self.gateway = gateway
        self.end: asyncio.Future[LoggedEnd | None] = asyncio.get_running_loop().create_future()
        self.left_s: float | None = None  # since when only the log can report the end

    def __enter__(self) -> OpenAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close(self.key)

    async def wait(self) -> LoggedEnd | None:
        """Return how the answer ended; None when the end will not be reported any more."""
        self.left_s = self._log.now()
        return await self.end


class OtherPickers(Protocol):
    """The other pickers to which a gateway may send its log, and its requests."""

    def pass_on(self, key: str, end: LoggedEnd) -> None:
        """Forward an answer's end to the picker that has the answer open, if there is one."""

    def on_follow(self) -> None:
        """Note that the set of gateways with log streams here has changed; see `AnswerLog.gateways`."""

    def on_open(self) -> None:
        """Note that the first answer has been opened here, or the last one closed; see `len` of an `AnswerLog`."""

    def wait_here(self) -> bool:
        """Return whether answers are open at pickers that stop together with this one: its host's other workers."""


class AnswerLog:
    """The open answers. `now` is a monotonic clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.others: OtherPickers | None = None  # None: there are none
        self._open: dict[str, OpenAnswer] = {}
        self._streams: Counter[str] = Counter()  # by gateway
        self._elsewhere: dict[str, frozenset[str]] = {}  # gateways with log streams at other pickers, by their run
        self._lost_s: dict[str, float] = {}  # when a gateway's last stream ended

    def __len__(self) -> int:
        return len(self._open)

    @property
    def gateways(self) -> list[str]:
        """The gateways that have log streams here."""
        return list(self._streams)

    def follows(self, gateway: str) -> bool:
        """Return whether this gateway currently sends logs, here or to another picker."""
        return gateway in self._followed()

    def _followed(self) -> set[str]:
        return set(self._streams).union(*self._elsewhere.values())

    @property
    def is_needed(self) -> bool:
        """True if log streams here may carry entries of answers open at a picker that stops together with this
        one.
        """
        return bool(self._streams) and self.others is not None and self.others.wait_here()

    def open(self, key: str, gateway: str) -> OpenAnswer:
        """Open an answer, for which log entries are accepted from now on, and return it."""
        self._open[key] = answer = OpenAnswer(self, key, gateway)
        if len(self._open) == 1 and self.others is not None:
            self.others.on_open()
        return answer

    def close(self, key: str) -> None:
        del self._open[key]
        if not self._open and self.others is not None:
            self.others.on_open()

    def on_stream_begin(self, gateway: str) -> None:
        self._streams[gateway] += 1
        if self._streams[gateway] == 1 and self.others is not None:
            self.others.on_follow()

    def on_stream_end(self, gateway: str) -> None:
        self._streams[gateway] -= 1
        if not self._streams[gateway]:
            del self._streams[gateway]
            self._note_lost([gateway])
            if self.others is not None:
                self.others.on_follow()

    def follow_elsewhere(self, run: str, gateways: Iterable[str]) -> None:
        """Note which gateways have log streams at another picker; no gateways when that picker has ended."""
        before = self._elsewhere.pop(run, frozenset())
        if now := frozenset(gateways):
            self._elsewhere[run] = now
        self._note_lost(before - now)

    def _note_lost(self, gateways: Iterable[str]) -> None:
        """Note that streams of these gateways have ended, possibly their last ones."""
        for gateway in set(gateways) - self._followed():
            self._lost_s[gateway] = self.now()

    def take(self, key: str, end: LoggedEnd) -> None:
        """Take an answer's end from a log stream; the answer may be open at another picker."""
        if not self.join(key, end) and self.others is not None:
            self.others.pass_on(key, end)

    def join(self, key: str, end: LoggedEnd) -> bool:
        """Set the end of an answer. Return whether the answer is open here."""
        answer = self._open.get(key)
        if answer is not None and not answer.end.done():
            answer.end.set_result(end)
        return answer is not None

    def expire(self) -> None:
        """Give up the answers whose entries no longer arrive; call this every second or so."""
        now, followed = self.now(), self._followed()
        for answer in self._open.values():
            if (followed_s := answer.left_s) is None or answer.end.done():
                continue
            longest_s = now - followed_s
            if (lost_s := self._lost_s.get(answer.gateway)) is not None:
                followed_s = max(followed_s, lost_s)
            lost = answer.gateway not in followed and now - followed_s > UNFOLLOWED_S
            if lost or longest_s > LONGEST_S:
                answer.end.set_result(None)
        for gateway in [name for name, lost_s in self._lost_s.items() if now - lost_s > 2 * UNFOLLOWED_S]:
            del self._lost_s[gateway]
