"""Records of a busy fleet, for measuring the decision log: every number as the router itself would have made it.

Long conversations (70,000 to 90,000 tokens each, half of them with a common prefix) take turns on engines of different
speeds. Load books, gauges, fitted speeds and their rounding are the router's own (`router/fleet`); the model of the
engines is crude, since only the digits matter here: how many of them differ from row to row and from one record to the
next. Time is virtual and random numbers are seeded: the same records every time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from router.config import schema
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from scorers.contract import Overlap, PoolHit, View
from tests.suites.views import build_rows

POLICY: Policy = build_policy(
    "expected_ttft", schema.PolicyConfig.model_validate({"scorers": [{"name": "expected_ttft"}]})
)
REQUESTS_PER_TARGET_S = 0.6
POLL_S = 0.25
BLOCK = 16
COMMON_TOKENS = 4096
LONGEST_TOKENS = 90_000
LEDGER_BLOCK_TOKENS = 512


@dataclass
class Session:
    name: str
    tokens: int
    keys: list[int]  # one per 512 tokens
    held: dict[str, int] = field(default_factory=dict)  # by target


class BusyFleet:
    """`records(n)` yields n finished requests in the order of their arrival."""

    def __init__(self, targets: int, seed: int = 1) -> None:
        self._dice = random.Random(seed)
        self._fleet = Fleet(schema.FleetConfig())
        for i in range(targets):
            name = f"engine-{i:02}.llm.svc:8000"
            self._fleet.join(schema.InstanceConfig(url=f"http://{name}", name=name))
            self._fleet.mark_ready(name, [ModelCard("qwen3-32b", None, None, None)], [0])
        self._targets: list[Target] = self._fleet.candidates("qwen3-32b", (), 0.0)
        dice = self._dice
        self._us_per_token = {t.id: dice.lognormvariate(4.2, 0.25) for t in self._targets}
        self._heard = {t.id: 0.0 for t in self._targets}
        self._answered = {t.id: 0 for t in self._targets}
        self._held = {t.id: dice.randrange(1_000_000, 3_000_000) for t in self._targets}
        self._common = [dice.getrandbits(64) for _ in range(COMMON_TOKENS // LEDGER_BLOCK_TOKENS)]
        self._sessions = [self._begun(i) for i in range(16 * targets)]
        self._due: list[tuple[float, int, str, tuple[object, ...]]] = []
        self._order = count()
        for target in self._targets:
            self._at(dice.uniform(0, POLL_S), "poll", target)

    def records(self, n: int) -> Iterator[Record]:
        now = 0.0
        for number in range(n):
            now += self._dice.expovariate(REQUESTS_PER_TARGET_S * len(self._targets))
            self._until(now)
            yield self._request(number, now)

    def _begun(self, i: int) -> Session:
        tokens = self._dice.randrange(70_000, LONGEST_TOKENS)
        keys = list(self._common) if i % 2 else []
        keys += [self._dice.getrandbits(64) for _ in range(tokens // LEDGER_BLOCK_TOKENS - len(keys))]
        home = self._dice.choice(self._targets)
        return Session(f"{self._dice.getrandbits(64):016x}", tokens, keys, {home.id: tokens - 1500})

    def _at(self, when: float, what: str, *about: object) -> None:
        heappush(self._due, (when, next(self._order), what, about))

    def _until(self, now: float) -> None:
        while self._due[0][0] <= now:
            when, _, what, about = heappop(self._due)
            getattr(self, f"_{what}")(when, *about)

    def _poll(self, now: float, target: Target) -> None:
        books, dice = target.load_book, self._dice
        waiting = max(0, books.prefilling - 1)
        usage = min(0.97, books.context_tokens / 2_000_000 + dice.uniform(0, 0.01))
        self._answered[target.id] += round(books.requests * POLL_S * dice.uniform(25, 40))
        gauges = Gauges(
            books.requests - waiting, waiting, round(usage, 4), BLOCK, 2_400_000, None, None,
            output_tokens=self._answered[target.id],
        )  # fmt: skip
        self._fleet.apply_metrics(target.instance.id, {0: gauges}, sent_at=now)
        self._at(now + POLL_S * dice.uniform(0.9, 1.1), "poll", target)

    def _request(self, number: int, now: float) -> Record:
        dice = self._dice
        session = self._sessions[i := dice.randrange(len(self._sessions))]
        if session.tokens > LONGEST_TOKENS:
            session = self._sessions[i] = self._begun(i)
        session.tokens += dice.randrange(200, 2500)
        session.keys += [dice.getrandbits(64) for _ in range(session.tokens // LEDGER_BLOCK_TOKENS - len(session.keys))]
        overlaps = {t.id: self._overlap(session, t, now) for t in self._targets}
        view = View(
            number=number, seed=0x5EED, model="qwen3-32b", adapter=None, prompt_tokens=session.tokens,
            prefix=session.keys[0], session=session.name, last_target=next(reversed(session.held)),
            pool=PoolHit(session.tokens // 2 // BLOCK * BLOCK, dice.uniform(0, 0.02), session.tokens // 4),
            busy=self._fleet.occupancy.busy, rows=build_rows(self._targets, overlaps, now), turn=number, now_s=now,
            nominal=self._targets[0].latency_model.speed(now),
            prefixes=tuple(session.keys[(1 << i) - 1] for i in range(7)),
        )  # fmt: skip
        decision = POLICY.decide(view)
        target = next(t for t in self._targets if t.id == decision.target)
        cached = overlaps[target.id].expected_tokens
        booking = target.book(session.tokens - cached, session.tokens)
        new = session.tokens - cached
        computing_s = (10.0 + self._us_per_token[target.id] * new / 1000) / 1000 * dice.uniform(0.95, 1.1)
        ttft_s = computing_s + target.load_book.queued_ms(target.latency_model.speed(now)) / 1000 * 0.5
        output_tokens = dice.randrange(100, 900)
        self._at(now + ttft_s, "first_byte", target, booking, session)
        self._at(now + ttft_s + output_tokens * 0.025, "end", target, booking, session.tokens, cached, computing_s)
        return Record(
            f"run-{number}", number, now, 1_795_233_405.0 + now, "/v1/chat/completions", "qwen3-32b", True, "local",
            session.tokens, Stages(0.1 + ttft_s / 1000, 3.2 + ttft_s / 70, 0.6, 0.9, 0.4 + ttft_s / 90, 0.5, 0.1),
            policy=POLICY, blocks=tuple(session.keys), attempts=[Attempt(decision, cached, cached, 0, "ok")],
            status=200, ttft_ms=ttft_s * 1e3, duration_ms=(ttft_s + output_tokens * 0.025) * 1e3,
            prompt_tokens=session.tokens, cached_tokens=cached, output_tokens=output_tokens, done=True,
        )  # fmt: skip

    def _overlap(self, session: Session, target: Target, now: float) -> Overlap:
        if self._dice.random() < 0.3:
            self._heard[target.id] = now - self._dice.uniform(0, 0.05)
        tokens = session.held.get(target.id, COMMON_TOKENS if target.rank == 0 else 0) // BLOCK * BLOCK
        cpu = tokens + (self._dice.randrange(0, 2000) // BLOCK * BLOCK if target.id in session.held else 0)
        age_s = ((now - self._heard[target.id]) * 1e3 + 0.5) // 1 / 1e3
        return Overlap(tokens, cpu, cpu, tokens, "events", age_s)

    def _first_byte(self, now: float, target: Target, booking: object, session: Session) -> None:
        booking.on_first_byte()  # type: ignore[attr-defined]
        session.held.pop(target.id, None)
        session.held[target.id] = session.tokens
        if len(session.held) > 3:
            del session.held[next(iter(session.held))]
        self._heard[target.id] = now
        self._held[target.id] += session.tokens // 8

    def _end(self, now: float, target: Target, booking: object, tokens: int, cached: int, computing_s: float) -> None:
        booking.release()  # type: ignore[attr-defined]
        target.latency_model.observe_prefill(tokens - cached, cached, computing_s * 1e3, now)
        target.latency_model.observe_fetch(
            "pool", 4096, tokens - cached, cached, computing_s * 1e3 + self._dice.uniform(5, 50), now
        )
        batch = booking.batch  # type: ignore[attr-defined]
        if batch is not None:
            target.latency_model.observe_decode_step(
                self._dice.uniform(20, 30), batch.requests, batch.context_tokens, now
            )
