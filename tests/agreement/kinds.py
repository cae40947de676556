"""The workloads of the cells by name: presets, variants of them, the public trace, and tenants that share a fleet.

    conversation            the public trace
    tools, groups           the presets
    few, many               8 shared prompts that every cache holds, 1,500 that all caches together do not hold
    few-zipf1.4             8 shared prompts of which one takes half of the requests
    zipf1, zipf1.4          150 shared prompts, the k-th drawn k^-1 and k^-1.4 as often as the first
    answers-1k, answers-4k  prompts of 1,500 tokens, answers of 1,000 and 4,000 in the mean
    short                   prompts of 400 tokens of which nothing comes again, answers of 250
    codex, claude, scaling  agents in a closed loop, the presets
    mixed                   codex agents, and beside them a batch job of requests of which nothing comes again

Lengths that no source gives are chosen: they are round numbers of the kind that chats, extraction and reasoning have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from router.lab.rng import Rng
from router.lab.workloads.distributions import LogNormal, draw_gap_s
from router.lab.workloads.model import Session, Turn, Workload, session_contexts
from router.lab.workloads.presets import CODEX, GROUPS, TOOLS, SharedPrefixWorkload

LARGE = 1_000_000
"""KV tokens of an instance: 24 coding agents at once are then about as much as its cache holds."""

CONVERSATIONS, SHARED, UNSHARED, OF_AGENTS = FAMILIES = ("conversations", "shared prompts", "nothing shared", "agents")


class OpenKind(NamedTuple):
    """An open workload. `preset` None: the public trace."""

    preset: SharedPrefixWorkload | None
    family: str  # of the chart's colours
    kv_tokens: int | None = None  # of an instance; None: those of the profile


class AgentsKind(NamedTuple):
    """Agents, whose cells name their load by sessions per instance. KV memory is `LARGE`."""

    preset: str
    context_tokens: int  # mean prompt
    edge: int  # sessions per instance from which their contexts outgrow the caches


CHATS = replace(GROUPS, name="chats", own_tokens=LogNormal.of_mean(600, 0.8), output_tokens=LogNormal.of_mean(300, 0.8))
ALONE = replace(GROUPS, prefixes=1, prefixed=0.0)

OPEN: dict[str, OpenKind] = {
    "conversation": OpenKind(None, CONVERSATIONS, LARGE),
    "tools": OpenKind(TOOLS, SHARED, LARGE),
    "groups": OpenKind(GROUPS, SHARED),
    "few": OpenKind(replace(CHATS, prefixes=8), SHARED),
    "few-zipf1.4": OpenKind(replace(CHATS, prefixes=8, zipf=1.4), SHARED),
    "many": OpenKind(replace(CHATS, prefixes=1500, prefix_tokens=LogNormal.of_mean(3_000, 0.5)), SHARED),
    "zipf1": OpenKind(replace(CHATS, zipf=1.0), SHARED),
    "zipf1.4": OpenKind(replace(CHATS, zipf=1.4), SHARED),
    "answers-1k": OpenKind(
        replace(ALONE, alone_tokens=LogNormal.of_mean(1_500, 0.8), output_tokens=LogNormal.of_mean(1_000, 0.6)),
        UNSHARED,
    ),
    "answers-4k": OpenKind(
        replace(ALONE, alone_tokens=LogNormal.of_mean(1_500, 0.8), output_tokens=LogNormal.of_mean(4_000, 0.6)),
        UNSHARED,
    ),
    "short": OpenKind(
        replace(ALONE, alone_tokens=LogNormal.of_mean(400, 0.8), output_tokens=LogNormal.of_mean(250, 0.6)),
        UNSHARED,
    ),
}

AGENTS: dict[str, AgentsKind] = {
    "codex": AgentsKind("codex", 46_000, 24),
    "claude": AgentsKind("claude", 75_000, 10),
    "scaling": AgentsKind("scaling", 73_000, 14),
    "mixed": AgentsKind("codex", 46_000, 20),
}

BATCH = replace(ALONE, alone_tokens=LogNormal.of_mean(4_000, 0.8), output_tokens=LogNormal.of_mean(400, 0.6))
"""The batch job of `mixed`, beside agents who need a fifth less memory than they could have without it."""

SESSION_S = 600.0
"""What a session of `codex` lasts about on a busy instance: 33 turns of 8 s of answer and 10 s of pause in the mean."""


def family(workload: str) -> str:
    """The family of a workload, one of `FAMILIES`."""
    return OF_AGENTS if workload in AGENTS else OPEN[workload].family


def share_fleet(at_once: int, batch_per_s: float, until_s: float, seed: int) -> Workload:
    """Return about `at_once` agents in mid-session, new ones as others end, and a batch job at `batch_per_s`.

    All begin at their `start_s`. The first agents begin within 30 s, each at a random turn.
    """
    rng = Rng(seed)
    following = round(at_once * until_s / SESSION_S)
    agents = replace(CODEX, sessions=at_once + following).workload(seed).sessions
    sessions = [
        begin_at(session, rng.below(len(session.turns)), len(agents) + session.number, 30.0 * number / at_once)
        for number, session in enumerate(agents[:at_once])
    ]
    at_s = 0.0
    for session in agents[at_once:]:
        at_s += draw_gap_s(rng, at_once / SESSION_S)
        sessions.append(session._replace(start_s=at_s))
    batch = replace(BATCH, requests=max(1, round(batch_per_s * until_s)), per_s=batch_per_s).workload(rng.bits())
    first = 2 * len(agents)
    sessions += [session._replace(number=first + session.number) for session in batch.sessions]
    sessions.sort(key=lambda session: session.start_s)
    return Workload("mixed", seed, tuple(sessions))


def begin_at(session: Session, turn: int, number: int, start_s: float) -> Session:
    """Return the rest of a session without sub-agents, as session `number`: its first prompt is that of `turn`."""
    prompt, _ = session_contexts(session)[turn]
    first = session.turns[turn]
    begun = Turn(0, tuple(prompt), first.output_tokens, 0.0, first.tool_call)
    return Session(number, start_s, (begun, *session.turns[turn + 1 :]))
