"""Cost of a choice for streaming answers: those that a prefill delays, and the request's own.

An engine computes prompts and decodes answers in the same steps and keeps both in the same memory. So each
millisecond of prefill stalls every streaming answer at the target; an answer streams more slowly the more contexts
are decoded beside it and the longer they are; and where contexts fill the memory, no new request begins before some
answers have ended.

    stalls      each answer that streams at the target stalls while the request's work is done
    streaming   the request's own answer: a decode step per token
    memory      the memory that the request lacks, as a share of the target's: a quarter of that share of an answer
                passes until it is free. Live requests use memory, where a block that several share counts once. In
                addition, memory is needed for the part of the prompt that the GPU does not hold yet, the whole
                answer, and half an answer for each request at the target: at any moment answers are half done on
                average. The factor is a quarter because other answers end while these grow

A user who waits for a first token has nothing yet, while a user whose answer streams is reading: milliseconds of
streaming weigh less, and one weight serves for the stalls and for the own answer. The weight was swept on simulated
fleets (`docs/design/decisions.md`): with two thirds of it, large fleets of agents are less even; with two and a
half times of it, short prompts wait where few answers stream rather than begin where many do; with none at all,
every tenth request of agents in a closed loop is lost, and full weight doubles the P90 of busy open workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scorers.blocks import kept_tokens, used_tokens
from scorers.contract import Decode, Row, Speed

STREAMED: Final = 0.03
"""Weight of a second of a streaming answer, in seconds of waiting for a first token."""

SHORTAGE: Final = 0.25
"""Seconds of waiting per second of an answer if all of a target's memory is lacking, found by sweep; less in
proportion if only a part is lacking.
"""


def answer_tokens(recent: float | None, cap: int | None) -> float:
    """Return the expected tokens of an answer: the mean of recent answers, at most the client's cap. 0 if no answer
    has been seen yet, so that neither streaming nor memory of the answer counts.
    """
    return 0.0 if recent is None else recent if cap is None else min(recent, cap)


def growth_tokens(requests: int, answer: float) -> float:
    """Return the tokens by which the answers of `requests` running requests and of one more grow until they end."""
    return answer * (1 + requests / 2)


def stall_cost(requests: int, prefilling: int) -> float:
    """Return the cost of a millisecond of work to the answers that stream beside it, in milliseconds of waiting.
    `requests` are at the target, of which `prefilling` do not stream yet.
    """
    return STREAMED * max(0, requests - prefilling)


def step_ms(speed: Speed, requests: int, context_tokens: int) -> float:
    """Return the milliseconds of a decode step of such a batch; 0 if the decode speed is unknown."""
    return 0.0 if speed.decode is None else decode_ms(speed.decode, requests, context_tokens)


def decode_ms(decode: Decode, requests: int, context_tokens: int) -> float:
    """Return `decode.step_ms(requests, context_tokens)`: compiled code calls a function faster than that method."""
    return decode.base_ms + decode.us_per_request * requests / 1000 + decode.ns_per_context_token * context_tokens / 1e6


def served_ms(
    rows: Sequence[Row], waits: list[float], works: list[float], prompt_tokens: int, answer: float
) -> list[float]:
    """Return the sum for each row of its wait, its work, the stalls that the work causes, and the request's own
    answer of `answer` tokens, in ms. This runs for every candidate of every request, and on idle targets most terms
    are 0: one pass with everything inlined takes a third of the time of a function per term. A row of unknown
    capacity is assumed to have enough memory.
    """
    served: list[float] = []
    for i, row in enumerate(rows):
        load, work = row.load, works[i]
        if (requests := load.requests) and (streaming := requests - load.prefilling) > 0:
            work *= 1 + STREAMED * streaming
        ms = waits[i] + work
        if answer and (decode := row.speed.decode) is not None:
            context_tokens, capacity_tokens = load.context_tokens, row.capacity_tokens
            step_ms = decode_ms(decode, requests, context_tokens) if requests or context_tokens else decode.base_ms
            cost = STREAMED
            grows = prompt_tokens + growth_tokens(requests, answer)
            if capacity_tokens and (lacks := used_tokens(load) + grows - capacity_tokens) > 0:
                held_tokens = kept_tokens(row.overlap)
                if lacks > held_tokens:
                    cost += SHORTAGE * (lacks - held_tokens) / capacity_tokens
            ms += answer * step_ms * cost
        served.append(ms)
    return served


def split_served_ms(
    rows: Sequence[Row], works: Sequence[float], prompt_tokens: int, answer: float
) -> dict[str, list[float]]:
    """Return the parts that `served_ms` adds to wait and work: `answers_held_up` by the work, `own_answer`, and
    `memory_shortage` for the memory that the request lacks.
    """
    parts: dict[str, list[float]] = {"answers_held_up": [], "own_answer": [], "memory_shortage": []}
    for row, work in zip(rows, works, strict=True):
        load, capacity_tokens, lacks = row.load, row.capacity_tokens, 0.0
        answer_ms = answer * step_ms(row.speed, load.requests, load.context_tokens)
        if capacity_tokens:
            grows = prompt_tokens + growth_tokens(load.requests, answer)
            held_tokens = kept_tokens(row.overlap)
            lacks = max(0.0, used_tokens(load) + grows - capacity_tokens - held_tokens) / capacity_tokens
        parts["answers_held_up"].append(stall_cost(load.requests, load.prefilling) * work)
        parts["own_answer"].append(STREAMED * answer_ms)
        parts["memory_shortage"].append(SHORTAGE * lacks * answer_ms)
    return parts
