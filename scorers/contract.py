"""The contract between the router and its plug-ins: what a scorer, filter or picker reads and what it returns.

A `View` is frozen. It contains every fact that one decision may use, gathered once and shared by the live policy,
its shadows, the replayer and the simulator. A scorer turns a view into one cost per row, *lower is better*; a
filter selects the rows that stay; a picker takes the costs and chooses a row. Plug-ins do no I/O, read no clock and
draw no random numbers of their own: the facts that depend on time and chance (`seed`, `number`, ages) are in the
view, so the same view gives the same choice.

A missing value is `None`, never 0: a row whose engine has reported nothing must not look idle. Every value from
outside carries its age in seconds. A plug-in that reads a value documents in its docstring what it does if the
value is missing.

Fields with a default were added later, or are known in some fleets only; the default means "not reported". The
structs are NamedTuples because they are built per candidate and request: they are immutable like a frozen dataclass
and take a quarter of its time to construct. This package imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, Flag, auto
from typing import ClassVar, Literal, NamedTuple


class Unit(Enum):
    """Unit of a cost. All scorers of a policy have the same unit: the router rejects a mix when it builds the
    policy.
    """

    MS = "ms"
    BLOCKS = "blocks"
    POINTS = "points"  # in [0, 1], checked by the router
    RAW = "raw"  # the scorer's own scale: it must be the policy's only scorer


class Needs(Flag):
    """Parts of the view that a plug-in reads beyond the rows' names. The router skips work that no policy needs."""

    NONE = 0
    CACHE = auto()  # prompt_tokens, prefix, prefixes, rows[].overlap, rows[].held_tokens
    POOL = auto()  # pool
    LOAD = auto()  # rows[].load, rows[].speed, busy, nominal
    SESSION = auto()  # session, last_target, and all fields from `program` on


class Measure(Enum):
    """The quantity that decides among rows that hold the same part of a prompt: the row with the least of it
    wins.
    """

    REQUESTS = "load.requests"
    QUEUE = "load.queued_ms"
    WORK_LEFT = "load.queued_ms + the least of computing and fetching the prompt, at the row's own speed"
    WORK_LEFT_BUT_POOL = "the same, as if there were no shared pool"
    SERVED = "work left, some of it once more for each answer that it holds up, and the own answer (streams.py)"
    SERVED_BUT_POOL = "served, as if there were no shared pool"


class Overlap(NamedTuple):
    """Leading prompt tokens that a target holds, counted from token 0 in whole blocks.

    The tiers are cumulative, `gpu_tokens <= cpu_tokens <= disk_tokens`: `cpu_tokens` is the run held in GPU or host
    memory, `disk_tokens` the run held in any tier of the target; the difference is what a tier adds.
    `expected_tokens` is what the GPU is expected to hold when the request begins. It also counts blocks of requests
    that the router sent to the target so recently that no event can have reported them yet; it is less than
    `gpu_tokens` where live requests leave too little memory to keep all of these until then. All four are capped at
    the number of tokens that an engine can reuse: it always computes the last prompt token.
    """

    gpu_tokens: int
    cpu_tokens: int
    disk_tokens: int
    expected_tokens: int
    source: Literal["events", "approximate"]  # approximate: without reliable events, from what was sent there
    age_s: float | None  # since the last event or heartbeat on the target's event stream


class Load(NamedTuple):
    """Load of a target: the router's own bookings first, then the engine's gauges as of the last poll."""

    requests: int  # the router's own, in flight
    prefilling: int  # those of `requests` without a first byte yet
    prefill_tokens: int  # uncached prompt tokens of the `prefilling` requests
    context_tokens: int  # whole prompts of `requests`; answers are not counted while they stream
    queued_ms: float  # prefill_tokens priced with this row's speed
    running: int | None  # the engine's own gauges, as last polled
    waiting: int | None
    kv_usage: float | None  # share of KV blocks in use by live requests, 0..1; cached but idle blocks do not count
    elsewhere: int | None  # requests of other clients that the engine had at that poll
    metrics_age_s: float | None
    adapters: frozenset[str] | None  # LoRA adapters that its running requests use
    max_adapters: int | None
    waiting_adapters: frozenset[str] | None = None  # LoRA adapters that its waiting requests need
    prompt_tokens: int | None = None  # whole prompts of `requests`, cached part included
    output_tokens_per_s: float | None = None  # answer tokens per second between the engine's last two polls
    live_tokens: int | None = None  # KV tokens that requests use, or will use once begun; shared blocks count once


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
    pool_disk: Transfer | None = None  # from the pool's disks
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
    block_tokens: int | None  # size of the target's cache blocks; None until its events or metrics report it
    capacity_tokens: int | None  # KV tokens that the target can hold
    overlap: Overlap | None  # None: unknown, not empty
    load: Load
    speed: Speed
    held_tokens: int | None = None  # tokens of all prompts, in all tiers, that the target holds by the index


class PoolHit(NamedTuple):
    """Leading prompt tokens that the shared pool holds."""

    tokens: int
    age_s: float
    memory_tokens: int | None = None  # the leading part of `tokens` that is not on the pool's disks


class Ask(NamedTuple):
    """Service objectives and identity of the request."""

    tenant: str | None = None  # pseudonym of the client's API key
    priority: int | None = None  # lower is more urgent, as in vLLM
    ttft_ms: float | None = None  # latency objectives of the request
    tpot_ms: float | None = None
    output_tokens: int | None = None  # the client's cap on the answer (`max_tokens` and its variants)


class View(NamedTuple):
    """Every fact one decision may use."""

    number: int  # number of the request, counting from 0 in this process
    seed: int  # seed of this process: random draws are a function of (seed, number)
    model: str
    adapter: str | None
    prompt_tokens: int | None  # None if not tokenised, or only in part (overlaps may still be known)
    prefix: int | None  # digest of the prompt's first block(s): equal for prompts that share them
    session: str | None  # pseudonym of a chain of turns, in which each prompt continues the one before
    last_target: str | None  # where this policy (or its predecessor) sent the session's last request
    pool: PoolHit | None
    busy: float | None  # share of instances with prefill pending, averaged over about 20 s
    rows: tuple[Row, ...]
    turn: int = 0  # count of earlier decisions for this model and adapter, for round robin
    now_s: float = 0.0  # the router's clock; only differences have a meaning, for plug-ins that learn and forget
    nominal: Speed | None = None  # of the fleet's typical instance, whatever rows remain: prices work, not waiting
    prefixes: tuple[int, ...] = ()  # like `prefix`, for the first 1, 2, 4, 8, ... blocks of the smallest size in use
    ask: Ask = Ask()
    others: int = 0  # candidates without a row: none of them could win under any policy in use
    answer_tokens: float | None = None  # mean length of this model's recent answers
    program: str | None = None  # root session of the family of `session`, possibly `session` itself
    parent: str | None = None  # the session that started `session`; None if none did, or if unknown
    parent_target: str | None = None  # where this policy (or its predecessor) sent the parent's last request
    session_turn: int | None = None  # answers that this router has relayed to the session so far
    idle_s: float | None = None  # since the last answer ended; None before the first answer
    after_tool_call: bool | None = None  # whether the session's last answer ended in a tool call; None if unknown
    live_share: float | None = None  # share of the fleet's KV memory that live requests use; None: unknown


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
        """Return finite costs, one per row of `view` in the order of its rows; lower is better. Changes no
        state.
        """
        raise NotImplementedError

    def parts(self, view: View) -> Mapping[str, Sequence[float]] | None:
        """Return the costs of `score` split into parts: a name (`wait`, `compute`) and one value per row for each
        part. The values of a row add up to its cost. A part may be negative, such as a credit. None: the cost has
        no parts.

        Called when a record is read, never for a decision, so it may be slow. Changes no state.
        """
        return None

    def settled_by(self) -> Measure | None:
        """Return the measure that decides among rows whose overlaps are equal in tokens. None: the scorer needs a
        row for every candidate.

        Declaring a measure saves the router most of the work in a large fleet. The declaration states that among
        rows with equal overlaps the row with the least of the measure never costs more than another, and that the
        costs of the remaining rows do not change when the others are left out. This needs to hold only if either
        all overlaps are known or none is, and no request of other clients waits in an engine.
        """
        return None

    def picked(self, view: View, row: Row) -> None:
        """Learn from a choice: the live policy chose `row`."""

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        """Learn from an outcome: the request that went to `row` has ended."""


class Filter(Plugin):
    """A plug-in that drops rows. If a filter would drop all rows, the router skips it for that decision and notes
    this in the record.
    """

    def keep(self, view: View) -> Sequence[bool]:
        """Return one flag per row of `view`: True keeps the row."""
        raise NotImplementedError

    def settled_by(self) -> Measure | None:
        """Return the measure that decides among rows with equal overlaps, or None, as `Scorer.settled_by` does.
        Among such rows, the filter keeps either all, or those with the least of the measure in the whole view; it
        reads no other value of them.
        """
        return None


class Picker(Plugin):
    """A plug-in that chooses one row, given the costs of all rows."""

    takes_least: ClassVar[bool] = False  # True if it always picks a row of the least cost

    def pick(self, view: View, costs: Sequence[float]) -> int:
        """Return the index of the chosen row; `costs` is never empty."""
        raise NotImplementedError
