"""The contract between the router and an admission rule: the facts that a rule receives, and the verdicts it
returns.

The router keeps the programs (sessions with their sub-agents; today one session each), the waiting requests, and
the clock. A rule decides about requests of one model: whether an arriving request begins at once (`begins`), and
which waiting request begins now (`next_to_begin`). Between these calls the router notifies the rule of what happens
to programs, and the rule may keep books of its own:

    arrived -> begins? -> began -> placed -> first_token -> ended -> idle -> arrived ...  forgotten
                   no: it waits until next_to_begin returns it, its client leaves, or the longest wait is over

A rule does no I/O, reads no clock and draws no random numbers: the same calls with the same arguments give the same
verdicts, so the simulator and a replay decide as the live router did. A rule reads programs and admissions and
never writes to them. A missing value is `None`, never 0; a rule documents in its docstring what it does if a fact
is missing.

A rule can be replaced while requests run: the new rule receives all programs with `adopt` before any other call,
and then decides about the waiting requests. So `ended` may name an admission whose `began` this rule never
received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple, Protocol

from scorers.contract import Plugin

QueueName = Literal["live", "parked", "again", "new"]
"""Queues of waiting requests. `live`: the rule has let the request begin, and it waits for an engine only.
`parked`: its program has been answered before. `again`: its program is new, but waited too long before. `new`: its
program is new.
"""


class AgentProgram:
    """The facts about one program. A program without a name cannot be recognised again and is forgotten when it
    ends.
    """

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
        self.prompt_tokens: int | None = None  # of the last answered request; None: no request was answered yet
        self.context_tokens = 0  # last prompt and answer, or running prompt; 0: unknown, or assumed lost
        self.shared_tokens: int | None = None  # leading tokens charged to another program there; None: unknown
        self.running = 0  # requests that have begun
        self.waiting = 0  # requests that wait for admission
        self.kept = 0  # those of `waiting` in the queue `live`: the program keeps its place meanwhile
        self.returned = False  # whether the program sent a request after a silence at least once
        self.silent_since_s: float | None = None  # None: a request of the program runs or waits
        self.target: str | None = None  # where its last request was sent; None: no request was sent yet

    @property
    def own_tokens(self) -> int:
        """The context without `shared_tokens`. The sum of `own_tokens` over a target's programs counts a shared
        prefix once.
        """
        return max(0, self.context_tokens - (self.shared_tokens or 0))


class Claim(NamedTuple):
    """The tenant and the urgency of a request."""

    tenant: str | None = None  # None: clients need not identify themselves
    weight: float = 1.0  # of the tenant's share
    priority: int = 0  # lower is more urgent, as in vLLM
    deadline_s: float | None = None  # when the first token is due, by the router's clock; None: no deadline


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
        self.local_tokens = local_tokens  # leading tokens that some instance holds; None: unknown, or not looked up
        self.queue: QueueName = queue  # where the request waits, if it must
        self.since_s = now
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.waited = False
        self.context_before = program.context_tokens
        self.claim = claim
        self.target: str | None = None  # where the request was sent last; None: not sent yet
        self.full: frozenset[str] = frozenset()  # targets without room when the request began, under fair shares


class Answer(NamedTuple):
    """The outcome of a request that an engine has at least begun to answer."""

    prompt_tokens: int
    context_tokens: int  # prompt and answer
    local_tokens: int | None = None  # prompt tokens from the instance's own cache; None: unknown
    last_prompt_tokens: int | None = None  # of the program's previous answered request; None: there was none
    decode_s: float | None = None  # from the first token to the last; None: unknown


class TargetMemory(NamedTuple):
    """A target that can answer requests of the model."""

    target: str
    capacity_tokens: int | None  # in KV tokens; None: its engine has not reported the capacity


class TargetLoad(NamedTuple):
    """Load of a target that can answer, by the router's own bookings and the engine's last report."""

    target: str
    prefilling: int  # requests without a first token yet
    left_ms: float  # prefill work of `prefilling`, less the time since the engine began the first
    refill_ms: float  # cost of any request, whatever its length: to arrive, and to join a step
    live_tokens: int  # KV tokens that requests use or will use, counting half a mean answer each as still to come
    capacity_tokens: int | None  # None: its engine has not reported the capacity
    waiting: int | None = None  # requests in the engine's queue at its last report; None: unknown
    kv_usage: float | None = None  # share of KV blocks in use at its last report; None: unknown
    others_wait: bool = False  # whether requests of other clients are among `waiting`
    freed_per_s: float | None = None  # KV tokens that ending answers free per second; None: unknown


class FleetMemory(NamedTuple):
    """The fleet as of now. Capacities are this router's share of those of the targets."""

    capacity_tokens: int | None = None  # of all targets; None: no engine has reported its capacity
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
    """When the router orders waiting requests by weighted fair shares and holds requests while no engine has room
    (`engine_wait`). `tenants`: only if clients have to identify themselves. Under fair shares, `next_to_begin` sees
    the next request as the first of its queue.
    """

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        """Start with these programs. `idle_s`: the silence after which a program is forgotten. `pooled`: instances
        load lost contexts from a shared pool.
        """

    # verdicts

    def needs_overlap(
        self, program: AgentProgram | None, prompt_tokens: int, queues: Queues, fleet: FleetMemory
    ) -> bool:
        """Return whether the verdict depends on `local_tokens` of such a request, which cost more to find out than
        all the rest.
        """
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
        """Return the seconds until a target has room for a prompt of which it computes `new_tokens`, so that the
        prompt would begin at once; 0 if the target has room now. Called only under fair shares.
        """
        return 0.0

    def due_s(self) -> float | None:
        """Return the time at which the verdict of `next_to_begin` may change even if nothing happens before. None:
        never.
        """
        return None

    def expected_load(self) -> ExpectedLoad | None:
        """Return the load as the rule counts it, for display and metrics. None: the rule counts no contexts."""
        return None

    # facts

    def advance(self, fleet: FleetMemory, now: float) -> None:
        """Note the time. Called before every verdict."""

    def arrived(self, program: AgentProgram, now: float) -> None:
        """A request of `program` arrived; `silent_since_s` still has the start of the program's silence."""

    def began(self, admission: Admission, now: float) -> None:
        """A request began."""

    def placed(self, admission: Admission, now: float) -> None:
        """A request was sent to `admission.program.target`."""

    def kept(self, program: AgentProgram) -> None:
        """`program.kept` has changed: while it is above 0 the program keeps its place although none of its requests
        runs.
        """

    def shared(self, program: AgentProgram) -> None:
        """Note that `program.shared_tokens` has changed, because another program came, moved or left."""

    def first_token(self, admission: Admission, now: float) -> None:
        """The answer has begun: the prompt is computed or loaded."""

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        """A request that had begun has ended. `answer` is None if the request was not answered."""

    def idle(self, program: AgentProgram, now: float) -> None:
        """No request of `program` runs or waits any more; the program may return."""

    def forgotten(self, program: AgentProgram) -> None:
        """`program` has been silent for `idle_s`, cannot return, or had to make room for others."""
