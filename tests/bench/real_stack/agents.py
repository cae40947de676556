"""Agents that converse turn by turn through the router, in three setups of the same fleet of real engines.

The loop is closed: an agent sends its next turn when it has the answer and has thought, so a faster fleet gets more
requests, and a slow one is not overloaded. Each arm gets the same sessions, lengths and pauses; the text differs from
arm to arm, so that nothing left by an earlier arm can help a later one, and the caches are emptied between them too.
The sources of prompt tokens are sums of vLLM's own counters over the arm, not estimates of the router or the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

from router.clock import Clock
from router.lab.loadgen.client import ClientAnswer, ClientFailure, LoadClient, SessionName
from router.lab.loadgen.conversations import TokenConversation
from router.lab.workloads.model import Session, Workload
from tests.bench.real_stack.engine_counters import EngineCounts, add_counts, count_growth, fetch_counters
from tests.bench.real_stack.environment import (
    BenchFailed,
    EngineFacts,
    Environment,
    EnvironmentFactory,
    clear_caches,
    read_engine_facts,
    run_router,
)


class BenchArm(NamedTuple):
    name: str
    policy: str
    pool: bool


ReportProgress = Callable[[BenchArm, int], None]
"""Called with the number of an arm's finished turns."""


def default_arms(cache_aware: str) -> tuple[BenchArm, ...]:
    """The arms of the benchmark; neighbours share an environment, so those without a pool come first."""
    return (
        BenchArm("round robin, no pool", "round_robin", False),
        BenchArm("round robin + pool", "round_robin", True),
        BenchArm("cache-aware + pool", cache_aware, True),
    )


class BenchTurn(NamedTuple):
    """One turn and its outcome."""

    session: int
    turn: int
    prompt_tokens: int
    answer: ClientAnswer | ClientFailure


@dataclass
class ArmOutcome:
    """One arm so far."""

    arm: BenchArm
    turns: list[BenchTurn] = field(default_factory=list)
    took_s: float = 0.0
    engines: EngineCounts | None = None  # what all engines together counted meanwhile
    complete: bool = False  # every session has ended
    notes: list[str] = field(default_factory=list)

    @property
    def answers(self) -> list[ClientAnswer]:
        return [one.answer for one in self.turns if isinstance(one.answer, ClientAnswer)]

    @property
    def failures(self) -> list[ClientFailure]:
        return [one.answer for one in self.turns if isinstance(one.answer, ClientFailure)]


@dataclass
class AgentsReport:
    """All arms so far."""

    workload: Workload
    versions: str
    block_tokens: int = 1  # of the engines, once known
    outcomes: list[ArmOutcome] = field(default_factory=list)
    interrupted: bool = False


async def compare_arms(
    report: AgentsReport,
    chosen: Sequence[BenchArm],
    open_environment: EnvironmentFactory,
    out: Path,
    clock: Clock,
    progress: ReportProgress,
) -> None:
    """Run the arms and fill `report`, whose contents stay when this is cancelled. Routers log to the folder `out`.

    Raises RouterNotStarted when a router does not start, BenchFailed when the engines cannot serve the workload.
    """
    for pool in dict.fromkeys(arm.pool for arm in chosen):
        async with open_environment(pool) as environment:
            facts = await read_engine_facts(environment)
            if report.block_tokens != facts.block_tokens:  # the first environment
                report.versions += f", {facts.version}"
                report.block_tokens = facts.block_tokens
            _check_context(report.workload, facts)
            for arm in [arm for arm in chosen if arm.pool is pool]:
                outcome = ArmOutcome(arm)
                report.outcomes.append(outcome)
                if (failure := await clear_caches(environment, clock)) is not None:
                    outcome.notes.append(f"caches were not emptied: {failure}")
                text_seed = report.workload.seed * 100 + chosen.index(arm)
                log = out / f"router-{len(report.outcomes)}.log"
                async with run_router(environment.router_config, arm.policy, log, clock) as url:
                    await _run_arm(outcome, environment, url, report.workload, text_seed, clock, progress)


def _check_context(workload: Workload, facts: EngineFacts) -> None:
    longest = max(turn.prompt_tokens + turn.output_tokens for one in workload.all_sessions() for turn in one.turns)
    if longest > facts.context_tokens:
        raise BenchFailed(
            f"the longest turn has {longest} tokens, the engines take {facts.context_tokens}: choose a smaller --scale"
        )


async def _run_arm(
    outcome: ArmOutcome,
    environment: Environment,
    url: str,
    workload: Workload,
    text_seed: int,
    clock: Clock,
    progress: ReportProgress,
) -> None:
    async with (
        httpx.AsyncClient(timeout=10.0, trust_env=False) as http,
        LoadClient(url, environment.model, clock) as client,
    ):

        async def count() -> EngineCounts:
            pages = [await fetch_counters(http, engine) for engine in environment.engines]
            return add_counts(map(EngineCounts.read, pages))

        def record(turn: BenchTurn) -> None:
            outcome.turns.append(turn)
            outcome.took_s = clock.now() - start_s
            progress(outcome.arm, len(outcome.turns))

        before = await count()
        start_s = clock.now()
        try:
            await asyncio.gather(*(run_session(client, session, text_seed, record) for session in workload.sessions))
            outcome.complete = True
        finally:
            sent_tokens = sum(answer.prompt_tokens for answer in outcome.answers)
            outcome.engines = await count_growth(clock, count, before, sent_tokens)


async def run_session(
    client: LoadClient,
    session: Session,
    text_seed: int,
    record: Callable[[BenchTurn], None],
    parent: str | None = None,
) -> None:
    """Run a session and its sub-agents to the end or the first failure; `record` is called after every turn."""
    name = SessionName(f"{text_seed}-{session.number}", parent)
    await asyncio.sleep(session.start_s)
    conversation = TokenConversation(text_seed)
    for number, turn in enumerate(session.turns):
        await asyncio.sleep(turn.think_s)
        conversation.prepare(turn)
        prompt_tokens = len(conversation.context)
        answer = await conversation.send(client, name)
        record(BenchTurn(session.number, number, prompt_tokens, answer))
        if isinstance(answer, ClientFailure):
            return
        sub_agents = session.started_by(number)
        await asyncio.gather(*(run_session(client, one, text_seed, record, name.session) for one in sub_agents))
