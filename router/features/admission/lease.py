"""The place of one admitted request, through which admission is notified of the request's target, first byte and
end.

A lease is released once, whatever ends the request. Subclasses differ by who gave the place: the queues of this
process, or the queues of the worker on duty.
"""

from __future__ import annotations

from abc import abstractmethod

from mypy_extensions import mypyc_attr

from router.features.admission.verdicts import ComputedPrompt
from router.request.request import Held, Request
from router.scheduling.policy.record import Record
from router.scheduling.ticket import Ticket


@mypyc_attr(allow_interpreted_subclasses=True)
class AdmissionLease(Held):
    """The place of one request, from its admission to its end. `waited_s` is None for a request that was admitted
    at once; `rule` is the name of the rule that admitted it; `full` are the targets that had no room for it: it
    should not be sent to one of these if another target takes it.
    """

    __slots__ = ("_prompt_tokens", "full", "rule", "waited_s")

    def __init__(self, prompt_tokens: int, waited_s: float | None, rule: str, full: frozenset[str]) -> None:
        self._prompt_tokens = prompt_tokens
        self.waited_s = waited_s
        self.rule = rule
        self.full = full

    @abstractmethod
    def place(self, target: str, held_tokens: int | None) -> None:
        """Record that the request is sent to `target`, which is expected to hold `held_tokens` of its prompt; None:
        unknown.
        """

    @abstractmethod
    def begin_answer(self) -> None:
        """Record that the answer has begun, so that other requests may begin."""

    @abstractmethod
    def end(self, computed: ComputedPrompt | None) -> None:
        """Release the place. `computed` is None for a request without an answer."""

    # Held

    def on_record(self, record: Record) -> None:
        record.admission_rule, record.full_targets = self.rule, sorted(self.full)
        record.stages.admission_ms = None if self.waited_s is None else self.waited_s * 1e3

    def on_placed(self, ticket: Ticket) -> None:
        self.place(ticket.target.id, ticket.attempt.expected_tokens)

    def on_first_byte(self, ticket: Ticket) -> None:
        self.begin_answer()

    def release(self, request: Request) -> None:
        self.end(None if request.record is None else read_computed(request.record, self._prompt_tokens))


def read_computed(record: Record, prompt_tokens: int) -> ComputedPrompt | None:
    """Return the part of a request that is in its engine's cache; None if no engine has begun to answer.
    `prompt_tokens` is used if the record has no count.
    """
    if record.ttft_ms is None or record.status is None or record.status >= 400:
        return None
    prompt_tokens = record.prompt_tokens or record.prompt_tokens_counted or prompt_tokens
    context_tokens = prompt_tokens + (record.output_tokens or 0)
    local_tokens, decode_s = count_local_tokens(record), measure_decode_s(record)
    return ComputedPrompt(prompt_tokens, context_tokens, local_tokens, decode_s, record.cached_tokens)


def count_local_tokens(record: Record) -> int | None:
    """Return the prompt tokens that the instance had in its own tiers; None if unknown. Engines report tokens
    loaded from a pool as cached, too, so no more are counted than the instance was expected to hold.
    """
    expected = record.attempts[-1].expected_tokens if record.attempts else None
    return None if record.cached_tokens is None or expected is None else min(record.cached_tokens, expected)


def measure_decode_s(record: Record) -> float | None:
    """Return the seconds from the first token to the last, longer if the client read slowly; None if the answer has
    not ended.
    """
    if record.duration_ms is None or record.ttft_ms is None:
        return None
    return max(0.0, record.duration_ms - record.ttft_ms) / 1e3
