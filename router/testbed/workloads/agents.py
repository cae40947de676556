"""Coding agents in a closed loop: long sessions whose context grows turn by turn, with pauses in between.

The next turn waits for the answer and for what the agent does with it, so a slow fleet gets fewer requests: an open
replay of the same requests would pile them up instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.testbed.rng import Rng
from router.testbed.workloads.distributions import LogNormal
from router.testbed.workloads.model import Session, Span, Turn, Workload


@dataclass(frozen=True, slots=True)
class AgentsWorkload:
    """A preset of coding agents: a context that grows by each answer and each tool result.

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
    think_s: LogNormal
    cap_tokens: int

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
        )

    def workload(self, seed: int) -> Workload:
        """Generate the workload; the same preset and seed always give the same one."""
        rng = Rng(seed)
        shared = Span(rng.bits(), self.shared_tokens)
        sessions = (self._session(number, shared, Rng(rng.bits())) for number in range(self.sessions))
        return Workload(self.name, seed, tuple(sessions))

    def _session(self, number: int, shared: Span, rng: Rng) -> Session:
        source = Rng(rng.bits())  # a stream of its own, so that scaling lengths changes no length's draw
        count = self.turns.tokens(rng)
        own = Span(source.bits(), max(1, self.first_tokens.tokens(rng) - shared.tokens))
        turns = [Turn(0, (shared, own), self.output_tokens.tokens(rng), self.think_s.draw(rng))]
        while len(turns) < count:
            context = turns[-1].prompt_tokens + turns[-1].output_tokens
            cached = max(shared.tokens, context - self.rendered_tokens)
            fresh = Span(source.bits(), context - cached + self.input_tokens.tokens(rng))
            turn = Turn(cached, (fresh,), self.output_tokens.tokens(rng), self.think_s.draw(rng))
            if turn.prompt_tokens + turn.output_tokens > self.cap_tokens:
                break
            turns.append(turn)
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
