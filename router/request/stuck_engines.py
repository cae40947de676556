"""Moves requests away from engines that are stuck.

Every open attempt of this process is known here. Four times a second each target with open attempts is judged by
what it has delivered (`fleet/progress.py`). The breaker of a stuck target is held open, so new requests avoid it at
once. Its open requests are moved, each as soon as waiting has taken as long as computing its prompt elsewhere would
take, or `MOST_WAIT_S`: the exchange ends, by which the engine drops the request, and the request goes on like one whose
engine has died: before its first byte at another engine (`route.py`), in the middle of a stream by a continuation.
Requests that no other engine can answer wait on.

In a gateway, whose exchanges are not the router's, there are no attempts here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType

from router.clock import Clock
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.progress import OpenWork, Stall
from router.prompt.api.continuable import has_media
from router.proxy.call import ClientRequest
from router.proxy.upstreams import ExchangeHandle
from router.request.data_path import AttemptWatch
from router.request.request import Request
from router.scheduling.scheduler import BYTES_PER_TOKEN
from router.scheduling.ticket import Ticket
from scorers.contract import Speed

log = logging.getLogger("warmroute.request")

CHECK_S = 0.25
MOST_WAIT_S = 4.0
STEP_TOKENS = 16_384  # prompt tokens that an engine computes in one step: vLLM's defaults are 8,192 and less


class OpenAttempt:
    """One open attempt, known to `StuckEngines` while it is entered. `tokens`: of its prompt, an estimate if they were
    not counted; `missing_tokens` of them are not on the target's GPU.
    """

    __slots__ = (
        *("_body", "_counted", "_owner", "_unknown", "_waits"),
        *("call", "handle", "missing_tokens", "model", "stream", "target", "tokens", "watch"),
    )

    def __init__(
        self, owner: StuckEngines, request: Request, ticket: Ticket, watch: AttemptWatch, handle: ExchangeHandle
    ) -> None:
        self._owner = owner
        self._counted = False  # the work of its prefill, which has ended
        self.target = ticket.target
        self.call: ClientRequest = request.call
        self.watch = watch
        self.handle = handle
        self.model = None if request.served is None else request.served.base
        self.stream = request.prompt.stream
        known, overlap = request.known, None if ticket.estimate is None else ticket.estimate.overlap
        self._body = b"" if known is not None and known.complete else request.prompt.body
        self.tokens = len(known.ids) if known is not None and known.complete else len(self._body) // BYTES_PER_TOKEN
        held = overlap.expected_tokens if overlap is not None and overlap.source == "events" else 0
        self.missing_tokens = max(0, self.tokens - held)
        self._waits = ticket.prefill is not None  # for another engine's KV
        self._unknown: bool | None = None  # None: not examined yet

    @property
    def unknown(self) -> bool:
        """Whether nothing is known about the time to its first token: it has images, or waits for another engine."""
        if self._unknown is None:
            self._unknown = self._waits or has_media(self._body)
        return self._unknown

    def prefill_ms(self, speed: Speed) -> float:
        """Return the time of its prefill at the target."""
        return speed.prefill_ms(self.missing_tokens, self.tokens - self.missing_tokens)

    def count_prefill(self) -> None:
        """Count the work of its prefill, once, if that has ended."""
        if self.watch.begun and not self._counted:
            self._counted = True
            self.target.progress.add_prefill(self.missing_tokens, self.tokens - self.missing_tokens)

    def __enter__(self) -> None:
        self._owner.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.remove(self)


class StuckEngines:
    """All open attempts by target. Those of a stuck target are moved."""

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._attempts: dict[Target, dict[OpenAttempt, None]] = {}  # in the order of their beginnings
        self._stuck: set[Target] = set()  # of which the log has a line

    def watch(self, request: Request, ticket: Ticket, watch: AttemptWatch, handle: ExchangeHandle) -> OpenAttempt:
        """Return the attempt, to be entered while it runs; `handle` abandons its exchange."""
        return OpenAttempt(self, request, ticket, watch, handle)

    def add(self, attempt: OpenAttempt) -> None:
        """Know an attempt that begins."""
        if (attempts := self._attempts.get(attempt.target)) is None:
            attempts = self._attempts[attempt.target] = {}
        attempts[attempt] = None

    def remove(self, attempt: OpenAttempt) -> None:
        """Forget an attempt that has ended."""
        attempt.count_prefill()
        attempts = self._attempts[attempt.target]
        attempts.pop(attempt, None)
        if not attempts:
            del self._attempts[attempt.target]
            attempt.target.progress.rest()

    async def run(self) -> None:
        """Check all targets with open attempts, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def check(self) -> None:
        """Judge all targets with open attempts, and give up requests at those that are stuck."""
        now = self._clock.now()
        for target, attempts in list(self._attempts.items()):
            self._check(target, attempts, now)

    def _check(self, target: Target, attempts: dict[OpenAttempt, None], now: float) -> None:
        progress, breaker, model = target.progress, target.breaker, target.latency_model
        speed = model.speed(now)
        for attempt in attempts:
            attempt.count_prefill()
        work = sum_work(attempts, speed, silent=target.instance.failures > 0)
        stall = progress.check(work, target.load_book, speed, model.slowdown, now)
        if stall is None:
            if progress.moves:
                breaker.on_progress(now)
            if target in self._stuck and not breaker.stuck:
                self._stuck.remove(target)
                log.warning("%s is no longer stuck", target.id)
            return
        if target not in self._stuck:
            self._stuck.add(target)
            log.warning("%s is stuck: %s", target.id, stall)
        breaker.on_stuck(now)
        for attempt in list(attempts):
            self._give_up(attempt, stall, speed, now)

    def _give_up(self, attempt: OpenAttempt, stall: Stall, speed: Speed, now: float) -> None:
        """Move one request of a stuck target, if it is time for that and another engine can take it."""
        again_s = speed.prefill_ms(attempt.tokens, 0) / 1e3
        if stall.seconds < min(MOST_WAIT_S, again_s) or not attempt.watch.can_move():
            return
        if self._fleet.has_other(attempt.model, attempt.target, now):
            attempt.handle.abandon()


def sum_work(attempts: Iterable[OpenAttempt], speed: Speed, *, silent: bool) -> OpenWork:
    """Return the work that `attempts`, of one target, wait for. `silent`: the engine does not answer probes."""
    prefills = unknown = streams = 0
    prefill_ms = step_ms = 0.0
    shows = silent
    for attempt in attempts:
        if attempt.watch.begun:
            streams += attempt.stream and not attempt.call.write_paused
        elif attempt.unknown:
            unknown += 1
            shows |= attempt.stream
        else:
            prefills += 1
            own_ms = attempt.prefill_ms(speed)
            prefill_ms += own_ms
            step_ms = max(step_ms, own_ms * min(1.0, 2 * STEP_TOKENS / max(1, attempt.missing_tokens)))
            shows |= attempt.stream
    return OpenWork(prefills, prefill_ms, step_ms, unknown, streams, shows=shows)
