"""The queues in which requests wait until the admission controller releases them or `admission.max_wait_s` has
passed.

A waiting request is only a future: each end (an answer, a client that disconnects while it waits) calls
`release_waiting`, and one timer per model calls it when nothing else happens. A request's `QueueLease` releases its
place once, whatever ends the request.

If `admission.enabled` is false, there are no queues, and nothing is read, counted or kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from math import ceil, inf
from typing import Literal, Protocol

from router.clock import Clock
from router.config.sections.admission import AdmissionConfig
from router.errors import TooBusy
from router.features.admission.controller import AdmissionController
from router.features.admission.lease import AdmissionLease
from router.features.admission.model_admission import ModelAdmission
from router.features.admission.pending_request import PendingRequest, describe_request, leaves_context
from router.features.admission.shared_prefixes import PromptPrefix
from router.features.admission.verdicts import ComputedPrompt, KnownProgram, Queued
from router.request.experiment_unit import window_unit
from router.request.request import Request
from router.request.services import Services
from router.scheduling.conversations import Conversations
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.admission_rules import build_rule
from router.scheduling.scheduler import Scheduler
from scorers.admission.contract import Admission, AdmissionRule, QueueName
from scorers.registry import load_registry

log = logging.getLogger("warmroute.admission")

MIN_PAUSE_S = 0.001  # between two timer runs: loops and clocks differ by less
RELEASED_AT_ONCE = 32  # requests per turn of the event loop: to place one takes some hundred microseconds

WaitEnd = Literal["passed", "refused", "client_gone"]
OnWaitEnd = Callable[[str, QueueName, WaitEnd, float], None]
"""Called after every wait: model, queue, how it ended, seconds."""

Acquire = Callable[["AdmissionQueue", PendingRequest], Awaitable[AdmissionLease | None]]
"""Waits for a place; returns None if no place is needed. Raises `TooBusy`."""


class AdmissionStage:
    """The stage after tokenization, where requests wait for a place in one of `queues`. `acquire` gets the place;
    by default this process decides.
    """

    def __init__(self, queues: AdmissionQueues, conversations: Conversations, acquire: Acquire | None = None) -> None:
        self._queues = queues
        self._conversations = conversations
        self._acquire = acquire or (lambda queue, pending: queue.acquire(pending))

    def enter(self, request: Request, services: Services) -> Awaitable[None] | None:
        """Wait for a place. None if the request is not subject to admission. Raises `TooBusy`."""
        served = request.served
        if served is None or not leaves_context(request.prompt):
            return None
        queue = self._queues.queue_of(served.base)
        return None if queue is None else self._wait(request, queue)

    async def _wait(self, request: Request, queue: AdmissionQueue) -> None:
        lease = await self._acquire(queue, describe_request(request, self._conversations))
        if lease is not None:
            request.avoid = lease.full
            request.hold(lease)


class LeaseListener(Protocol):
    """Follows the events of admitted requests, to publish them."""

    def on_begin(self, model: str, admission: Admission, prefix: PromptPrefix | None) -> int:
        """Return a number for a request that was admitted."""

    def on_placed(self, number: int, target: str, held_tokens: int | None) -> None: ...

    def on_first_byte(self, number: int) -> None: ...

    def on_end(self, number: int, computed: ComputedPrompt | None) -> None: ...


class AdmissionQueues:
    """The admission queues of all models. `pooled`: the fleet has a shared pool. `tenants`: clients must identify
    themselves. Raises ConfigError when the rule cannot be built.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        scheduler: Scheduler,
        clock: Clock,
        on_wait_end: OnWaitEnd,
        *,
        pooled: bool = False,
        tenants: bool = False,
    ) -> None:
        self.config = config
        self._registry = load_registry()
        build_rule(config, self._registry)
        self._scheduler = scheduler
        self._clock = clock
        self._on_wait_end = on_wait_end
        self._pooled = pooled
        self._tenants = tenants
        self.listener: LeaseListener | None = None
        self._queues: dict[str, AdmissionQueue] = {}  # by base model that instances serve
        self._policy_set: PolicySet | None = None
        self._window_ends_wall_s = inf  # of an experiment that compares admission rules
        self._timer: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[ModelAdmission]:
        """Iterate over the models that were requested so far."""
        return (queue.model_admission for queue in self._queues.values())

    def listen(self, listener: LeaseListener) -> None:
        """Notify `listener` of the events of all requests that are admitted from now on."""
        self.listener = listener
        for queue in self._queues.values():
            queue.listener = listener

    def follow(self, policy_set: PolicySet) -> None:
        """Let the admission rule of `policy_set` decide from now on. In an experiment that compares admission
        rules, each window uses the rule of its arm.
        """
        self._policy_set = policy_set
        self._follow_window()

    def _follow_window(self) -> None:
        assert self._policy_set is not None
        experiment, unit, now_wall_s = self._policy_set.experiment, None, self._clock.wall()
        self._window_ends_wall_s = inf
        if experiment is not None and experiment.compares_admission:
            unit = window_unit(experiment, now_wall_s)
            self._window_ends_wall_s = (now_wall_s // experiment.window_s + 1) * experiment.window_s
        self.switch(self._policy_set.admission_of(unit))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._window_ends_wall_s < inf:
            pause_s = max(MIN_PAUSE_S, self._window_ends_wall_s - now_wall_s)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._follow_window)

    def switch(self, config: AdmissionConfig) -> None:
        """Let another rule, or other limits, decide from now on, also about waiting requests; these begin if
        admission control is turned off. Raises ConfigError, and then has changed nothing.
        """
        if config == self.config:
            return
        rules = [build_rule(config, self._registry) for _ in range(max(1, len(self._queues)))]
        self.config = config
        for queue, rule in zip(self._queues.values(), rules, strict=False):
            queue.switch(rule, config)

    def queue_of(self, model: str) -> AdmissionQueue | None:
        """Return the queue of a base model that instances serve; None while admission control is off."""
        if self._clock.wall() >= self._window_ends_wall_s:
            self._follow_window()
        if not self.config.enabled:
            return None
        if (queue := self._queues.get(model)) is None:
            config, rule = self.config, build_rule(self.config, self._registry)
            now = self._clock.now()
            controller = AdmissionController(
                rule, config.max_wait_s, config.idle_s, pooled=self._pooled, tenants=self._tenants, now=now
            )
            admission = ModelAdmission(model, controller, self._scheduler, self._clock)
            queue = AdmissionQueue(admission, config.rule.name, config.max_wait_s, self._clock, self._on_wait_end)
            queue.listener = self.listener
            self._queues[model] = queue
        return queue


class AdmissionQueue:
    """The requests that wait for one model."""

    def __init__(
        self, model_admission: ModelAdmission, rule: str, max_wait_s: float, clock: Clock, on_wait_end: OnWaitEnd
    ) -> None:
        self.model_admission = model_admission
        self.rule = rule  # name of the rule in force
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._on_wait_end = on_wait_end
        self.listener: LeaseListener | None = None
        self._waiting: dict[Admission, asyncio.Future[Queued | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def switch(self, rule: AdmissionRule, config: AdmissionConfig) -> None:
        """Let `rule` decide from now on, also about waiting requests."""
        self.rule, self._max_wait_s = config.rule.name, config.max_wait_s
        self.model_admission.switch(rule, config.max_wait_s, config.idle_s)
        self.release_waiting()

    async def acquire(self, pending: PendingRequest, *, listened: bool = True) -> QueueLease:
        """Wait for a place. Raises `TooBusy` after `max_wait_s`, and for a deadline that can no longer be met.
        `listened` is False if another process publishes the request's events.
        """
        verdict = self.model_admission.arrive(pending)
        if self.model_admission.capacity_tokens is None and not self._warned:
            self._warned = True
            log.warning(
                "model %s: no request waits for room in KV caches, because no instance has reported its KV cache size",
                self.model_admission.model,
            )
        waited_s = await self._wait(verdict.admission) if isinstance(verdict, Queued) else None
        return QueueLease(self, verdict.admission, waited_s, pending.prefix, self.listener if listened else None)

    def hold(self, pending: PendingRequest) -> QueueLease:
        """Return a place for a request that another router has admitted. The request takes room here as well."""
        return QueueLease(self, self.model_admission.begin_elsewhere(pending), None, pending.prefix)

    def learn(self, known: KnownProgram) -> None:
        """Adopt another router's state of a program."""
        self.model_admission.learn(known)
        self.release_waiting()

    async def _wait(self, admission: Admission) -> float:
        """Wait, and return the seconds waited. If the client leaves meanwhile, everything is released, even if the
        request was just admitted. Raises `TooBusy` when the request is refused.
        """
        future = self._waiting[admission] = asyncio.get_running_loop().create_future()
        self.release_waiting()
        end: WaitEnd = "client_gone"
        try:
            refused = await future
            end = "passed" if refused is None else "refused"
        finally:
            waited_s = self._clock.now() - admission.since_s
            self._on_wait_end(self.model_admission.model, admission.queue, end, waited_s)
            if end == "client_gone":
                self._waiting.pop(admission, None)
                self.model_admission.on_leave(admission)
                self.release_waiting()
        if refused is not None:
            raise self._refusal(refused)
        return waited_s

    def release_waiting(self) -> None:
        """Wake the requests whose wait has ended. Call it when something has changed or time has passed."""
        released = self.model_admission.release_waiting(RELEASED_AT_ONCE)
        for admission in released.admitted:
            self._wake(admission, None)
        for queued in released.refused:
            self._wake(queued.admission, queued)
        self._arm_timer(soon=released.more)

    def _wake(self, admission: Admission, refused: Queued | None) -> None:
        future = self._waiting.pop(admission)
        if not future.done():  # else the client has just left, and `_wait` releases everything
            future.set_result(refused)

    def _arm_timer(self, *, soon: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (next_s := self.model_admission.next_s) is not None:
            pause_s = MIN_PAUSE_S if soon else max(MIN_PAUSE_S, next_s - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.release_waiting)

    def _refusal(self, queued: Queued) -> TooBusy:
        if queued.reason == "deadline":
            return self._deadline_refusal(queued)
        expected = "an unknown time" if queued.expected_s is None else f"about {ceil(queued.expected_s)} s"
        return TooBusy(
            f"the KV caches of the fleet are full of live sessions: this request has waited {self._max_wait_s:g} s, "
            f"is number {queued.position} in the queue, and would have to wait {expected} more; try again later",
            code="no_room",
            retry_after_s=max(1, ceil(self._max_wait_s if queued.expected_s is None else queued.expected_s)),
        )

    def _deadline_refusal(self, queued: Queued) -> TooBusy:
        waited_s = self._clock.now() - queued.admission.since_s
        return TooBusy(
            f"the engines are saturated: after {waited_s:.3g} s in the queue the first token can no longer come within "
            f"the time that the request allows; try again later, or allow more",
            code="deadline_unreachable",
            retry_after_s=max(1, ceil(queued.expected_s or 0)),
        )


class QueueLease(AdmissionLease):
    """A place given by `queue`."""

    __slots__ = ("_admission", "_listener", "_number", "_prefix", "_queue")

    def __init__(
        self,
        queue: AdmissionQueue,
        admission: Admission,
        waited_s: float | None,
        prefix: PromptPrefix | None,
        listener: LeaseListener | None = None,
    ) -> None:
        super().__init__(admission.prompt_tokens, waited_s, queue.rule, admission.full)
        self._queue = queue
        self._admission = admission
        self._prefix = prefix
        self._listener = listener
        if listener is not None:
            self._number = listener.on_begin(queue.model_admission.model, admission, prefix)

    def place(self, target: str, held_tokens: int | None) -> None:
        self._queue.model_admission.on_placed(self._admission, target, held_tokens, self._prefix)
        self._queue.release_waiting()  # the load books now show more exactly which engines have room
        if self._listener is not None:
            self._listener.on_placed(self._number, target, held_tokens)

    def begin_answer(self) -> None:
        self._queue.model_admission.on_first_token(self._admission)
        self._queue.release_waiting()
        if self._listener is not None:
            self._listener.on_first_byte(self._number)

    def end(self, computed: ComputedPrompt | None) -> None:
        if self._listener is not None:
            self._listener.on_end(self._number, computed)
        if computed is None:
            self._queue.model_admission.on_leave(self._admission)
        else:
            self._queue.model_admission.on_answer(self._admission, computed)
        self._queue.release_waiting()
