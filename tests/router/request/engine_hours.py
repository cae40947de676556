"""Hours of a busy engine in virtual time, judged four times a second as `StuckEngines` judges it.

The engine is the emulator's, step by step, as fast as a profile says; target, load book and learned speeds are the
router's own. Mixed load: chats that go on, documents, prompts of 100,000 tokens, streams and whole answers, bursts and
pauses. One request of ten is another client's, which the router sees in the metrics only.

    python -m tests.router.request.engine_hours 8 [SEED] [PROFILE]      hours in virtual time; prints every alarm
"""

from __future__ import annotations

import sys
from math import log
from types import SimpleNamespace
from typing import Any, NamedTuple

from router.clock import SystemClock
from router.config import schema
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance
from router.fleet.load import Booking
from router.fleet.progress import Stall
from router.kvcache.engine_hashes import EngineChain
from router.lab.rng import Rng
from router.lab.simulator.engine_types import EngineShape, RequestId, SequenceRequest
from router.lab.simulator.step_engine import StepEngine
from router.lab.sweep.options import load_profile
from router.proxy.upstreams import ExchangeHandle
from router.request.stuck_engines import CHECK_S, OpenAttempt, StuckEngines, sum_work
from tests.router.request.requests import a_request

LOAD = 0.4  # of what the engine can do in the mean, if it finds chats cached; bursts fill it
MOST_WAITING = 20
QUIET_S, BURST_S = 120.0, 240.0  # half the load, then one and a half times as much
KINDS = ((0.80, 200, 2_000), (0.17, 8_000, 30_000), (0.03, 90_000, 110_000))  # share, new tokens from and to
CHATS = 12  # that a request may continue
LONGEST = 120_000  # tokens of a chat, which then begins anew


class Watch:
    """Whether an answer has begun."""

    def __init__(self) -> None:
        self.begun = False


class Sent(NamedTuple):
    """A request of this router at the engine."""

    booking: Booking
    sent_s: float
    prompt: int
    attempt: OpenAttempt
    watch: Watch


class EngineHours:
    """One engine and what a router sees of it. `freeze_at_s`: from then on it makes no step."""

    def __init__(self, seed: int, profile: str = "llama-3.1-8b-h100", freeze_at_s: float | None = None) -> None:
        self.rng, self.profile = Rng(seed), load_profile(profile)
        self.engine = StepEngine(EngineShape(profile=self.profile, blocks=self.profile.kv_tokens // 16))
        fleet = Fleet(schema.FleetConfig())
        instance = fleet.join(schema.InstanceConfig(url="http://a:1"))
        assert isinstance(instance, Instance)
        fleet.mark_ready(instance.id, [ModelCard("m", "m", None, None)], [])
        self.target = instance.targets[0]
        self.alarms: list[tuple[float, Stall]] = []
        self.requests = 0
        self.longest_tokens = 0
        self.most_slowdown = 1.0  # that was learned at any time
        self._freeze_at_s = float("inf") if freeze_at_s is None else freeze_at_s
        self._sent: dict[RequestId, Sent] = {}
        self._begun: dict[RequestId, tuple[float, int, int]] = {}  # first byte, cached tokens, tokens so far
        self._chats: list[list[int]] = [[] for _ in range(CHATS)]
        self._step_s: float | None = None  # when the engine is due
        self._now = 0.0
        self._owner = StuckEngines(fleet, SystemClock())

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        now = self._now
        next_check, next_page, next_request = now + CHECK_S, now + 0.1, now
        until = now + seconds
        while now < until:
            now = min(next_check, next_page, next_request, next_check if self._step_s is None else self._step_s)
            if self._step_s is not None and now >= self._step_s:
                self._step(now)
            if now >= next_request:
                next_request = now + self._send(now)
            if now >= next_page:
                self._poll(now)
                next_page = now + CHECK_S
            if now >= next_check:
                self._check(now)
                next_check = now + CHECK_S
        self._now = now

    def _find_held(self, request: SequenceRequest) -> list[int]:
        """Return the leading blocks of a prompt that are cached now."""
        labels = [EngineChain.event_hash(digest) for digest in self.engine.digests(request)]
        return self.engine._pool.find_leading(labels)

    def _uniform(self) -> float:
        return (self.rng.below(1_000_000) + 0.5) / 1_000_000

    def _send(self, now: float) -> float:
        """Send one request, unless too many wait already; return the time until the next."""
        if self.engine.gauges().waiting >= MOST_WAITING:
            return 1.0
        drawn, chat = self._uniform(), self.rng.below(CHATS)
        low, high = next((low, high) for share, low, high in _up_to() if drawn < share)
        new, output = low + self.rng.below(high - low), 8 + self.rng.below(500)
        if len(self._chats[chat]) + new > LONGEST:
            self._chats[chat] = []
        self._chats[chat] = ids = [*self._chats[chat], *(self.rng.below(1 << 20) for _ in range(new))]
        own = self.rng.below(10) > 0
        request = SequenceRequest(ids, output)
        missing = len(ids) - 16 * len(self._find_held(request))  # what an index of the engine's events knows
        id = self.engine.submit(request, now)
        assert not isinstance(id, str), id
        if self._step_s is None:
            self._step_s = now
        self.requests += 1
        self.longest_tokens = max(self.longest_tokens, len(ids))
        if own:
            booking = self.target.book(missing, len(ids))
            self._sent[id] = Sent(booking, now, len(ids), *self._attempt(missing, len(ids)))
        work_s = self.profile.prefill_s(new, 0) + output * self.profile.step_s(0, 0, 1, len(ids)) / 8
        load = LOAD * (0.5 if now % (QUIET_S + BURST_S) < QUIET_S else 1.25)
        return -log(self._uniform()) * work_s / load

    def _attempt(self, missing: int, tokens: int) -> tuple[OpenAttempt, Watch]:
        """Return an attempt, four of five for a stream, with what `sum_work` reads of it."""
        watch: Any = Watch()
        request: Any = a_request()
        request.prompt.stream = self.rng.below(5) > 0
        ticket: Any = SimpleNamespace(target=self.target, estimate=None, prefill=None)
        attempt = OpenAttempt(self._owner, request, ticket, watch, ExchangeHandle())
        attempt.tokens, attempt.missing_tokens = tokens, missing
        return attempt, watch

    def _step(self, now: float) -> None:
        if now >= self._freeze_at_s:
            self._step_s = float("inf")
            return
        result = self.engine.step(now)
        self._step_s = result.next_wake_s
        for id, output in result.outputs.items():
            if id in self._sent:
                self._on_token(id, output.cached_tokens, ended=output.finish is not None, now=now)

    def _on_token(self, id: RequestId, cached: int, *, ended: bool, now: float) -> None:
        """Do what observer and scheduler do. An answer that is no stream arrives whole."""
        sent = self._sent[id]
        shows = sent.attempt.stream or ended
        if id not in self._begun:
            self._begun[id] = now, cached, 0
        first_s, cached, tokens = self._begun[id]
        self._begun[id] = first_s, cached, tokens + 1
        if shows:
            self.target.progress.pieces += 1
            if not sent.watch.begun:
                sent.watch.begun = True
                sent.booking.on_first_byte()
                sent.attempt.count_prefill()
        if ended:
            sent.booking.release()
            ttft_ms = (first_s - sent.sent_s) * 1e3
            if sent.attempt.stream:
                self.target.observe_prefill(sent.booking, sent.prompt, cached, ttft_ms, now)
                whole_ms = (now - sent.sent_s) * 1e3
                self.target.observe_decode(sent.booking, tokens + 1, ttft_ms, whole_ms, now)
            del self._sent[id], self._begun[id]
            if not self._sent:
                self.target.progress.rest()

    def _poll(self, now: float) -> None:
        gauges = self.engine.gauges()
        self.target.load_book.begin_poll()
        self.target.apply_gauges(
            Gauges(
                gauges.running,
                gauges.waiting,
                gauges.kv_usage,
                16,
                None,
                None,
                None,
                output_tokens=gauges.generated_tokens,
            ),
            now,
        )

    def _check(self, now: float) -> None:
        if not self._sent:
            return
        speed = self.target.latency_model.speed(now)
        work = sum_work([sent.attempt for sent in self._sent.values()], speed, silent=False)
        slowdown = self.target.latency_model.slowdown
        self.most_slowdown = max(self.most_slowdown, slowdown)
        stall = self.target.progress.check(work, self.target.load_book, speed, slowdown, now)
        if stall is not None:
            self.alarms.append((now, stall))


def _up_to() -> list[tuple[float, int, int]]:
    total, kinds = 0.0, []
    for share, low, high in KINDS:
        total += share
        kinds.append((total, low, high))
    return kinds


def main() -> None:
    hours, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    made = EngineHours(seed, *sys.argv[3:4])
    made.run(hours * 3600)
    speed = made.target.latency_model.speed(hours * 3600)
    sent = f"{made.requests} requests of up to {made.longest_tokens} tokens"
    found = f"{len(made.alarms)} alarms, slowdown up to {made.most_slowdown:.2f}"
    print(f"{hours:g} h, {sent}, {found}; learned: {speed[:4]}, {speed.decode}")
    for at_s, stall in made.alarms[:20]:
        print(f"  {at_s:9.1f} s  {stall}")


if __name__ == "__main__":
    main()
