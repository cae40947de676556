"""The record of a request: all facts about its decisions and their outcome.

A record is written once while the request is served, and read by metrics, the decision log, the admin API and
replays. It keeps references (the view, the decision), not copies: the readable form is made on demand.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from router.scheduling.policy.decision import Decision, ShadowChoice
from router.scheduling.policy.policy import Policy

DEATHS_ALLOWED = 1  # engines that may die on a request, or fail it with a 5xx; one more ends the request
PREFILLS_ALLOWED = 2  # number of failed prefill halves after which a request is no longer split

AttemptEnd = Literal[
    "running",
    "ok",
    "connect",
    "busy",
    "died",
    "failed",
    "stuck",
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
    failed       the engine answered 500, 502 or 504
    stuck        the engine made no progress, and the request was placed elsewhere
    broken       the engine failed after the first byte of its answer
    continued    as `broken`, but the next attempt continued the answer, or the router added the missing end
    client_gone  the client disconnected
    cut          a gateway ended the exchange before the answer was complete, since the engine failed or the client
                 left; or the router stopped and its grace time was over
    deadline     no byte of an answer arrived within `limits.first_byte_timeout_s`
    rejected     the prefill engine of a pair rejected the request (4xx), or the engine did so inside a stream, or
                 the engine did not continue the answer
    prefill      the prefill half of a pair failed; that half's own end is in `PrefillRecord.end`
"""

LegEnd = Literal[
    "running", "ok", "connect", "busy", "died", "failed", "client_gone", "deadline", "rejected", "cancelled"
]
"""How the prefill half of a pair ended: as in `AttemptEnd`, and `failed` after a 5xx or if the KV was dropped,
`cancelled` if the pair ended first.
"""


class PrefillRecord(msgspec.Struct, gc=False):
    """The prefill half of a pair: another instance computes the prompt and hands over the prompt's KV."""

    decision: Decision
    predicted_tokens: int | None  # as in `Attempt`, of the prefill target
    expected_tokens: int | None
    end: LegEnd = "running"
    duration_ms: float | None = None
    cached_tokens: int | None = None  # found cached by the prefill engine
    token_id_passthrough: bool = False  # as in `Attempt`

    @property
    def target(self) -> str:
        """The chosen target."""
        return self.decision.target


class Attempt(msgspec.Struct, gc=False):
    """One attempt at a request: the choice and its outcome."""

    decision: Decision
    predicted_tokens: int | None  # overlap that the index predicted for the chosen target, in any of its tiers
    expected_tokens: int | None  # the same, including prompts just sent to the target
    pool_tokens: int | None = None  # in the shared pool beyond `expected_tokens`; None: unknown or not queried
    end: AttemptEnd = "running"
    prefill: PrefillRecord | None = None  # the prefill half, if the attempt is a pair
    token_id_passthrough: bool = False  # the engine got the prompt's token ids from the router
    continued_tokens: int | None = None  # answer tokens that earlier attempts had sent when this one continued
    continued_by: Literal["ids", "text"] | None = None  # form in which it got them; text may give more tokens
    served: str | None = None  # the endpoint that answered, if a gateway reports another one than the chosen
    panic: bool = False  # no target that can answer was up with a closed breaker, so both conditions were ignored
    down: bool = False  # the target's health probes timed out, which was ignored
    start_ms: float | None = None  # from the request's arrival to the beginning of the choice
    match_ms: float | None = None  # the choice's time to match the prompt; None if the index was not queried
    decide_ms: float | None = None  # the choice's time after matching
    duration_ms: float | None = None  # from the beginning of the choice to the attempt's end


class Stages(msgspec.Struct, gc=False):
    """Milliseconds that the router itself added, by stage; None if the stage did not run."""

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
    """The record of one request, from its choice to its end."""

    id: str
    number: int
    arrived_s: float  # monotonic
    at_wall_s: float
    endpoint: str
    model: str
    stream: bool
    tokens_from: str  # given | local | remote | or why the tokens are unknown
    prompt_tokens_counted: int | None  # by the router, before sending
    stages: Stages
    prefix_end: tuple[int, int, str] | None = None  # see `kvcache.tokenized_prompt.PrefixEnd`
    several_answers: bool = False  # to one prompt: its cached tokens do not show what was cached before it
    client: str | None = None  # the name of its API key
    sender: str | None = None  # the name of its API key, else the client's address; None: unknown
    policy: Policy | None = None  # the policy that decided, as it was then
    arm: str | None = None  # of the experiment; None outside of an experiment
    unit: bytes | None = None  # the experiment unit that drew the arm
    admission_rule: str | None = None  # the rule that admitted it; None: sessions are not counted
    full_targets: list[str] = []  # with fair shares: targets that had no room when it began, so they were avoided
    asked_by: str | None = None  # the token that requested this policy explicitly
    blocks: tuple[int, ...] = ()  # the prompt's block keys at every 512 tokens, with a decision log
    attempts: list[Attempt] = []
    shadows: list[ShadowChoice] = []
    status: int | None = None  # sent to the client
    error: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None  # reported by the engine
    cached_tokens: int | None = None  # reported by the engine
    output_tokens: int | None = None
    preloaded_tokens: int | None = None  # cached tokens that were preloaded and hit for the first time; None: none
    uncontinued: str | None = None  # why a broken answer was not continued; None: it was, or it did not break
    tool_call: bool | None = None  # whether the answer ended in a tool call; None: unknown, or not needed
    poison: bool = False  # more engines died on this request than allowed
    done: bool = False
    body_ms: float | None = None  # from the arrival to the last byte of the body
    prepared_ms: float | None = None  # from the arrival to `at_wall_s`, when all facts for a choice were ready
    trace_id: str | None = None  # in hex; None without tracing
    alias: str | None = None  # the client's name for the model, if it differs
    model_arm: str | None = None  # of the alias's split
    fallback: str | None = None  # why a fallback of the alias answers, an `Unavailability`; None: no fallback does
    revision: str | None = None  # the revision that the instance must have; None: any

    @property
    def target(self) -> str | None:
        """The target of the last attempt; None if there was none."""
        return self.attempts[-1].decision.target if self.attempts else None

    @property
    def deaths(self) -> int:
        """Number of engines that died after they took the request or its prefill half."""
        halves = (attempt.prefill.end for attempt in self.attempts if attempt.prefill is not None)
        return sum(attempt.end == "died" for attempt in self.attempts) + sum(end == "died" for end in halves)

    @property
    def failures(self) -> int:
        """Number of engines that died or answered with a 5xx: the request may be the cause."""
        return self.deaths + sum(attempt.end == "failed" for attempt in self.attempts)

    @property
    def failed_prefills(self) -> int:
        """Number of attempts that ended with a failed prefill half."""
        return sum(attempt.end == "prefill" for attempt in self.attempts)
