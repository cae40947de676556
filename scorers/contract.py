"""What a scorer sees and what it answers: the contract between the router and everything that chooses.

A `View` is frozen: every fact one decision may use, gathered once, shared by the live policy, its shadows, the
replayer and the simulator. A scorer turns it into one cost per row, *lower is better*; a filter says which rows
stay; a picker takes the costs and names a row. None of them does I/O, reads a clock or rolls dice of its own:
what they need from time and chance is in the view (`seed`, `number`, ages), so the same view gives the same choice.

Missing is `None`, never 0: a row whose engine has told nothing must not look idle. Every outside value carries its
age in seconds. Whoever reads a value says in its docstring what missing means to it.

Fields with a default came later, or only some fleets know them: the default is what "nobody told" looks like. The
structs are NamedTuples because they are built per candidate and request: immutable like a frozen dataclass at a quarter
of its construction cost. This package imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, Flag, auto
from typing import ClassVar, Literal, NamedTuple


class Unit(Enum):
    """What a cost is measured in. One policy, one unit: mixing is refused when the policy is built."""

    MS = "ms"
    BLOCKS = "blocks"
    POINTS = "points"  # in [0, 1], checked by the host
    RAW = "raw"  # a scale of its own: must be the policy's only scorer


class Needs(Flag):
    """What a plug-in reads from the view beyond the rows' names. The router skips work that no policy needs."""

    NONE = 0
    CACHE = auto()  # prompt_tokens, prefix, prefixes, rows[].overlap, rows[].held_tokens
    POOL = auto()  # pool
    LOAD = auto()  # rows[].load, rows[].speed, busy, nominal
    SESSION = auto()  # session, last_target


class Measure(Enum):
    """What settles a choice among rows that hold the same of a prompt: the least of it wins."""

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
    `gpu_tokens`) also counts blocks of requests sent there so recently that no event can have told of them yet.
    All are capped at what an engine can use: the last prompt token is always computed.
    """

    gpu_tokens: int
    cpu_tokens: int
    disk_tokens: int
    expected_tokens: int
    source: Literal["events", "approximate"]  # approximate: what we sent there, no events to trust
    age_s: float | None  # since the target's last sign of life on its event stream


class Load(NamedTuple):
    """How busy a target is: our own books first, then what the engine last said of itself."""

    requests: int  # our bookings in flight
    prefilling: int  # of those, without a first byte yet
    prefill_tokens: int  # uncached prompt tokens of those `prefilling`
    context_tokens: int  # of all our bookings, as prompts: nobody counts answers while they stream
    queued_ms: float  # prefill_tokens priced with this row's speed
    running: int | None  # the engine's own gauges, as last polled
    waiting: int | None
    kv_usage: float | None  # share of KV blocks in use by live requests, 0..1; cached but idle blocks do not count
    elsewhere: int | None  # requests the engine had, at that poll, that were not ours
    metrics_age_s: float | None
    adapters: frozenset[str] | None  # LoRA adapters that its running requests use
    max_adapters: int | None
    waiting_adapters: frozenset[str] | None = None  # LoRA adapters that its waiting requests ask for
    prompt_tokens: int | None = None  # whole prompts, cached part included, of our bookings in flight
    output_tokens_per_s: float | None = None  # answer tokens per second between its last two polls


class Transfer(NamedTuple):
    """The fitted cost of bringing KV from a slower tier: `base_ms + us_per_token * tokens / 1000`."""

    base_ms: float
    us_per_token: float
    samples: int
    age_s: float | None


class Decode(NamedTuple):
    """The fitted time of one decode step (one token for everyone in the batch) of one instance.

    `base_ms + us_per_request * requests / 1000 + ns_per_context_token * context_tokens / 1e6`
    """

    base_ms: float
    us_per_request: float
    ns_per_context_token: float
    samples: int
    age_s: float | None

    def step_ms(self, requests: int, context_tokens: int) -> float:
        return self.base_ms + self.us_per_request * requests / 1000 + self.ns_per_context_token * context_tokens / 1e6


class Speed(NamedTuple):
    """The fitted prefill curve of one instance, starting from the configured prior (then `samples` is 0).

    Milliseconds to compute `new` tokens after `context` cached ones:
    `base_ms + (us_per_token * new + ns_per_token_context * new * (context + new / 2) / 1000) / 1000`
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
        attended = new * (context + new / 2)
        return self.base_ms + (self.us_per_token * new + self.ns_per_token_context * attended / 1000) / 1000


class Row(NamedTuple):
    """One candidate target."""

    target: str
    instance: str
    rank: int
    block_tokens: int | None  # size of its cache blocks; None until its stream or metrics told
    capacity_tokens: int | None  # KV tokens it can hold
    overlap: Overlap | None  # None: unknown, not "nothing"
    load: Load
    speed: Speed
    held_tokens: int | None = None  # all that the index knows it to hold, for whatever prompt, every tier


class PoolHit(NamedTuple):
    """Leading prompt tokens that the shared pool holds."""

    tokens: int
    age_s: float
    memory_tokens: int | None = None  # the leading part of them that is not on the pool's disks


class Ask(NamedTuple):
    """What the request asks of its service, and for whom."""

    tenant: str | None = None  # pseudonym of the client's API key
    priority: int | None = None  # lower is more urgent, as in vLLM
    ttft_ms: float | None = None  # the objectives it is held to
    tpot_ms: float | None = None
    output_tokens: int | None = None  # the client's cap on its answer (`max_tokens` and its like)


class View(NamedTuple):
    """Every fact one decision may use."""

    number: int  # of the request, counting from 0 in this process
    seed: int  # of this process: chance is a function of (seed, number)
    model: str
    adapter: str | None
    prompt_tokens: int | None  # None: not tokenised, or only a leading part of it (overlaps may be known all the same)
    prefix: int | None  # digest of the prompt's first block(s): a stable name for "prompts that begin alike"
    session: str | None
    last_target: str | None  # where this session's last request went, by the choice of this policy (or its predecessor)
    pool: PoolHit | None
    busy: float | None  # share of instances with prefill pending, averaged over about 20 s
    rows: tuple[Row, ...]
    turn: int = 0  # of this decision among those for its model and adapter: what taking turns goes by
    now_s: float = 0.0  # the router's clock: only differences mean anything, for plug-ins that learn and forget
    nominal: Speed | None = None  # the fleet's typical instance, whatever rows are left: prices work, not waiting
    prefixes: tuple[int, ...] = ()  # like `prefix`, for the first 1, 2, 4, 8, ... blocks of the smallest size in use
    ask: Ask = Ask()
    others: int = 0  # candidates without a row: none of them could win by any policy in use
    answer_tokens: float | None = None  # how long answers of this model are, in the mean of the last ones


class Outcome(NamedTuple):
    """What became of a request, for plug-ins that learn."""

    ok: bool
    status: int | None
    ttft_ms: float | None
    duration_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class Plugin:
    """What every kind shares. Plug-ins are dataclasses: their fields are the policy file's parameters."""

    needs: ClassVar[Needs] = Needs.NONE


class Scorer(Plugin):
    """One cost per row."""

    unit: ClassVar[Unit]
    order_matters: ClassVar[bool] = False  # True where a cost depends on a row's position

    def score(self, view: View) -> Sequence[float]:
        """Finite costs, one per row of `view`, in its order; lower is better. Changes nothing."""
        raise NotImplementedError

    def settled_by(self) -> Measure | None:
        """A promise that spares the router most of a large fleet: among rows whose overlaps are equal in tokens, the
        one with the least of this measure never costs more than another, and leaving out rows that an equal one beats
        changes no cost. None: no promise, every candidate gets a row.

        It needs to hold only where all overlaps are known, or none is, and no request of others waits in an engine.
        """
        return None

    def picked(self, view: View, row: Row) -> None:
        """The live policy chose `row`: the place to learn from choices."""

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        """The request that went to `row` has ended: the place to learn from outcomes."""


class Filter(Plugin):
    """Which rows stay. A filter that would leave none is skipped for that decision, and the record says so."""

    def keep(self, view: View) -> Sequence[bool]:
        raise NotImplementedError

    def settled_by(self) -> Measure | None:
        """As a scorer's: of rows with equal overlaps it keeps all, or those that have the least of this in the whole
        view, and looks at nothing else of them.
        """
        return None


class Picker(Plugin):
    """From costs to a choice."""

    takes_least: ClassVar[bool] = False  # True where it picks a row of the least cost, whatever the others are

    def pick(self, view: View, costs: Sequence[float]) -> int:
        """The index of the chosen row; `costs` is never empty."""
        raise NotImplementedError
