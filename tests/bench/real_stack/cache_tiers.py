"""The value of each layer of cache, by one prompt in four situations on two real engines.

    cold     engine A, never seen before               everything is computed
    local    engine A again                            A's own cache
    pool     engine B, which never saw it              the shared pool, or nothing when there is none
    control  engine B, the same prompt under a salt    a salt is part of every block's name, so no cache has it:
                                                       B computes all of it, and is no faster than A

The prompt is the same in all four, so the greedy answers must be the same: KV from a cache is the KV that would have
been computed. The source of each prompt's KV is not inferred from its time but read from the engine's counters.
Requests go straight to the engines, one at a time, and each waits until the pool shows what the one before it saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import httpx

from router.clock import Clock
from router.lab.loadgen.client import ClientAnswer, LoadClient
from router.lab.loadgen.conversations import VOCABULARY
from router.lab.workloads.model import Span, make_token_ids
from tests.bench.real_stack.engine_counters import (
    EngineCounts,
    MasterCounts,
    count_growth,
    fetch_counters,
    poll_until,
    subtract_counts,
)
from tests.bench.real_stack.environment import BenchFailed, Environment

Kind = Literal["cold", "local", "pool", "control"]
Source = Literal["computed", "local", "pool"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EXPECTED: dict[Kind, Source] = {"cold": "computed", "local": "local", "pool": "pool", "control": "computed"}
ENGINE_LABELS: dict[Kind, str] = {
    "cold": "A, first time",
    "local": "A, again",
    "pool": "B, after A",
    "control": "B, same prompt salted",
}
ANSWER_TOKENS = 8
SAVE_TIMEOUT_S = 10.0


class TierMeasurement(NamedTuple):
    """One request, with what its engine and the master counted meanwhile."""

    kind: Kind
    repetition: int
    answer: ClientAnswer
    engine: EngineCounts
    master: MasterCounts | None

    @property
    def source(self) -> Source:
        """Source of most of the prompt's KV."""
        local = self.engine.local_tokens or 0.0
        pool = 0.0 if self.engine.failed_keys else self.engine.pool_tokens or 0.0
        if max(local, pool) * 2 <= self.answer.prompt_tokens:
            return "computed"
        return "local" if local >= pool else "pool"


@dataclass
class TierReport:
    """All measurements so far."""

    tokens: int
    seed: int
    versions: str
    block_tokens: int
    measurements: list[TierMeasurement] = field(default_factory=list)
    unsaved: int = 0  # prompts whose blocks the master did not show in time
    interrupted: bool = False

    def of_kind(self, kind: Kind) -> list[TierMeasurement]:
        """Measurements of one situation."""
        return [one for one in self.measurements if one.kind == kind]

    def count_expected(self, kind: Kind) -> int:
        """Number of measurements of one situation whose KV came from where it should."""
        return sum(one.source == EXPECTED[kind] for one in self.of_kind(kind))

    def count_identical(self) -> tuple[int, int]:
        """Number of repetitions whose four answers are the same tokens, and of those that have all four."""
        by_repetition: dict[int, list[tuple[int, ...]]] = {}
        for one in self.measurements:
            by_repetition.setdefault(one.repetition, []).append(one.answer.token_ids)
        complete = [answers for answers in by_repetition.values() if len(answers) == len(KINDS)]
        return sum(len(set(answers)) == 1 for answers in complete), len(complete)


async def measure_tiers(
    environment: Environment,
    report: TierReport,
    repetitions: int,
    clock: Clock,
    step: Callable[[str], None] = lambda kind: None,
) -> None:
    """Measure and fill `report`, whose contents stay when this is cancelled; `step` is called before each request.

    Raises BenchFailed when an engine does not answer, CountersUnavailable when one has no metrics page.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=10.0, trust_env=False))
        blocks = report.tokens // report.block_tokens
        engines = []
        for url in environment.engines[:2]:
            client = await stack.enter_async_context(LoadClient(url, environment.model, clock))
            engines.append(_MeasuredEngine(url, client, environment.master, blocks, http, clock))
        a, b = engines
        for number, engine in enumerate(engines):  # an engine's first request pays for its one-time setup
            step("warm-up")
            await engine.send(_make_prompt(report, repetitions + number), None)
        for repetition in range(repetitions):
            prompt = _make_prompt(report, repetition)
            for kind in KINDS:
                step(kind)
                engine = a if kind in ("cold", "local") else b
                salt = f"control-{report.seed}-{repetition}" if kind == "control" else None
                report.measurements.append(TierMeasurement(kind, repetition, *await engine.send(prompt, salt)))
                report.unsaved = a.unsaved + b.unsaved


def _make_prompt(report: TierReport, number: int) -> list[int]:
    return make_token_ids(Span(number, report.tokens), report.seed, VOCABULARY)


class _MeasuredEngine:
    """One engine under measurement, which serves no other requests meanwhile."""

    def __init__(
        self, url: str, client: LoadClient, master: str | None, blocks: int, http: httpx.AsyncClient, clock: Clock
    ) -> None:
        self._url, self._client, self._master, self._http, self._clock = url, client, master, http, clock
        self._blocks = blocks  # whole ones in a prompt
        self.unsaved = 0  # answers whose blocks did not show in the pool in time

    async def send(
        self, prompt: Sequence[int], salt: str | None
    ) -> tuple[ClientAnswer, EngineCounts, MasterCounts | None]:
        """Return the answer, with what the engine and the master counted meanwhile."""
        engine, master = await self._count_engine(), await self._count_pool()
        answer = await self._client.complete(prompt, ANSWER_TOKENS, salt)
        if not isinstance(answer, ClientAnswer):
            raise BenchFailed(f"{self._url}: {answer.status or 'no answer'}: {answer.reason}")
        mine = await count_growth(self._clock, self._count_engine, engine, len(prompt))
        if master is None:
            return answer, mine, None
        new = self._blocks if 2 * (mine.computed_tokens or 0.0) > len(prompt) else 0
        saved = await poll_until(
            self._clock, SAVE_TIMEOUT_S, self._count_pool, lambda counts: _stored(counts) - _stored(master) >= new
        )
        self.unsaved += _stored(saved) - _stored(master) < new
        return answer, mine, saved and subtract_counts(saved, master)

    async def _count_engine(self) -> EngineCounts:
        return EngineCounts.read(await fetch_counters(self._http, self._url))

    async def _count_pool(self) -> MasterCounts | None:
        return None if self._master is None else MasterCounts.read(await fetch_counters(self._http, self._master))


def _stored(master: MasterCounts | None) -> float:
    return (master and master.stored_keys) or 0.0
