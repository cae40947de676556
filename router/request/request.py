"""One request, from its first byte to its end: the facts that its stages find, and the resources that they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from mypy_extensions import mypyc_attr

from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.answer_model import AnswerModel
from router.prompt.api.continuable import names_engine_tools
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.proxy.call import ClientRequest
from router.request.admin_tokens import PolicyOverride
from router.request.concurrency import Slot
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from router.telemetry.trace_context import TraceContext
from scorers.contract import PoolHit

FIRST_EVENTS = 4  # at most this many events at the start of a stream contain no token of the answer, in any API
RESPONSES: Final = Endpoint.RESPONSES  # a constant, as Python 3.11 runs code at each access to a member of an Enum
UNREAD = UnknownIds("not_needed")


@mypyc_attr(allow_interpreted_subclasses=True)
class Held:
    """The part of a stage in one request: it is called as the request proceeds, and released once, whatever ends
    the request. Every method does nothing unless a stage overrides it.
    """

    def on_record(self, record: Record) -> None:
        """Add the results of the stage to the record, which is about to open."""

    def on_placed(self, ticket: Ticket) -> None:
        """Handle the booking of the request at the target of `ticket`."""

    def on_first_byte(self, ticket: Ticket) -> None:
        """Handle the start of the answer. Called once, even if another engine continues the answer."""

    def release(self, request: Request) -> None:
        """Release what is held. The request's record is complete, or None if it ended before it had one."""


Part = TypeVar("Part", bound=Held)


class Request:
    """A request of a client. Stages fill in the fields, in the order in which they run."""

    # read
    override: PolicyOverride | None  # None: the active policy decides
    body: bytes
    prompt: Prompt
    name: str | None  # the client's own name for the model; None: the client names no model
    # prepared
    served: ServedModel | None  # None: the request names no model
    most_tokens: int | None  # longer prompts need no count; None: count as many tokens as the model accepts
    tokens: TokenizedPrompt | UnknownIds
    pool_hit: PoolHit | None  # None: unknown
    avoid: frozenset[str]  # targets without room for the request, used only if no other target can take it
    trace: TraceContext | None  # None: no tracing
    # placed and answered
    record: Record | None  # None: not yet open
    bound_to: TargetId | None  # the only target that can answer it; None: any
    repeats: bool  # whether another engine may be tried after a 5xx; False: two engines failed on this prompt before
    stream: ContinuableStream | None  # None: another engine cannot continue the answer
    rename: AnswerModel | None  # names the model in the answer as the client does; None: the engine does so itself
    other_model: str | None  # the model that answers instead of the first one behind the client's name
    counts_events: bool  # whether to count the events of a stream that is not kept in `stream`
    events: int
    follow: Callable[[int], None] | None  # called after each piece of a stream with the tokens that have passed

    def __init__(self, call: ClientRequest, slot: Slot, arrived_s: float, response_id: str | None = None) -> None:
        """`response_id` is the id of the stored response that the request is about; None if it has a prompt."""
        self.call = call
        self.slot = slot
        self.arrived_s = arrived_s  # monotonic
        self.read_s = arrived_s  # when the body was complete
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
        self.repeats = True
        self.stream = None
        self.rename = None
        self.other_model = None
        self.counts_events = False
        self.events = 0
        self.follow = None
        self.held: list[Held] = []

    def hold(self, part: Held) -> None:
        """Add the part of a stage, which is then called for the rest of the request."""
        self.held.append(part)

    def find(self, kind: type[Part]) -> Part | None:
        """Return the part of this class; None if there is none."""
        for part in self.held:  # a generator would cost more than the rest of the lookup
            if isinstance(part, kind):
                return part
        return None

    def on_placed(self, ticket: Ticket) -> None:
        """Notify all parts that the request is booked."""
        for part in self.held:
            part.on_placed(ticket)

    def release(self) -> None:
        """Release all parts, the last one first. If releasing a part fails, the others are still released."""
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
        """The tokens of the prompt; None if they are unknown."""
        return self.tokens if isinstance(self.tokens, TokenizedPrompt) else None

    @property
    def may_run_twice(self) -> bool:
        """Whether nothing shows if two engines work on it: an engine runs its own tools, and stored responses have one
        engine.
        """
        prompt = self.prompt
        return self.bound_to is None and not (prompt.endpoint is RESPONSES and names_engine_tools(prompt.body))

    def to_schedule(self, record: Record) -> SchedulingRequest:
        """Return the facts of the request that the scheduler reads."""
        return SchedulingRequest(record, self.prompt, self.served, self.known, self.pool_hit)

    @property
    def passed_tokens(self) -> int:
        """Number of tokens of a streamed answer that have passed, as far as they can be counted before its end."""
        return max(0, self.events - FIRST_EVENTS) if self.stream is None else self.stream.tokens

    def for_rest(self, prompt: Prompt) -> Request:
        """Return the request for the engine that continues the answer. It has the given `prompt`, whose token ids
        are unknown to the router.
        """
        rest = Request(self.call, self.slot, self.arrived_s)
        rest.prompt, rest.served, rest.tokens = prompt, self.served, UnknownIds("continued")
        rest.pool_hit, rest.override, rest.trace, rest.stream = self.pool_hit, self.override, self.trace, self.stream
        rest.rename, rest.other_model = self.rename, self.other_model
        rest.counts_events, rest.follow, rest.held = self.counts_events, self.follow, self.held
        return rest
