"""CPU time of the scheduler to place a request, from small fleets to large: `admit`, `first_byte` and `settle`.

    python -m tests.bench.decisions        prints this table too

Conversations with one common prefix take turns on engines that are half busy and of slightly different speeds, as
learned from their reports. Events, keys and books are the router's own; only the engines are modelled, and their work
and their events are not in the figures. CPU time of this process, the mean over `REQUESTS` after as many to warm up:
the cost in place, with the caches of a busy process.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import NamedTuple

import yaml
from rich import box
from rich.table import Table

from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.kvcache.events import Event, TailsStored, TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from tests.bench.figures import Bar, Line, beside
from tests.bench.row import BenchRun, Row
from tests.fakes.caches import RING, Cache, prompt_of

FOLDER = Path(__file__).parents[2] / "configs" / "policies"
FLEETS = (8, 64, 256, 1000)
HYBRID_TARGETS = 64
POLICIES = ("warm", "expected_ttft", "least_requests", "round_robin")
REQUESTS = 1000
BLOCK = 16
COMMON_TOKENS = 256
TURN_TOKENS = 160
LONGEST_TOKENS = 2400
BUSY = 0.5  # requests in flight, per target


class Placed(NamedTuple):
    policy: str
    targets: int
    admit_us: float
    rest_us: float  # first_byte and settle

    @property
    def per_s(self) -> float:
        return 1e6 / (self.admit_us + self.rest_us)


class Conversations:
    """A scheduler with `targets` engines, and the requests that run there. `hybrid`: their model has states beside
    full attention, and they keep these where a prompt ends and where it parts from others.
    """

    def __init__(self, policy: str, targets: int, seed: int = 1, *, hybrid: bool = False) -> None:
        self._dice = dice = random.Random(seed)
        self._clock = ManualClock(1000.0, wall=1000.0)
        deciding = build_policy(
            policy, schema.PolicyConfig.model_validate(yaml.safe_load((FOLDER / f"{policy}.yaml").read_text()))
        )
        self._core: Scheduler = build_scheduler(
            schema.Config(seed=1), PolicySet({policy: deciding}, policy), RING, self._clock
        )
        self._caches: dict[str, Cache] = {}
        self._pace: dict[str, float] = {}
        for i in range(targets):
            self._join(f"engine-{i}")
        self._common = [dice.randrange(1 << 20) for _ in range(COMMON_TOKENS)]
        self._sessions = [list(self._common) for _ in range(4 * targets)]
        self._under_way: deque[tuple[Ticket, TokenizedPrompt, list[int]]] = deque()
        self._targets = targets
        self._hybrid = hybrid
        self.admit_ns = self.rest_ns = 0

    def _join(self, name: str) -> None:
        core = self._core
        core.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
        core.add_instance(
            name, [ModelCard("m", "/models/m", None, 8192)], [EventEndpoint(0, f"tcp://{name}:5557", None, "")]
        )
        core.apply_metrics(name, {0: Gauges(0, 0, 0.1, BLOCK, 400_000, None, None)}, self._clock.now())
        self._caches[f"{name}/0"] = cache = Cache(BLOCK)
        self._pace[f"{name}/0"] = self._dice.uniform(90.0, 110.0)
        core.indexer.on_batch(TargetId(f"{name}/0"), cache.batch())

    def run(self, requests: int) -> None:
        for _ in range(requests):
            self._clock.advance(0.25 / self._targets)
            self._ask()
            while len(self._under_way) > BUSY * self._targets:
                self._answer(*self._under_way.popleft())

    def _ask(self) -> None:
        core, dice = self._core, self._dice
        i = dice.randrange(len(self._sessions))
        if len(self._sessions[i]) >= LONGEST_TOKENS:
            self._sessions[i] = list(self._common)
        ids = self._sessions[i] = self._sessions[i] + [dice.randrange(1 << 20) for _ in range(TURN_TOKENS)]
        known, number, now = prompt_of(ids, BLOCK), core.selector.next_number(), self._clock.now()
        record = Record(f"r-{number}", number, now, now, "/v1/completions", "m", True, "local", None, Stages())
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, session=f"s-{i}")
        began = process_time_ns()
        core.assign_policy(record, None)
        ticket = core.admit(SchedulingRequest(record, prompt, core.fleet.resolve("m"), known))
        self.admit_ns += process_time_ns() - began
        assert ticket is not None
        self._under_way.append((ticket, known, ids))

    def _answer(self, ticket: Ticket, known: TokenizedPrompt, ids: list[int]) -> None:
        core, target, record = self._core, ticket.target.id, ticket.record
        cached = ticket.attempt.predicted_tokens or 0
        cache, estimate = self._caches[target], ticket.estimate
        assert estimate is not None
        assert estimate.overlap is not None
        hashes = cache.hashes(ids)
        events: list[Event] = []
        if estimate.held_blocks < len(hashes):
            events.append(cache.stored(ids, estimate.held_blocks))
        if self._hybrid:
            ends = {(len(ids) - 1) // BLOCK, estimate.overlap.expected_tokens // BLOCK} - {cached // BLOCK}
            states = [hashes[end - 1] for end in sorted(ends) if end]
            events.append(TailsStored(states, 1, BLOCK, 1, leading=False, from_start=False))
        core.indexer.on_batch(target, cache.batch(*events))
        ticket.status, ticket.end = 200, "ok"
        record.prompt_tokens, record.cached_tokens, record.output_tokens = len(ids), cached, 20
        new = len(ids) - cached
        now, ticket.sent_at = self._clock.now(), self._clock.now() - (10 + new * self._pace[target] / 1e3) / 1e3
        began = process_time_ns()
        core.on_first_byte(ticket)
        core.settle(ticket)
        core.complete(record)
        self.rest_ns += process_time_ns() - began
        assert self._clock.now() == now


def place(policy: str, targets: int, seed: int, *, hybrid: bool = False) -> Placed:
    """Place requests with a scheduler of their own, and return their mean."""
    fleet = Conversations(policy, targets, seed, hybrid=hybrid)
    fleet.run(max(REQUESTS, 4 * targets))
    fleet.admit_ns = fleet.rest_ns = 0
    gc.collect()
    gc.disable()  # the router makes it wait, too (`router/control/process.py`)
    try:
        fleet.run(REQUESTS)
    finally:
        gc.enable()
    return Placed(policy, targets, fleet.admit_ns / REQUESTS / 1e3, fleet.rest_ns / REQUESTS / 1e3)


def placed(policy: str, targets: int, repetitions: int = 3) -> Placed:
    """Return the median of several runs."""
    runs = [place(policy, targets, seed) for seed in range(repetitions)]
    return Placed(policy, targets, median(run.admit_us for run in runs), median(run.rest_us for run in runs))


def measure_hybrid(run: BenchRun) -> list[Line]:
    """Measure `warm` for a hybrid model, over the same conversations with full attention only."""
    ours: list[float] = []
    theirs: list[float] = []
    for seed in range(run.effort.repetitions):
        for hybrid, found in ((False, theirs), (True, ours)):
            run.report(f"{'hybrid' if hybrid else 'full attention'}, repetition {seed + 1}")
            one = place("warm", HYBRID_TARGETS, seed, hybrid=hybrid)
            found.append(one.admit_us + one.rest_us)
    what = f"placing a request of a hybrid model, {HYBRID_TARGETS} targets"
    return [beside(what, "us", ours, theirs, "full attention", Bar(1.1, of="ratio"))]


ROWS = (Row("hybrid", "placing requests of a hybrid model", measure_hybrid, 25, 5),)


def table(rows: list[Placed]) -> Table:
    shown = Table(title="placing one request, microseconds", box=box.SIMPLE)
    shown.add_column("policy", no_wrap=True)
    for name in ("targets", "admit", "first byte and settle", "requests/s"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(row.policy, f"{row.targets:,}", f"{row.admit_us:.0f}", f"{row.rest_us:.0f}", f"{row.per_s:,.0f}")
    return shown


def measure(repetitions: int) -> list[Placed]:
    return [placed(policy, targets, repetitions) for policy in POLICIES for targets in FLEETS]
