"""The record of a request: everything about its decisions and their outcome.

Written once while the request is served, read by metrics, the decision log, the admin API and replays. A record
keeps references (the view, the decision), not copies: the readable form is made on demand.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from router.scheduling.policy.decision import Decision, ShadowChoice
from router.scheduling.policy.policy import Policy

DEATHS_ALLOWED = 1  # of engines that took the request; one more ends it
PREFILLS_ALLOWED = 2  # failed prefill halves after which a request is no longer split

AttemptEnd = Literal[
    "running",
    "ok",
    "connect",
    "busy",
    "died",
    "broken",
    "continued",
    "client_gone",
    "cut",
    "deadline",
    "rejected",
    "prefill",
]
"""How an attempt at a request ended.

    running      not yet
    ok           the whole answer was relayed
    connect      the engine was not reached
    busy         the engine answered 503
    died         the engine closed the connection before the first byte of its answer
    broken       the engine failed after the first byte of its answer
    continued    the same, and the answer was carried on: by the next attempt, or by the router if only its end lacked
    client_gone  the client disconnected
    cut          a gateway ended the exchange before the answer was whole: the engine failed, or the client left; or the
                 router stopped, and its grace time was over
    deadline     no byte of an answer within `limits.first_byte_timeout_s`
    rejected     the prefill engine of a pair found fault with the request (4xx), or the engine did so inside a stream,
                 or it carried no answer on
    prefill      the prefill half of a pair failed; its own end is in `PrefillRecord.end`
"""

LegEnd = Literal[
    "running", "ok", "connect", "busy", "died", "failed", "client_gone", "deadline", "rejected", "cancelled"
]
"""How the prefill half of a pair ended: as in `AttemptEnd`, `failed` for a 5xx or KV that was dropped, and
`cancelled` when the pair ended first.
"""


class PrefillRecord(msgspec.Struct, gc=False):
    """The prefill half of a pair: another instance computes the prompt and hands its KV over."""

    decision: Decision
    predicted_tokens: int | None  # as in `Attempt`, of the prefill target
    expected_tokens: int | None
    end: LegEnd = "running"
    duration_ms: float | None = None
    cached_tokens: int | None = None  # delivered there
    token_id_passthrough: bool = False  # as in `Attempt`

    @property
    def target(self) -> str:
        """The chosen target."""
        return self.decision.target


class Attempt(msgspec.Struct, gc=False):
    """One choice and its outcome."""

    decision: Decision
    predicted_tokens: int | None  # overlap that the index predicted for the chosen target, in any tier of its own
    expected_tokens: int | None  # the same, counting what was just sent there
    pool_tokens: int | None = None  # what the shared pool holds beyond that; None if unknown or not queried
    end: AttemptEnd = "running"
    prefill: PrefillRecord | None = None  # the half that computed the prompt, of a pair
    token_id_passthrough: bool = False  # the engine got the prompt's token ids from the router
    continued_tokens: int | None = None  # of the answer that earlier attempts had sent when this one carried it on
    continued_by: Literal["ids", "text"] | None = None  # how it got them; by text they may be more
    served: str | None = None  # the endpoint that answered, where a gateway says so and it is another one
    panic: bool = False  # no target that could answer was up with a closed breaker, so what kept them out was ignored
    down: bool = False  # the target's health probes timed out, which was ignored
    start_ms: float | None = None  # when its choice began, after the request's arrival
    match_ms: float | None = None  # of the choice; None if the index was not asked
    decide_ms: float | None = None  # of the choice, after that
    duration_ms: float | None = None  # from the beginning of the choice to the attempt's end


class Stages(msgspec.Struct, gc=False):
    """Milliseconds that the router itself added, by stage; None where the stage did not run."""

    parse_ms: float | None = None
    tokens_ms: float | None = None
    keys_ms: float | None = None
    pool_ms: float | None = None
    match_ms: float | None = None
    decide_ms: float | None = None
    connect_ms: float | None = None
    admission_ms: float | None = None  # time in admission control
    wake_ms: float | None = None  # time until an instance with the model was ready


class Record(msgspec.Struct, gc=False):
    """One request, from the choice to the end."""

    id: str
    number: int
    arrived_s: float  # monotonic
    at_wall_s: float
    endpoint: str
    model: str
    stream: bool
    tokens_from: str  # given | local | remote | or why they are unknown
    prompt_tokens_counted: int | None  # by us, before sending
    stages: Stages
    several_answers: bool = False  # to one prompt: counts of cached tokens say nothing of what was there before
    client: str | None = None  # the name of its API key
    sender: str | None = None  # that name, else the client's address; None: unknown
    policy: Policy | None = None  # the one that decided, as it was then
    arm: str | None = None  # of the experiment; None outside of one
    unit: bytes | None = None  # the experiment unit that drew the arm
    admission_rule: str | None = None  # that admitted it; None: sessions are not counted
    full_targets: list[str] = []  # with fair shares: that had no room when it began, so it was not to go there
    asked_by: str | None = None  # the token that requested this policy explicitly
    blocks: tuple[int, ...] = ()  # the prompt's block keys at every 512 tokens, with a decision log
    attempts: list[Attempt] = []
    shadows: list[ShadowChoice] = []
    status: int | None = None  # sent to the client
    error: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None  # by the engine
    cached_tokens: int | None = None  # delivered
    output_tokens: int | None = None
    preloaded_tokens: int | None = None  # of the cached: loaded ahead, and hit here first; None: nothing was
    uncontinued: str | None = None  # why an answer that broke off was not carried on; None: it was, or did not break
    tool_call: bool | None = None  # whether the answer ended in a tool call; None: unknown, or not needed
    poison: bool = False  # more engines died on it than allowed
    done: bool = False
    body_ms: float | None = None  # arrival to the last byte of the body
    prepared_ms: float | None = None  # arrival to `at_wall_s`, when all was ready for a choice
    trace_id: str | None = None  # in hex; None without tracing
    alias: str | None = None  # the client's name for the model, where it is another one
    model_arm: str | None = None  # of the alias's split
    fallback: str | None = None  # why one of the alias's fallbacks answers, an `Unavailability`; None: none does
    revision: str | None = None  # that the instance must have; None: any

    @property
    def target(self) -> str | None:
        """The target of the last attempt; None if there was none."""
        return self.attempts[-1].decision.target if self.attempts else None

    @property
    def deaths(self) -> int:
        """Number of engines that died after they took the request, or a pair's prefill half of it."""
        halves = (attempt.prefill.end for attempt in self.attempts if attempt.prefill is not None)
        return sum(attempt.end == "died" for attempt in self.attempts) + sum(end == "died" for end in halves)

    @property
    def failed_prefills(self) -> int:
        """Number of attempts that ended with a failed prefill half."""
        return sum(attempt.end == "prefill" for attempt in self.attempts)
