"""What a choice means for answers that stream: those that a prefill holds up, and the request's own.

An engine computes prompts and decodes answers in the same steps and keeps both in the same memory. So each millisecond
of prefill is one in which all who stream there stand still; an answer comes the slower, the more and longer contexts
are decoded beside it; and where they fill the memory, nobody new begins before some of them have ended.

    held up     each answer that streams at the target stands still while the request's work is done
    streaming   the request's own answer: so many tokens, a decode step each
    room        what the prompt lacks of memory, as a share of it: that share of an answer passes until it is free

A first token is awaited by somebody who has nothing yet, a token of an answer that streams by somebody who is reading:
those milliseconds weigh less, and one weight does for both. It was swept on simulated fleets (`router/README.md`): with
two thirds of it large fleets of agents are less even, with two and a half times short prompts wait where few stream
rather than begin where many do; none at all loses every tenth request of agents in a closed loop, and full weight
doubles the P90 of busy open workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scorers.contract import Row, Speed

STREAMED = 0.03
"""A second of anybody's answer, in seconds of waiting for a first token."""


class StreamLoad(Protocol):
    """As in the contract, or whoever counts it."""

    @property
    def requests(self) -> int: ...
    @property
    def prefilling(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...


def answer_tokens(lately: float | None, wanted: int | None) -> float:
    """How long an answer will be: as they were `lately`, and no longer than is `wanted`. Unknown: 0, so that neither
    its streaming nor the memory matters.
    """
    return 0.0 if lately is None else lately if wanted is None else min(lately, wanted)


def stall_cost(load: StreamLoad) -> float:
    """What a millisecond of work costs those who stream there, in milliseconds of waiting."""
    return STREAMED * max(0, load.requests - load.prefilling)


def step_ms(load: StreamLoad, speed: Speed) -> float:
    """A token of everybody's answer there. Without a decode speed: 0."""
    return 0.0 if speed.decode is None else speed.decode.step_ms(load.requests, load.context_tokens)


def per_step(context_tokens: int, capacity_tokens: int | None, prompt_tokens: int) -> float:
    """What each step of an answer costs where `context_tokens` are live, in steps of waiting: its streaming, and the
    wait for room. An unknown capacity has room.
    """
    if not capacity_tokens or (lacks := context_tokens + prompt_tokens - capacity_tokens) <= 0:
        return STREAMED
    return STREAMED + lacks / capacity_tokens


def served_ms(
    rows: Sequence[Row], waits: Sequence[float], works: Sequence[float], prompt_tokens: int, answer: float
) -> list[float]:
    """What each row costs a request that waits and works so long there, those who stream there, and its own answer of
    `answer` tokens. The three above for every row in one pass, to the last bit, at a third of the time: this is asked
    of every candidate of every request, and of idle ones most is 0.
    """
    served: list[float] = []
    for row, wait, work in zip(rows, waits, works, strict=True):
        load = row.load
        if (requests := load.requests) and (streaming := requests - load.prefilling) > 0:
            work *= 1 + STREAMED * streaming
        ms = wait + work
        if answer and (decode := row.speed.decode) is not None:
            context_tokens, capacity_tokens = load.context_tokens, row.capacity_tokens
            step_ms = decode.step_ms(requests, context_tokens) if requests or context_tokens else decode.base_ms
            if capacity_tokens and (lacks := context_tokens + prompt_tokens - capacity_tokens) > 0:
                ms += answer * step_ms * (STREAMED + lacks / capacity_tokens)
            else:
                ms += answer * step_ms * STREAMED
        served.append(ms)
    return served
