"""Presets by name: coding agents in a closed loop, and open loops with shared prompts, with published statistics.

The comment of each preset gives the source of its numbers. `warmroute workload stats` prints the published values
beside those of a seed, and a test compares them.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from router.lab.rng import Rng
from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.distributions import LogNormal, Quantiles, draw_gap_s, draw_uniform
from router.lab.workloads.model import Session, Span, Turn, Workload


class SubAgents(NamedTuple):
    """Sub-agents of a preset's sessions. Each begins with the system prompt that all sessions share."""

    number: LogNormal  # per session
    at_once: int  # that begin together at most, with one answer of their session, which then waits for all of them
    turns: LogNormal
    first_tokens: LogNormal  # whole prompt of the first turn
    input_tokens: LogNormal  # what each later turn adds beside the answer

    def scale(self, tokens: float, turns: float) -> SubAgents:
        """Return the same shapes with medians multiplied."""
        return self._replace(
            turns=self.turns.times(turns),
            first_tokens=self.first_tokens.times(tokens),
            input_tokens=self.input_tokens.times(tokens),
        )


@dataclass(frozen=True, slots=True)
class AgentsWorkload:
    """A preset of coding agents in a closed loop: a context that grows by each answer and each tool result.

    The next turn waits for the answer and for what the agent does with it, so a slow fleet gets fewer requests: an
    open replay of the same requests would pile them up instead.

    Before every later turn the last `rendered_tokens` of the context (mostly the last answer) are rendered anew, so
    they differ from what the engine cached. A session ends early when its context would exceed the cap.
    """

    name: str
    sessions: int
    turns: LogNormal
    shared_tokens: int  # system prompt that all sessions begin with
    first_tokens: LogNormal  # whole prompt of the first turn
    input_tokens: LogNormal  # what each later turn adds beside the answer
    output_tokens: LogNormal
    rendered_tokens: int
    think_s: LogNormal | Quantiles
    cap_tokens: int
    person_s: float | None = None  # pauses from here on are a person's, not a tool's; None: unknown
    sub_agents: SubAgents | None = None

    def scale(
        self, *, tokens: float = 1.0, sessions: float = 1.0, turns: float = 1.0, think: float = 1.0
    ) -> AgentsWorkload:
        """Return the same shapes with medians multiplied: every length by `tokens`, every pause by `think`."""
        return replace(
            self,
            sessions=max(1, round(self.sessions * sessions)),
            turns=self.turns.times(turns),
            shared_tokens=round(self.shared_tokens * tokens),
            first_tokens=self.first_tokens.times(tokens),
            input_tokens=self.input_tokens.times(tokens),
            output_tokens=self.output_tokens.times(tokens),
            rendered_tokens=round(self.rendered_tokens * tokens),
            think_s=self.think_s.times(think),
            cap_tokens=round(self.cap_tokens * tokens),
            person_s=None if self.person_s is None else self.person_s * think,
            sub_agents=None if self.sub_agents is None else self.sub_agents.scale(tokens, turns),
        )

    def workload(self, seed: int) -> Workload:
        """Generate the workload; the same preset and seed always give the same one."""
        rng = Rng(seed)
        shared = Span(rng.bits(), self.shared_tokens)
        sessions = [self._session(number, shared, Rng(rng.bits())) for number in range(self.sessions)]
        if self.sub_agents is not None:
            numbers = count(self.sessions)
            kind = self.sub_agents
            sessions = [self._with_sub_agents(one, kind, shared, Rng(rng.bits()), numbers) for one in sessions]
        return Workload(self.name, seed, tuple(sessions))

    def _with_sub_agents(
        self, session: Session, kind: SubAgents, shared: Span, rng: Rng, numbers: Iterator[int]
    ) -> Session:
        """Return the session with sub-agents, in groups that begin with random answers but the last."""
        one = replace(
            self, turns=kind.turns, first_tokens=kind.first_tokens, input_tokens=kind.input_tokens, sub_agents=None
        )
        turns, sub_agents = list(session.turns), list[Session]()
        total = kind.number.tokens(rng)
        for begun in range(0, total, kind.at_once):
            after = rng.below(max(1, len(turns) - 1))
            turns[after] = turns[after]._replace(tool_call=True)
            for _ in range(min(kind.at_once, total - begun)):
                begins = one._session(next(numbers), shared, Rng(rng.bits()))
                sub_agents.append(begins._replace(after_turn=after))
        return session._replace(turns=tuple(turns), sub_agents=tuple(sub_agents))

    def _session(self, number: int, shared: Span, rng: Rng) -> Session:
        source = Rng(rng.bits())  # a stream of its own, so that scaling lengths changes no length's draw
        planned = self.turns.tokens(rng)
        own = Span(source.bits(), max(1, self.first_tokens.tokens(rng) - shared.tokens))
        turns = [Turn(0, (shared, own), self.output_tokens.tokens(rng), self.think_s.draw(rng))]
        while len(turns) < planned:
            context = turns[-1].prompt_tokens + turns[-1].output_tokens
            cached = max(shared.tokens, context - self.rendered_tokens)
            fresh = Span(source.bits(), context - cached + self.input_tokens.tokens(rng))
            turn = Turn(cached, (fresh,), self.output_tokens.tokens(rng), self.think_s.draw(rng))
            if turn.prompt_tokens + turn.output_tokens > self.cap_tokens:
                break
            turns.append(turn)
        if self.person_s is not None:
            waits_s = [*(turn.think_s for turn in turns[1:]), inf]  # nobody comes back after the last answer
            turns = [
                turn._replace(tool_call=wait_s < self.person_s) for turn, wait_s in zip(turns, waits_s, strict=True)
            ]
        return Session(number, 0.0, tuple(turns))


CODEX = AgentsWorkload(
    # Published: 610 sessions, median 33 turns, first context 12,000, about 2,270 more per turn to about 80,000, cap
    # 200,000, input:output 131, shared system prompt alone 1.7 % of input, ideal hit 94.2 % (96 % without the
    # re-rendered tail of about 640), think time median 5.2 s, p99 81.4 s.
    # Derived: a session of 33 turns asks for 33 x 12,000 + 2,270 x (0 + .. + 32) = 1.59 M tokens, 48,300 a turn; the
    # spread of lengths makes it about 49,500, which gives an answer 49,500 / 131 = 378 and the system prompt
    # 0.017 x 49,500 = 840. Growth is answer + input, so input = 2,270 - 378 = 1,892. Cold per later turn is 1,892
    # (3.8 %) and per session 12,000 - 840 (0.7 %): ideal 95.5 %. The tail adds 640 / 49,500 = 1.3 points: 94.2 %.
    # Think time: sigma = ln(81.4 / 5.2) / 2.326 = 1.18.  The other sigmas are not published and chosen here; turns
    # must vary little, or long sessions weigh in with more than 94.2 % (sigma 0.3 gives 94.8, 0.5 gives 95.7).
    name="codex",
    sessions=610,
    turns=LogNormal(33, 0.15),
    shared_tokens=840,
    first_tokens=LogNormal.of_mean(12_000, 0.3),
    input_tokens=LogNormal.of_mean(1_892, 1.0),
    output_tokens=LogNormal.of_mean(378, 0.8),
    rendered_tokens=640,
    think_s=LogNormal.of_p99(5.2, 81.4),
    cap_tokens=200_000,
)

SCALING = AgentsWorkload(
    # Published (vLLM x Mooncake, 2026-05, the scaling test): 20,000 tokens that all sessions have in common, 10,000 of
    # its own in a first prompt, 2,048 more per turn, answers of 900, 30 turns; 75 sessions on 12 GPUs to 375 on 60;
    # more than 95 % of the input cached. Lengths are constant there; pauses are not mentioned: none.
    # Derived: a session asks for 30 x 30,000 + (2,048 + 900) x (0 + .. + 29) = 2.18 M tokens, of which 10,000 + 29 x
    # 2,048 = 69,392 and the common 20,000 / 75 are cold: 96.8 % ideal, less what whole blocks lose.
    name="scaling",
    sessions=75,
    turns=LogNormal(30, 0),
    shared_tokens=20_000,
    first_tokens=LogNormal(30_000, 0),
    input_tokens=LogNormal(2_048, 0),
    output_tokens=LogNormal(900, 0),
    rendered_tokens=0,
    think_s=LogNormal(0, 0),
    cap_tokens=200_000,
)


CLAUDE = AgentsWorkload(
    # Published gaps between an agent's answer and its next request (vllm-project/router#285, 32 tasks of coding
    # agents): 86.46 % under 1 s, 95.12 % under 10 s. Chosen: the least, 50 ms, and the most, 300 s, near the longest
    # pause of a person in the example below (315 s); pauses of 10 s and more are taken for a person's.
    # Published sizes (Claude Code; callanjfox/kv-cache-tester, docs/trace_replay_tester.md): 642 conversations with
    # sub-agents, 112,176 requests; first prompts 16,512 / 20,160 tokens (p25 / median; above it many are continued
    # conversations), last ones 65,600 / 115,008 / 149,632 (p25 / median / p75); hits 96.9 % (median), 93.6 % (mean).
    # Published turns (huggingface.co/datasets/semianalysisai/cc-traces-weka-042026): 739 conversations, mean 80.2, most
    # 1,178; tools and system prompt of the second one 12,448 + 2,882 = 15,330 tokens.
    # Published answers (TraceLab, arXiv 2606.30560): 186.9 M tokens in 357,161 requests, 523 each.
    # Published sub-agents (callanjfox/agentic-coding-analysis, docs/EXAMPLE_CONVERSATION.md): 4 at once, 14 to 26
    # requests each (mean 21), prompts from 13,231 to 79,500 tokens; their session waits for all of them.
    # Derived: turns with mean 80.2 = median x exp(sigma^2 / 2) and 1,178 three sigmas up: 44 and 1.1. First prompts:
    # sigma = ln(20,160 / 16,512) / 0.6745 = 0.3. Growth = (115,008 - 20,160) / 43 = 2,206, less the answer: 1,683. With
    # a cap of 160,000 the quartiles of the last prompt come out near those published, and a session has 41 requests:
    # (112,176 / 642 - 41) / 21 = 6.3 sub-agents. They grow by (79,500 - 13,231) / 20 = 3,313 a turn: 2,790 and answer.
    # Chosen: spreads (sigma) that are not published. Sub-agents begin with their session's system prompt and tools, as
    # hpfreilabs.com/blog/anatomy-of-claude-code-session found; in the example they have fewer tools, and 3,200 more
    # tokens of their own.
    name="claude",
    sessions=642,
    turns=LogNormal(44, 1.1),
    shared_tokens=15_330,
    first_tokens=LogNormal(20_160, 0.3),
    input_tokens=LogNormal.of_mean(1_683, 1.0),
    output_tokens=LogNormal.of_mean(523, 1.0),
    rendered_tokens=0,
    think_s=Quantiles(((0.0, 0.05), (0.8646, 1.0), (0.9512, 10.0), (1.0, 300.0))),
    cap_tokens=160_000,
    person_s=10.0,
    sub_agents=SubAgents(
        number=LogNormal.of_mean(6.3, 0.6),
        at_once=4,
        turns=LogNormal.of_mean(21, 0.25),
        first_tokens=LogNormal(18_530, 0.02),
        input_tokens=LogNormal.of_mean(2_790, 1.0),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixWorkload:
    """A preset of an open loop with shared prompts: system prompts, tools, customers' documents.

    Requests arrive as a Poisson process. Each begins with one of `prefixes` shared prompts, drawn by popularity, or
    with none, and goes on with tokens of its own. Times, choices and lengths have separate random generators:
    another rate or scale leaves the rest unchanged.
    """

    name: str
    requests: int
    per_s: float  # mean requests per second
    prefixes: int  # different shared prompts
    zipf: float  # the k-th of them is drawn k^-zipf as often as the first; 0: all equally often
    prefixed: float  # share of requests that begin with one
    prefix_tokens: LogNormal  # drawn once for each
    own_tokens: LogNormal  # after a shared prompt, of one request only
    alone_tokens: LogNormal  # of a request without one
    output_tokens: LogNormal

    def scale(self, *, tokens: float = 1.0) -> SharedPrefixWorkload:
        """Return the same shapes with every length multiplied by `tokens`."""
        return replace(
            self,
            prefix_tokens=self.prefix_tokens.times(tokens),
            own_tokens=self.own_tokens.times(tokens),
            alone_tokens=self.alone_tokens.times(tokens),
            output_tokens=self.output_tokens.times(tokens),
        )

    def workload(self, seed: int) -> Workload:
        """Generate the workload; the same preset and seed always give the same one."""
        rng = Rng(seed)
        times, choices, lengths, sources = (Rng(rng.bits()) for _ in range(4))
        prefixes = [Span(sources.bits(), self.prefix_tokens.tokens(lengths)) for _ in range(self.prefixes)]
        popularity = list(accumulate((rank + 1) ** -self.zipf for rank in range(self.prefixes)))
        arrivals, at_s = OpenArrivals(), 0.0
        for _ in range(self.requests):
            prefix = _draw(prefixes, popularity, choices) if draw_uniform(choices) < self.prefixed else ()
            own = (self.own_tokens if prefix else self.alone_tokens).tokens(lengths)
            arrivals.add(at_s, (*prefix, Span(sources.bits(), own)), self.output_tokens.tokens(lengths))
            at_s += draw_gap_s(times, self.per_s)
        return Workload(self.name, seed, arrivals, is_closed=False)


def _draw(prefixes: Sequence[Span], popularity: Sequence[float], rng: Rng) -> tuple[Span]:
    return (prefixes[bisect(popularity, draw_uniform(rng) * popularity[-1])],)


GROUPS = SharedPrefixWorkload(
    # Published (llm-d, "KV-Cache Wins You Can See", 2025-09): 150 groups with 6,000 shared tokens each, queries of
    # 1,200 of their own, answers of 1,000, 3 to 60 requests per second on 8 instances. Lengths are constant there.
    # Chosen: every request draws its group at random, all equally likely. Derived ideal: 6,000 / 7,200 = 83.3 % once
    # each group was seen, which costs 150 of the requests.
    name="groups",
    requests=6_000,
    per_s=20.0,
    prefixes=150,
    zipf=0.0,
    prefixed=1.0,
    prefix_tokens=LogNormal(6_000, 0),
    own_tokens=LogNormal(1_200, 0),
    alone_tokens=LogNormal(1_200, 0),
    output_tokens=LogNormal(1_000, 0),
)

TOOLS = SharedPrefixWorkload(
    # Published (Mooncake, FAST'25, the trace "tool & agent"): 23,608 requests in an hour, in the mean 8,596 tokens in
    # and 182 out, and 59 % of the input is in an infinite cache of blocks of 512 tokens; few blocks are hit by
    # thousands of requests, most by none.
    # Chosen: 12 prompts of about 6,450 tokens, begun by 80 % of the requests, the k-th k^-1 as often as the first.
    # Derived: own = (8,596 - 0.2 x 9,000) / 0.8 - 6,450 = 2,045 after a shared prompt. A shared prompt's last block is
    # half full on average: 0.8 x (6,450 - 256) / 8,596 = 57.6 % in blocks of 512, 60 % in blocks of 16.
    name="tools",
    requests=23_608,
    per_s=23_608 / 3_600,
    prefixes=12,
    zipf=1.0,
    prefixed=0.8,
    prefix_tokens=LogNormal.of_mean(6_450, 0.03),
    own_tokens=LogNormal.of_mean(2_045, 0.8),
    alone_tokens=LogNormal.of_mean(9_000, 0.8),
    output_tokens=LogNormal.of_mean(182, 1.0),
)

Preset = AgentsWorkload | SharedPrefixWorkload
"""A family of workloads: the same preset and seed always give the same `workload(seed)`."""

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {preset.name: preset for preset in (CODEX, CLAUDE, SCALING, GROUPS, TOOLS)}
)

PUBLISHED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "codex": {
            "sessions": "610",
            "turns, median": "33",
            "first prompt, mean": "12,000",
            "growth per turn, mean": "about 2,270",
            "last prompt, median": "about 80,000",
            "longest prompt": "cap 200,000",
            "input per output": "131",
            "ideal hits": "94.2 %",
            "shared by sessions": "1.7 %",
            "think time, median": "5.2 s",
        },
        "claude": {
            "sessions": "642",
            "sub-agents per session, mean": "4 in the example",
            "requests": "112,176",
            "pauses under 1 s": "86.5 %",
            "pauses under 10 s": "95.1 %",
            "first prompt, mean": "20,160 (median)",
            "last prompt, median": "115,008",
            "output, mean": "523",
            "ideal hits": "96.9 % (median)",
        },
        "scaling": {
            "sessions": "75 per 12 GPUs",
            "turns, median": "30",
            "first prompt, mean": "30,000",
            "growth per turn, mean": "2,948",
            "output, mean": "900",
            "ideal hits": "> 95 %",
        },
        "groups": {"rate": "3 to 60 /s", "input, mean": "7,200", "output, mean": "1,000"},
        "tools": {
            "requests": "23,608",
            "rate": "6.56 /s",
            "input, mean": "8,596",
            "output, mean": "182",
            "ideal hits": "59 %",
        },
    }
)
"""By preset and by the row of the table that `warmroute workload stats` prints."""
