"""One request, from its first byte to its end: what its stages find out about it, and what they hold for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mypy_extensions import mypyc_attr

from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.answer_model import AnswerModel
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Prompt, UnknownIds
from router.proxy.call import ClientRequest
from router.request.admin_tokens import PolicyOverride
from router.request.concurrency import Slot
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from router.telemetry.trace_context import TraceContext
from scorers.contract import PoolHit

FIRST_EVENTS = 4  # of a stream, with no token of the answer: at most, of all APIs
UNREAD = UnknownIds("not_needed")


@mypyc_attr(allow_interpreted_subclasses=True)
class Held:
    """The part of a stage in one request: it is called as the request goes on, and released once, whatever ends it.
    Every method does nothing unless a stage has a use for it.
    """

    def on_record(self, record: Record) -> None:
        """Describe in the record, which is about to open, what the stage has done."""

    def on_placed(self, ticket: Ticket) -> None:
        """The request is booked at the target of `ticket`."""

    def on_first_byte(self, ticket: Ticket) -> None:
        """The answer has begun; called once, also where another engine carries the answer on."""

    def release(self, request: Request) -> None:
        """Give back what is held. The request's record is complete; None: the request ended before it had one."""


Part = TypeVar("Part", bound=Held)


class Request:
    """A request of a client. Stages fill in the fields, in the order in which they run."""

    # read
    override: PolicyOverride | None  # None: the policy in force decides
    body: bytes
    prompt: Prompt
    name: str | None  # the client's own for the model; None: it names none
    # prepared
    served: ServedModel | None  # None: it names no model
    most_tokens: int | None  # of its prompt, that make sense to count; None: as many as its model takes
    tokens: TokenizedPrompt | UnknownIds
    pool_hit: PoolHit | None  # None: unknown
    avoid: frozenset[str]  # targets that had no room for it: it goes there only where no other one takes it
    trace: TraceContext | None  # None: no tracing
    # placed and answered
    record: Record | None  # None: not yet open
    bound_to: TargetId | None  # the only target that can answer it; None: any
    stream: ContinuableStream | None  # None: another engine cannot carry the answer on
    rename: AnswerModel | None  # names the model in the answer as the client does; None: the engine does so itself
    other_model: str | None  # that answers in place of the first one of the client's name for it
    counts_events: bool  # of a stream that is not kept in `stream`
    events: int
    follow: Callable[[int], None] | None  # is called with the tokens that have passed, after each piece of a stream

    def __init__(self, call: ClientRequest, slot: Slot, arrived_s: float, response_id: str | None = None) -> None:
        """`response_id`: of the stored response that the request is about; None: it brings a prompt."""
        self.call = call
        self.slot = slot
        self.arrived_s = arrived_s  # monotonic
        self.read_s = arrived_s  # when its body was complete
        self.response_id = response_id
        self.durations = Stages()
        self.override = None
        self.body = b""
        self.name = None
        self.served = None
        self.most_tokens = None
        self.tokens = UNREAD
        self.pool_hit = None
        self.avoid = frozenset()
        self.trace = None
        self.record = None
        self.bound_to = None
        self.stream = None
        self.rename = None
        self.other_model = None
        self.counts_events = False
        self.events = 0
        self.follow = None
        self.held: list[Held] = []

    def hold(self, part: Held) -> None:
        """Let a stage take part in the rest of the request."""
        self.held.append(part)

    def find(self, kind: type[Part]) -> Part | None:
        """Return the part of a stage that takes part with this class; None: it does not."""
        return next((part for part in self.held if isinstance(part, kind)), None)

    def on_placed(self, ticket: Ticket) -> None:
        """Let all parts know that the request is booked."""
        for part in self.held:
            part.on_placed(ticket)

    def release(self) -> None:
        """Release all parts, the last one first; one that fails does not keep the others from it."""
        if not self.held:
            if self.stream is not None:
                self.stream.close()
            return
        try:
            self.held.pop().release(self)
        finally:
            self.release()

    @property
    def known(self) -> TokenizedPrompt | None:
        """Tokens of the prompt; None: they are not known."""
        return self.tokens if isinstance(self.tokens, TokenizedPrompt) else None

    def to_schedule(self, record: Record) -> SchedulingRequest:
        """Return the request as the scheduler reads it."""
        return SchedulingRequest(record, self.prompt, self.served, self.known, self.pool_hit)

    @property
    def passed_tokens(self) -> int:
        """Tokens of a streamed answer that passed so far, as far as they can be counted before its end."""
        return max(0, self.events - FIRST_EVENTS) if self.stream is None else self.stream.tokens

    def for_rest(self, prompt: Prompt) -> Request:
        """Return the request for the engine that carries the answer on: with `prompt`, whose ids the router has not
        counted.
        """
        rest = Request(self.call, self.slot, self.arrived_s)
        rest.prompt, rest.served, rest.tokens = prompt, self.served, UnknownIds("continued")
        rest.pool_hit, rest.override, rest.trace, rest.stream = self.pool_hit, self.override, self.trace, self.stream
        rest.rename, rest.other_model = self.rename, self.other_model
        rest.counts_events, rest.follow, rest.held = self.counts_events, self.follow, self.held
        return rest
