"""The contract between the router and its plug-ins: what a scorer, filter or picker reads and what it returns.

A `View` is frozen: every fact one decision may use, gathered once, shared by the live policy, its shadows, the
replayer and the simulator. A scorer turns it into one cost per row, *lower is better*; a filter selects the rows
that stay; a picker takes the costs and chooses a row. None of them does I/O, reads a clock or draws random numbers
of its own: what they need from time and chance is in the view (`seed`, `number`, ages), so the same view gives the
same choice.

Missing is `None`, never 0: a row whose engine has reported nothing must not look idle. Every value from outside
carries its age in seconds. A plug-in that reads a value says in its docstring what it does where the value is
missing.

Fields with a default were added later, or only some fleets know them; the default means "not reported". The structs
are NamedTuples because they are built per candidate and request: immutable like a frozen dataclass at a quarter of
its construction cost. This package imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, Flag, auto
from typing import ClassVar, Literal, NamedTuple


class Unit(Enum):
    """Unit of a cost. All scorers of a policy have the same unit: a mix is refused when the policy is built."""

    MS = "ms"
    BLOCKS = "blocks"
    POINTS = "points"  # in [0, 1], checked by the router
    RAW = "raw"  # a scale of its own: must be the policy's only scorer


class Needs(Flag):
    """Parts of the view that a plug-in reads beyond the rows' names. The router skips work that no policy needs."""

    NONE = 0
    CACHE = auto()  # prompt_tokens, prefix, prefixes, rows[].overlap, rows[].held_tokens
    POOL = auto()  # pool
    LOAD = auto()  # rows[].load, rows[].speed, busy, nominal
    SESSION = auto()  # session, last_target, and all from program on


class Measure(Enum):
    """The quantity that decides among rows that hold the same part of a prompt: the least of it wins."""

    REQUESTS = "load.requests"
    QUEUE = "load.queued_ms"
    WORK_LEFT = "load.queued_ms + the least of computing and fetching the prompt, at the row's own speed"
    WORK_LEFT_BUT_POOL = "the same, as if there were no shared pool"
    SERVED = "work left, some of it once more for each answer that it holds up, and the own answer (streams.py)"
    SERVED_BUT_POOL = "served, as if there were no shared pool"


class Overlap(NamedTuple):
    """Leading prompt tokens that a target holds, from token 0, whole blocks only.

    The tiers are cumulative, `gpu_tokens <= cpu_tokens <= disk_tokens`: the second is the run that can be had from
    the GPU or host memory, the third adds disk; what a tier adds is the difference. `expected_tokens` (at least
    `gpu_tokens`) also counts blocks of requests sent there so recently that no event can have reported them yet.
    All are capped at what an engine can use: the last prompt token is always computed.
    """

    gpu_tokens: int
    cpu_tokens: int
    disk_tokens: int
    expected_tokens: int
    source: Literal["events", "approximate"]  # approximate: from what the router sent there, without reliable events
    age_s: float | None  # since the last event or heartbeat on the target's event stream


class Load(NamedTuple):
    """Load of a target: the router's own bookings first, then the engine's gauges as of the last poll."""

    requests: int  # the router's own, in flight
    prefilling: int  # of those, without a first byte yet
    prefill_tokens: int  # uncached prompt tokens of those `prefilling`
    context_tokens: int  # whole prompts of `requests`; answers are not counted while they stream
    queued_ms: float  # prefill_tokens priced with this row's speed
    running: int | None  # the engine's own gauges, as last polled
    waiting: int | None
    kv_usage: float | None  # share of KV blocks in use by live requests, 0..1; cached but idle blocks do not count
    elsewhere: int | None  # requests of other clients that the engine had at that poll
    metrics_age_s: float | None
    adapters: frozenset[str] | None  # LoRA adapters that its running requests use
    max_adapters: int | None
    waiting_adapters: frozenset[str] | None = None  # LoRA adapters that its waiting requests ask for
    prompt_tokens: int | None = None  # whole prompts of `requests`, cached part included
    output_tokens_per_s: float | None = None  # answer tokens per second between its last two polls
    live_tokens: int | None = None  # of KV memory that requests use, or will when they begin: shared blocks count once


class Transfer(NamedTuple):
    """The fitted cost of fetching KV from a slower tier: `base_ms + us_per_token * tokens / 1000`."""

    base_ms: float
    us_per_token: float
    samples: int
    age_s: float | None


class Decode(NamedTuple):
    """The fitted time of one decode step (one token for every request in the batch) of one instance.

    `base_ms + us_per_request * requests / 1000 + ns_per_context_token * context_tokens / 1e6`
    """

    base_ms: float
    us_per_request: float
    ns_per_context_token: float
    samples: int
    age_s: float | None

    def step_ms(self, requests: int, context_tokens: int) -> float:
        """Return the milliseconds of one step with `requests` in the batch and `context_tokens` in their
        contexts.
        """
        return self.base_ms + self.us_per_request * requests / 1000 + self.ns_per_context_token * context_tokens / 1e6


class Speed(NamedTuple):
    """The fitted prefill curve of one instance, starting from the configured prior (then `samples` is 0).

    Milliseconds to compute `new` tokens after `context` cached ones: `base_ms + (us_per_token * new +
    ns_per_token_context * new * (context + new / 2) / 1000) / 1000`
    """

    base_ms: float
    us_per_token: float
    ns_per_token_context: float
    samples: int
    age_s: float | None
    cpu: Transfer | None
    disk: Transfer | None
    pool: Transfer | None
    pool_disk: Transfer | None = None  # what the pool keeps on its disks
    peer: Transfer | None = None  # from another instance
    decode: Decode | None = None

    def prefill_ms(self, new: int, context: int) -> float:
        """Return the milliseconds to compute `new` tokens after `context` cached ones."""
        attended = new * (context + new / 2)
        return self.base_ms + (self.us_per_token * new + self.ns_per_token_context * attended / 1000) / 1000


class Row(NamedTuple):
    """One candidate target."""

    target: str
    instance: str
    rank: int
    block_tokens: int | None  # size of its cache blocks; None until its events or metrics report it
    capacity_tokens: int | None  # KV tokens it can hold
    overlap: Overlap | None  # None is unknown, not empty
    load: Load
    speed: Speed
    held_tokens: int | None = None  # all tokens that the index knows it to hold, of any prompt, in every tier


class PoolHit(NamedTuple):
    """Leading prompt tokens that the shared pool holds."""

    tokens: int
    age_s: float
    memory_tokens: int | None = None  # the leading part of them that is not on the pool's disks


class Ask(NamedTuple):
    """Service objectives and identity of the request."""

    tenant: str | None = None  # pseudonym of the client's API key
    priority: int | None = None  # lower is more urgent, as in vLLM
    ttft_ms: float | None = None  # its latency objectives
    tpot_ms: float | None = None
    output_tokens: int | None = None  # the client's cap on the answer (`max_tokens` and its variants)


class View(NamedTuple):
    """Every fact one decision may use."""

    number: int  # of the request, counting from 0 in this process
    seed: int  # of this process: chance is a function of (seed, number)
    model: str
    adapter: str | None
    prompt_tokens: int | None  # None if it was not tokenised, or only a leading part (overlaps may still be known)
    prefix: int | None  # digest of the prompt's first block(s): equal for prompts that share them
    session: str | None  # pseudonym of a chain of turns, in which each prompt continues the one before
    last_target: str | None  # where this policy (or its predecessor) sent the session's last request
    pool: PoolHit | None
    busy: float | None  # share of instances with prefill pending, averaged over about 20 s
    rows: tuple[Row, ...]
    turn: int = 0  # count of earlier decisions for this model and adapter, for round robin
    now_s: float = 0.0  # the router's clock; only differences have a meaning, for plug-ins that learn and forget
    nominal: Speed | None = None  # of the fleet's typical instance, whatever rows are left: prices work, not waiting
    prefixes: tuple[int, ...] = ()  # like `prefix`, for the first 1, 2, 4, 8, ... blocks of the smallest size in use
    ask: Ask = Ask()
    others: int = 0  # candidates without a row, none of which could win by any policy in use
    answer_tokens: float | None = None  # mean length of this model's recent answers
    program: str | None = None  # first session of the family that `session` belongs to; its own name if it is that one
    parent: str | None = None  # the session that started this one; None if none did, or it is unknown
    parent_target: str | None = None  # where this policy (or its predecessor) sent the parent's last request
    session_turn: int | None = None  # answers that this session got so far, as far as this router relayed them
    idle_s: float | None = None  # since the last of those ended; None before the first one
    after_tool_call: bool | None = None  # whether that answer ended in a tool call; None if unknown
    live_share: float | None = None  # of the fleet's KV memory, what live requests use; None: no capacity is known


class Outcome(NamedTuple):
    """Outcome of a request, for plug-ins that learn."""

    ok: bool
    status: int | None
    ttft_ms: float | None
    duration_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class Plugin:
    """Base of all plug-in kinds. Plug-ins are dataclasses: their fields are the policy file's parameters."""

    needs: ClassVar[Needs] = Needs.NONE


class Scorer(Plugin):
    """A plug-in that assigns a cost to every row."""

    unit: ClassVar[Unit]
    order_matters: ClassVar[bool] = False  # True where a cost depends on a row's position

    def score(self, view: View) -> Sequence[float]:
        """Return finite costs, one per row of `view`, in its order; lower is better. Changes nothing."""
        raise NotImplementedError

    def parts(self, view: View) -> Mapping[str, Sequence[float]] | None:
        """Return the costs of `score` by what they consist of: a name (`wait`, `compute`) and a value per row each,
        which add up to the row's cost. A part may be negative, such as a credit. None: the cost has no parts.

        Called when somebody reads a record, never for a decision, so it may take its time. Changes nothing.
        """
        return None

    def settled_by(self) -> Measure | None:
        """Return the measure that decides among rows whose overlaps are equal in tokens, or None to get a row per
        candidate.

        Declaring a measure saves the router most of the work in a large fleet. It states that among such rows the
        one with the least of the measure never costs more than another, and that leaving out rows that an equal one
        beats changes no cost. It needs to hold only where all overlaps are known, or none is, and no request of
        other clients waits in an engine.
        """
        return None

    def picked(self, view: View, row: Row) -> None:
        """Learn from a choice: the live policy chose `row`."""

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        """Learn from an outcome: the request that went to `row` has ended."""


class Filter(Plugin):
    """A plug-in that drops rows. A filter that would drop all is skipped for that decision, and the record says
    so.
    """

    def keep(self, view: View) -> Sequence[bool]:
        """Return one flag per row of `view`: True keeps the row."""
        raise NotImplementedError

    def settled_by(self) -> Measure | None:
        """Return the measure that decides among rows with equal overlaps, or None, as `Scorer.settled_by` does. The
        filter keeps all of these rows, or those that have the least of the measure in the whole view, and reads
        nothing else of them.
        """
        return None


class Picker(Plugin):
    """A plug-in that chooses a row by the costs."""

    takes_least: ClassVar[bool] = False  # True where it picks a row of the least cost, whatever the others are

    def pick(self, view: View, costs: Sequence[float]) -> int:
        """Return the index of the chosen row; `costs` is never empty."""
        raise NotImplementedError
