"""What a choice means for answers that stream: those that a prefill holds up, and the request's own.

An engine computes prompts and decodes answers in the same steps, so every millisecond of prefill is a millisecond in
which all who stream there stand still; and an answer comes the slower the more, and the longer, contexts are decoded
beside it. A first token is awaited by a person or an agent who has nothing yet; a token of an answer that streams by
somebody who is reading: these milliseconds weigh less.

    held up     each answer that streams at the target stands still while the request's work is done
    streaming   the request's own answer: so many tokens, a decode step each

The weights were swept on simulated fleets, against throughput and P90 TTFT alike (`router/README.md`): half or twice of
either costs a few percent, none of them loses every tenth request of agents in a closed loop, and full weight doubles
the P90 of busy open ones.
"""

from __future__ import annotations

from typing import Protocol

from scorers.contract import Speed

HELD_UP = 0.1  # a second by which another answer is held up, in seconds of waiting for a first token
STREAMED = 0.05  # a second of the request's own answer


class Load(Protocol):
    """As in the contract, or whoever counts it."""

    @property
    def requests(self) -> int: ...
    @property
    def prefilling(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...


def held_up(load: Load) -> float:
    """What a millisecond of work costs those who stream there, in milliseconds of waiting."""
    return HELD_UP * max(0, load.requests - load.prefilling)


def answer_tokens(lately: float | None, wanted: int | None) -> float:
    """How long an answer will be: as they were `lately`, and no longer than is `wanted`. Unknown: 0, so that it does
    not matter where it streams.
    """
    return 0.0 if lately is None else lately if wanted is None else min(lately, wanted)


def streamed_ms_per_token(load: Load, speed: Speed) -> float:
    """What a token of an answer there costs, in milliseconds of waiting. Without a decode speed: 0."""
    return 0.0 if speed.decode is None else STREAMED * speed.decode.step_ms(load.requests, load.context_tokens)
