"""Requests that wait for a model which no instance serves now.

    no instance is ready     -> wait, in order of arrival; `ask` to have one started, again while requests wait
    one has become ready     -> requests continue in that order, a few at a time
    `wake.wait_s` has passed -> 503; also at once if there is no room to wait

The fleet reports an instance that becomes ready, so nothing is polled until then. Waiting requests are not released
all together: requests released while one instance is ready all go to this instance, and instances that come a
second later would find none left. So requests are released only while fewer than `AHEAD` per target have no first
byte, which keeps an engine busy. Newer requests queue behind those that still wait.

A waiting request has its slot and its body counted in `limits` like any other. Its room for waiting is released
once, whatever ends the wait; a client that leaves cancels the wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import translate
from math import ceil
from typing import Literal, final

from router.clock import Clock
from router.config.sections.autoscaling import WakeConfig
from router.errors import NoTarget, NotFound, quote_name
from router.fleet.fleet import Fleet
from router.request.request import Request
from router.request.services import Services
from router.tenants.fair_share import FairShare, Shortage

ASK_AGAIN_S = 1.0  # `ask` is called so often; `wake.pause_s` limits the calls that result
AHEAD = 64  # requests without a first byte, per target, beyond which the others keep waiting
RELEASED_AT_ONCE = 32  # per turn of the event loop: each takes some hundred microseconds to place
RELEASE_PAUSE_S = 0.02

WakeEnd = Literal["passed", "timed_out", "no_room", "client_gone"]
OnWakeEnd = Callable[[str, WakeEnd, float], None]
"""Called after every wait: pattern of the model, how it ended, seconds."""


class WakePatterns:
    """The patterns of `wake.models`, in their order."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [(pattern, re.compile(translate(pattern))) for pattern in patterns]

    def find(self, model: str) -> str | None:
        """Return the first pattern that a model's name matches; None if requests for the model do not wait."""
        return next((pattern for pattern, compiled in self._patterns if compiled.match(model)), None)


class _Queue:
    """The requests that wait for one model, each with its arrival here, oldest first."""

    __slots__ = ("call_failed", "pattern", "waiting")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.waiting: dict[asyncio.Future[bool], float] = {}
        self.call_failed = False  # whether the last call to start an instance failed


@final
class ModelWaits:
    """All waiting requests of this process. `bases` has the base model of each adapter that can be loaded: an
    instance must serve the base. `ask(model, waiting)` requests the start of an instance.
    """

    def __init__(
        self,
        config: WakeConfig,
        fleet: Fleet,
        bases: Mapping[str, str],
        clock: Clock,
        ask: Callable[[str, int], None],
        on_wait_end: OnWakeEnd,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._bases = bases
        self._clock = clock
        self._ask = ask
        self._on_wait_end = on_wait_end
        self._patterns = WakePatterns(config.models)
        self._requests = FairShare(config.requests)
        self._bodies = FairShare(config.body_bytes)
        self._queues: dict[str, _Queue] = {}  # by model; only queues with waiting requests
        self._timer: asyncio.TimerHandle | None = None
        self._requested_s: float | None = None
        self._woken = False  # whether a turn of the event loop is scheduled to release some
        fleet.on_change.append(self._on_fleet_change)

    def enter(self, request: Request, services: Services) -> Awaitable[None] | None:
        """Wait, as a stage, until an instance serves the model of a request. Raises `NoTarget` when none comes, and
        `NotFound` for a name that no instance can get.
        """
        model = request.prompt.model
        if model is None:
            return None
        needed = self._bases.get(model, model)
        if self.has_to_wait(needed):
            return self._wait_for_request(request, needed)
        if len(self._fleet) == 0:  # with `wake`, an empty fleet is no reason to retry
            raise NotFound(f"the model `{quote_name(model)}` does not exist", param="model", code="model_not_found")
        return None

    async def _wait_for_request(self, request: Request, model: str) -> None:
        request.durations.wake_ms = await self.wait(model, request.call.sender, request.slot.held_bytes) * 1e3

    def has_to_wait(self, model: str) -> bool:
        """Return whether a request for the model must wait: no instance that serves it is ready, or earlier
        requests still wait. False if requests for the model may not wait.
        """
        if model in self._queues:
            return True
        return not self._fleet.can_answer(model) and self._patterns.find(model) is not None

    def waiting(self) -> Mapping[str, int]:
        """Return how many requests wait, by pattern."""
        found = dict.fromkeys(self._config.models, 0)
        for queue in self._queues.values():
            found[queue.pattern] += len(queue.waiting)
        return found

    async def wait(self, model: str, sender: str, body_bytes: int) -> float:
        """Wait until an instance with the model is ready, and return the seconds waited. Call it only if
        `has_to_wait`. Raises `NoTarget` when none comes within `wake.wait_s`, and at once if there is no room.
        """
        pattern = self._patterns.find(model) or ""
        began_s = self._clock.now()
        end: WakeEnd = "client_gone"
        try:
            self._take(model, sender, body_bytes)
        except NoTarget:
            self._on_wait_end(pattern, "no_room", 0.0)
            raise
        queue = self._queues.setdefault(model, _Queue(pattern))
        future = asyncio.get_running_loop().create_future()
        queue.waiting[future] = began_s
        if len(queue.waiting) == 1:
            self._ask(model, 1)
        self._arm()
        try:
            end = "passed" if await future else "timed_out"
        finally:
            self._requests.give_back(sender, 1)
            if body_bytes:
                self._bodies.give_back(sender, body_bytes)
            self._remove(model, queue, future)
            waited_s = self._clock.now() - began_s
            self._on_wait_end(pattern, end, waited_s)
        if end == "timed_out":
            raise self._refuse_late(model, failed=queue.call_failed)
        return waited_s

    def on_call_end(self, model: str, failed: bool) -> None:
        """Record whether the call to start an instance failed."""
        if (queue := self._queues.get(model)) is not None:
            queue.call_failed = failed

    def tick(self) -> None:
        """Release the requests that an instance can serve, refuse those that waited too long, and call `ask` again.
        The timer calls this method.
        """
        self._disarm()
        now = self._clock.now()
        due = self._requested_s is None or now - self._requested_s >= ASK_AGAIN_S
        for model, queue in list(self._queues.items()):
            if self._fleet.can_answer(model):
                self._release(model, queue)
                continue
            for future, began_s in list(queue.waiting.items()):
                if now - began_s < self._config.wait_s:
                    break
                self._remove(model, queue, future)
                _set(future, False)
            if queue.waiting and due:
                self._ask(model, len(queue.waiting))
        if due:
            self._requested_s = now
        self._arm()

    def _take(self, model: str, sender: str, body_bytes: int) -> None:
        """Take waiting room for one request. Raises `NoTarget` if there is none."""
        shortage, room, unit = self._requests.take(sender, 1), self._requests, "requests"
        if shortage is None and body_bytes:
            shortage, room, unit = self._bodies.take(sender, body_bytes), self._bodies, "body_bytes"
            if shortage is not None:
                self._requests.give_back(sender, 1)
        if shortage is None:
            return
        whose = "all" if shortage is Shortage.TOTAL else "your share"
        raise NoTarget(
            f"no instance with the model `{quote_name(model)}` is ready, and the room in which requests wait for one "
            f"is taken: {whose} of {room.capacity} (`wake.{unit}`)",
            param="model",
            code="wake_full",
            retry_after_s=ceil(self._config.pause_s),
        )

    def _refuse_late(self, model: str, *, failed: bool) -> NoTarget:
        why = "the last call that was to start one failed" if failed else "one was asked for and has not come"
        return NoTarget(
            f"no instance with the model `{quote_name(model)}` was ready within {self._config.wait_s:g} s: {why}",
            param="model",
            code="not_woken",
            retry_after_s=ceil(self._config.pause_s),
        )

    def _on_fleet_change(self) -> None:
        """Check the queues in the next turn of the event loop, because the change is not complete yet."""
        if self._queues and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._woken = False
        self.tick()

    def _release(self, model: str, queue: _Queue) -> None:
        """Release the oldest requests, as many as the ready targets have room for below `AHEAD`."""
        room = sum(max(0, AHEAD - target.load_book.prefilling) for target in self._fleet.answering(model))
        for future in list(queue.waiting)[: min(room, RELEASED_AT_ONCE)]:
            self._remove(model, queue, future)
            _set(future, True)

    def _remove(self, model: str, queue: _Queue, future: asyncio.Future[bool]) -> None:
        queue.waiting.pop(future, None)
        if not queue.waiting and self._queues.get(model) is queue:
            del self._queues[model]
            if not self._queues:
                self._disarm()
                self._requested_s = None

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Set the timer, if it is not set and any request waits."""
        if self._timer is not None or not self._queues:
            return
        releasing = any(self._fleet.can_answer(model) for model in self._queues)
        oldest_s = min(next(iter(queue.waiting.values())) for queue in self._queues.values())
        left_s = oldest_s + self._config.wait_s - self._clock.now()
        pause_s = RELEASE_PAUSE_S if releasing else min(ASK_AGAIN_S, max(RELEASE_PAUSE_S, left_s))
        self._timer = asyncio.get_running_loop().call_later(pause_s, self.tick)


def _set(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():  # else the client has just left
        future.set_result(value)
