"""What clients ask, as values: sessions of turns with their sizes, pauses and shared beginnings, all from one seed.

A workload holds no text and no tokens, only names for them: a `Span` is so many tokens of a numbered source, and
`token_ids` makes the same ids of it every time. Prompts share a prefix exactly where their spans do. So one workload
can be counted (`ideal.py`), simulated, and sent to real engines (`router/drive`), closed loop (the next turn waits for
the answer and a pause) or open loop (sessions of one turn, each at its `start_s`).

    prompt of a turn = the first `kept_tokens` of the session's context + `fresh`
    context after it = prompt + answer

It must know no engine and no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import shake_128
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple, Protocol

from router.sim.dice import Dice


class Span(NamedTuple):
    """The first `tokens` tokens of a source; one source is one endless text."""

    source: int
    tokens: int


class Turn(NamedTuple):
    """One request. `think_s` passes between the answer before it (or the session's start) and this request."""

    kept_tokens: int
    fresh: tuple[Span, ...]
    output_tokens: int
    think_s: float

    @property
    def prompt_tokens(self) -> int:
        return self.kept_tokens + sum(span.tokens for span in self.fresh)


class Session(NamedTuple):
    number: int
    start_s: float
    turns: tuple[Turn, ...]


class Workload(NamedTuple):
    name: str
    seed: int
    sessions: tuple[Session, ...]

    @property
    def turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


class Preset(Protocol):
    """A family of workloads with stated statistics."""

    def workload(self, seed: int) -> Workload:
        """Same preset and seed, same workload."""


class LogNormal(NamedTuple):
    """A positive quantity whose logarithm is normal; sigma 0: always the median."""

    median: float
    sigma: float

    @classmethod
    def of_mean(cls, mean: float, sigma: float) -> LogNormal:
        """mean = median x exp(sigma^2 / 2)"""
        return cls(mean * math.exp(-sigma * sigma / 2), sigma)

    @classmethod
    def of_p99(cls, median: float, p99: float) -> LogNormal:
        """p99 = median x exp(2.326 sigma), 2.326 being the 99th percentile of the standard normal"""
        return cls(median, math.log(p99 / median) / NormalDist().inv_cdf(0.99))

    def times(self, factor: float) -> LogNormal:
        return LogNormal(self.median * factor, self.sigma)

    def draw(self, dice: Dice) -> float:
        uniform = ((dice.bits() >> 12) + 0.5) / (1 << 52)  # in (0, 1), exactly representable at both ends
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(uniform))

    def tokens(self, dice: Dice) -> int:
        return max(1, round(self.draw(dice)))


@dataclass(frozen=True, slots=True)
class Agents:
    """Coding agents in a closed loop: a context that grows by each answer and each tool result.

    Before every later turn the last `rendered_tokens` of the context (mostly the answer just given) are rendered anew
    and so are no longer what the engine cached. A session ends early where its context would pass the cap.
    """

    name: str
    sessions: int
    turns: LogNormal
    shared_tokens: int  # system prompt that all sessions begin with
    first_tokens: LogNormal  # whole prompt of the first turn
    input_tokens: LogNormal  # what each later turn adds beside the answer
    output_tokens: LogNormal
    rendered_tokens: int
    think_s: LogNormal
    cap_tokens: int

    def scaled(self, *, tokens: float = 1.0, sessions: float = 1.0, turns: float = 1.0, think: float = 1.0) -> Agents:
        """The same shapes with medians multiplied: every length by `tokens`, every pause by `think`."""
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
        )

    def workload(self, seed: int) -> Workload:
        chance = Dice(seed)
        shared = Span(chance.bits(), self.shared_tokens)
        sessions = (self._session(number, shared, Dice(chance.bits())) for number in range(self.sessions))
        return Workload(self.name, seed, tuple(sessions))

    def _session(self, number: int, shared: Span, dice: Dice) -> Session:
        source = Dice(dice.bits())  # a stream of its own, so that scaling lengths changes no length's draw
        count = self.turns.tokens(dice)
        own = Span(source.bits(), max(1, self.first_tokens.tokens(dice) - shared.tokens))
        turns = [Turn(0, (shared, own), self.output_tokens.tokens(dice), self.think_s.draw(dice))]
        while len(turns) < count:
            context = turns[-1].prompt_tokens + turns[-1].output_tokens
            kept = max(shared.tokens, context - self.rendered_tokens)
            fresh = Span(source.bits(), context - kept + self.input_tokens.tokens(dice))
            turn = Turn(kept, (fresh,), self.output_tokens.tokens(dice), self.think_s.draw(dice))
            if turn.prompt_tokens + turn.output_tokens > self.cap_tokens:
                break
            turns.append(turn)
        return Session(number, 0.0, tuple(turns))


CODEX = Agents(
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

PRESETS: Mapping[str, Preset] = MappingProxyType({"codex": CODEX})


def token_ids(span: Span, seed: int, vocabulary: range) -> list[int]:
    """The span's ids within the vocabulary; another seed is another text of the same shape.

    A longer span of the same source begins with a shorter one's ids. SHAKE-128 is a stream of uniform bytes that a
    name alone determines, at memory speed.
    """
    name = seed.to_bytes(16, "big", signed=True) + span.source.to_bytes(8, "big")
    words = array("I", shake_128(name).digest(4 * span.tokens))
    low, size = vocabulary.start, len(vocabulary)
    return [low + word % size for word in words]
