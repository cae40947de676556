"""`warmroute bench agents`: agents that talk turn by turn, through the router, under three ways to run the same fleet.

The loop is closed: an agent sends its next turn when it has the answer and has thought, so a faster fleet is asked
more, and a slow one is not buried. Each arm gets the same sessions, lengths and pauses; the text differs from arm to
arm, so that nothing an earlier arm left behind can help a later one, and the caches are emptied between them as well.
Where prompt tokens came from is the sum of vLLM's own counters over the arm, not what the router or a client believes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

from router.clock import Clock
from router.testbed.bench.engine_counters import EngineCounts, add_counts, fetch_counters, poll_until, subtract_counts
from router.testbed.bench.environment import BenchFailed, EngineFacts, Environment, clear_caches, read_engine_facts
from router.testbed.bench.router_process import run_router
from router.testbed.loadgen.client import ClientAnswer, ClientFailure, LoadClient
from router.testbed.workloads import Session, Workload, make_token_ids

COUNTER_TIMEOUT_S = 5.0

EnvironmentFactory = Callable[[bool], AbstractAsyncContextManager[Environment]]
"""Engines over a pool (True) or without one (False), for the time of a block."""


class BenchArm(NamedTuple):
    name: str
    policy: str
    pool: bool


def default_arms(cache_aware: str) -> tuple[BenchArm, ...]:
    """Those without a pool first: a stage is set once for neighbours that share it."""
    return (
        BenchArm("round robin, no pool", "round_robin", False),
        BenchArm("round robin + pool", "round_robin", True),
        BenchArm("cache-aware + pool", cache_aware, True),
    )


class BenchTurn(NamedTuple):
    """One turn and what came of it."""

    session: int
    turn: int
    prompt_tokens: int
    answer: ClientAnswer | ClientFailure


@dataclass
class BenchTurns:
    """What agents asked and got so far."""

    turns: list[BenchTurn] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def answers(self) -> list[ClientAnswer]:
        return [one.answer for one in self.turns if isinstance(one.answer, ClientAnswer)]

    @property
    def failures(self) -> list[ClientFailure]:
        return [one.answer for one in self.turns if isinstance(one.answer, ClientFailure)]


@dataclass
class ArmOutcome(BenchTurns):
    """One arm so far."""

    arm: BenchArm = field(kw_only=True)
    engines: EngineCounts | None = None  # what they counted meanwhile, all together
    complete: bool = False  # every session came to its end
    notes: list[str] = field(default_factory=list)


@dataclass
class AgentsReport:
    """All arms so far."""

    workload: Workload
    versions: str
    block_tokens: int = 1  # of the engines, once one is asked
    outcomes: list[ArmOutcome] = field(default_factory=list)
    interrupted: bool = False


async def compare_arms(
    report: AgentsReport,
    chosen: Sequence[BenchArm],
    stage: EnvironmentFactory,
    out: Path,
    clock: Clock,
    progress: Callable[[BenchArm, int], None],
) -> None:
    """Fills `report`; what is in it stays when this is cancelled. `progress` is told each arm's finished turns.

    Routers' logs go to the folder `out`. Raises NotStarted when a router does not start, BenchFailed when the engines
    cannot take the workload.
    """
    for pool in dict.fromkeys(arm.pool for arm in chosen):
        async with stage(pool) as site:
            facts = await read_engine_facts(site)
            if report.block_tokens != facts.block_tokens:  # the first stage
                report.versions += f", {facts.version}"
                report.block_tokens = facts.block_tokens
            _fits(report.workload, facts)
            for arm in [arm for arm in chosen if arm.pool is pool]:
                outcome = ArmOutcome(arm=arm)
                report.outcomes.append(outcome)
                if (trouble := await clear_caches(site, clock)) is not None:
                    outcome.notes.append(f"caches were not emptied: {trouble}")
                text_seed = report.workload.seed * 100 + chosen.index(arm)
                async with run_router(
                    site.router_config, arm.policy, out / f"router-{len(report.outcomes)}.log", clock
                ) as url:
                    await _drive(outcome, site, url, report.workload, text_seed, clock, progress)


def _fits(workload: Workload, facts: EngineFacts) -> None:
    longest = max(turn.prompt_tokens + turn.output_tokens for session in workload.sessions for turn in session.turns)
    if longest > facts.context_tokens:
        raise BenchFailed(
            f"the longest turn has {longest} tokens, the engines take {facts.context_tokens}: choose a smaller --scale"
        )


async def _drive(
    outcome: ArmOutcome,
    site: Environment,
    url: str,
    workload: Workload,
    text_seed: int,
    clock: Clock,
    progress: Callable[[BenchArm, int], None],
) -> None:
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http, LoadClient(url, site.model, clock) as client:
        before = await _counts(http, site)
        began_s = clock.now()

        def done(asked: BenchTurn) -> None:
            outcome.turns.append(asked)
            outcome.took_s = clock.now() - began_s
            progress(outcome.arm, len(outcome.turns))

        try:
            agents = (run_session(client, session, text_seed, site.vocabulary, done) for session in workload.sessions)
            await asyncio.gather(*agents)
            outcome.complete = True
        finally:
            asked_tokens = sum(answer.prompt_tokens for answer in outcome.answers)
            wanted = (before.prompt_tokens or 0.0) + asked_tokens
            counted = await poll_until(
                clock, COUNTER_TIMEOUT_S, lambda: _counts(http, site), lambda now: (now.prompt_tokens or 0.0) >= wanted
            )
            outcome.engines = subtract_counts(counted, before)


async def run_session(
    client: LoadClient,
    session: Session,
    text_seed: int,
    vocabulary: range,
    done: Callable[[BenchTurn], None],
    *,
    name: str | None = None,
) -> None:
    """One agent's session, to its end or its first failure. `name`: what it calls its session."""
    await asyncio.sleep(session.start_s)
    context: list[int] = []
    for number, turn in enumerate(session.turns):
        await asyncio.sleep(turn.think_s)
        fresh = (token for span in turn.fresh for token in make_token_ids(span, text_seed, vocabulary))
        prompt = [*context[: turn.kept_tokens], *fresh]
        answer = await client.complete(prompt, turn.output_tokens, session=name)
        done(BenchTurn(session.number, number, len(prompt), answer))
        if isinstance(answer, ClientFailure):
            return
        context = [*prompt, *answer.token_ids]


async def _counts(http: httpx.AsyncClient, site: Environment) -> EngineCounts:
    return add_counts([EngineCounts.read(await fetch_counters(http, engine)) for engine in site.engines])
