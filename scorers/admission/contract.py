"""The contract between the router and an admission rule: the facts that a rule is told, and the verdicts it
returns.

The router keeps the programs (sessions with their sub-agents; today one session each), the requests that wait, and
the clock. A rule decides about requests of one model: may this one begin at once (`begins`), and which of those
that wait begins now (`next_to_begin`). In between it is told what happens to programs and may keep books of its
own:

    arrived -> begins? -> began -> placed -> first_token -> ended -> idle -> arrived ...  forgotten
                   no: it waits until next_to_begin returns it, its client leaves, or the longest wait is over

A rule does no I/O, reads no clock and draws no random numbers: the same calls with the same arguments give the same
verdicts, so the simulator and a replay decide as the live router did. It reads programs and admissions and never
writes to them. Missing is `None`, never 0; a rule says in its docstring what it does where a fact is missing.

A rule is replaced while requests run: the new one gets all programs with `adopt` before any other call, and then
decides about the requests that wait. So `ended` may name an admission whose `began` this rule never saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple, Protocol

from scorers.contract import Plugin

QueueName = Literal["live", "parked", "again", "new"]
"""Requests that the rule has let begin and that wait for an engine only; of a program that was answered before; of
one that is new but waited too long before; of a new one.
"""


class AgentProgram:
    """The facts about one program. One without a name cannot be recognised again and is forgotten when it ends."""

    __slots__ = (
        "context_tokens",
        "kept",
        "name",
        "prompt_tokens",
        "returned",
        "running",
        "shared_tokens",
        "silent_since_s",
        "target",
        "waiting",
    )

    def __init__(self, name: bytes | None) -> None:
        self.name = name
        self.prompt_tokens: int | None = None  # of the last answered request; None: none was answered yet
        self.context_tokens = 0  # that prompt with its answer, or the running prompt; 0: unknown, or taken for lost
        self.shared_tokens: int | None = None  # leading ones, charged to another program there; None: unknown
        self.running = 0  # requests that have begun
        self.waiting = 0  # requests that wait for admission
        self.kept = 0  # of those, in the queue `live`: the program has its place meanwhile
        self.returned = False  # it sent a request after a silence at least once
        self.silent_since_s: float | None = None  # None: a request of it runs or waits
        self.target: str | None = None  # to which its last request was sent; None: to none yet

    @property
    def own_tokens(self) -> int:
        """The context without `shared_tokens`. Their sum over a target's programs counts a shared prefix once."""
        return max(0, self.context_tokens - (self.shared_tokens or 0))


class Claim(NamedTuple):
    """The tenant of a request, and how urgent it is."""

    tenant: str | None = None  # None: clients need not say who they are
    weight: float = 1.0  # of the tenant's share
    priority: int = 0  # lower is more urgent, as in vLLM
    deadline_s: float | None = None  # when its first token is due, by the router's clock; None: it has no deadline


NO_CLAIM = Claim()


class Admission:
    """One request from its arrival to its end."""

    __slots__ = (
        "claim",
        "context_before",
        "full",
        "local_tokens",
        "program",
        "prompt_tokens",
        "queue",
        "since_s",
        "state",
        "target",
        "waited",
    )

    def __init__(
        self,
        program: AgentProgram,
        prompt_tokens: int,
        local_tokens: int | None,
        queue: QueueName,
        now: float,
        claim: Claim = NO_CLAIM,
    ) -> None:
        self.program = program
        self.prompt_tokens = prompt_tokens  # 0: unknown
        self.local_tokens = local_tokens  # leading ones that some instance holds; None: unknown, or not asked for
        self.queue: QueueName = queue  # where it waits, if it must
        self.since_s = now
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.waited = False
        self.context_before = program.context_tokens
        self.claim = claim
        self.target: str | None = None  # to which it was sent last; None: to none yet
        self.full: frozenset[str] = frozenset()  # targets that had no room for it when it began, with fair shares


class Answer(NamedTuple):
    """The outcome of a request that an engine has at least begun to answer."""

    prompt_tokens: int
    context_tokens: int  # prompt and answer
    local_tokens: int | None = None  # prompt tokens from the instance's own cache; None: unknown
    last_prompt_tokens: int | None = None  # of the program's request answered before this one; None: there was none
    decode_s: float | None = None  # from the first token to the last; None: unknown


class TargetMemory(NamedTuple):
    """A target that can answer requests of the model."""

    target: str
    capacity_tokens: int | None  # KV tokens it can hold; None: its engine has not reported that


class TargetLoad(NamedTuple):
    """Load of a target that can answer, by the router's own bookings and the engine's last report."""

    target: str
    prefilling: int  # requests without a first token yet
    left_ms: float  # prefill work of those, less the time since the engine began with the first of them
    refill_ms: float  # what a request takes whatever its length: to get there, and the step that takes it up
    live_tokens: int  # of KV memory that requests use, or will: half an answer is still to come, of the mean length
    capacity_tokens: int | None  # None: its engine has not reported that
    waiting: int | None = None  # requests in the engine's queue at its last report; None: unknown
    kv_usage: float | None = None  # share of KV blocks in use then; None: unknown
    others_wait: bool = False  # requests of other clients are among `waiting`
    freed_per_s: float | None = None  # KV tokens that the ends of answers free per second; None: unknown


class FleetMemory(NamedTuple):
    """The fleet as of now. Capacities are this router's share of them."""

    capacity_tokens: int | None = None  # of all targets; None: no engine has reported its own
    targets: tuple[TargetMemory, ...] = ()
    busy: float | None = None  # share of instances with prefill pending, averaged over about 20 s
    loads: Iterable[TargetLoad] = ()  # read anew by every iteration


class ExpectedLoad(NamedTuple):
    """Programs and tokens of their contexts, as a rule counts them."""

    programs: float
    context_tokens: float

    @property
    def mean_tokens(self) -> int:
        """The mean context in tokens; 0 without programs."""
        return round(self.context_tokens / self.programs) if self.programs else 0


class Queue(Protocol):
    """Waiting requests in the order in which they came."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Admission]: ...
    @property
    def first(self) -> Admission | None: ...


Queues = Mapping[QueueName, Queue]


class AdmissionRule(Plugin):
    """Base of admission rules: a dataclass whose fields are its parameters. Without `begins` all requests begin."""

    shares: ClassVar[Literal["never", "tenants", "always"]] = "never"
    """When the router says who is next, by weighted fair shares, and holds requests while no engine has room
    (`engine_wait`): with `tenants` where clients have to say who they are. `next_to_begin` sees that request as the
    first of its queue then.
    """

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        """Start with these programs. `idle_s`: the silence after which a program is forgotten. `pooled`: instances
        load lost contexts from a shared pool.
        """

    # verdicts

    def needs_overlap(
        self, program: AgentProgram | None, prompt_tokens: int, queues: Queues, fleet: FleetMemory
    ) -> bool:
        """Return whether `local_tokens` of such a request matters; to find out costs more than all the rest."""
        return False

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        """Return whether a request that has just arrived begins at once."""
        return True

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        """Return a waiting request that may begin now, or None. The controller calls this again, after `began`,
        until it returns None.
        """
        return next((queue.first for queue in queues.values() if queue.first is not None), None)

    def engine_wait(self, load: TargetLoad, new_tokens: int) -> float:
        """Return the seconds until a target has room for a prompt of which it computes `new_tokens`, so that it
        would begin at once: 0 where it has. Asked only with fair shares.
        """
        return 0.0

    def due_s(self) -> float | None:
        """Return when `next_to_begin` may change its mind although nothing happens before; None: never."""
        return None

    def expected_load(self) -> ExpectedLoad | None:
        """Return the load as the rule counts it, for people and metrics; None: it counts no contexts."""
        return None

    # facts

    def advance(self, fleet: FleetMemory, now: float) -> None:
        """Note the time. Called before every verdict."""

    def arrived(self, program: AgentProgram, now: float) -> None:
        """A request of `program` arrived; `silent_since_s` still says how long it was silent."""

    def began(self, admission: Admission, now: float) -> None:
        """A request began."""

    def placed(self, admission: Admission, now: float) -> None:
        """A request was sent to `admission.program.target`."""

    def kept(self, program: AgentProgram) -> None:
        """`program.kept` has changed: while it is above 0 the program has its place although no request of it
        runs.
        """

    def shared(self, program: AgentProgram) -> None:
        """`program.shared_tokens` has changed because another program came, moved or left."""

    def first_token(self, admission: Admission, now: float) -> None:
        """The answer has begun: the prompt is computed or loaded."""

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        """A request that had begun has ended, without an answer where that is None."""

    def idle(self, program: AgentProgram, now: float) -> None:
        """No request of `program` runs or waits any more; it may return."""

    def forgotten(self, program: AgentProgram) -> None:
        """`program` has been silent for `idle_s`, cannot return, or had to make room for others."""
