"""A vLLM engine core without a GPU: what it would cache, announce, delay and answer, as a pure function of time.

One `Engine` is one data-parallel rank. It works in steps, as vLLM's scheduler does:

    submit -> waiting -> [step: decode one token each | chunks of prefill, within a token budget] -> tokens -> done

A step is planned when the one before it has ended; planning takes blocks (evicting, announcing), ending it yields one
token per request that is fully computed, together with everything the cache announced since. `step(now)` does
whatever is due and says when to be called again, so the same object serves real sockets (`router/emulate`) and virtual
time. It knows no clock, no I/O and nothing of the router.

Modelled on vLLM v1: core/sched/scheduler.py, core/kv_cache_manager.py. Not modelled: speculation, media, sliding
windows, offloading, priorities.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NewType

import xxhash

from router.blocks.events import EngineHash, Event, Stored, Tier
from router.sim import hashes
from router.sim.dice import Dice
from router.sim.pool import Pool

RequestId = NewType("RequestId", int)
Finish = Literal["stop", "length"]
Refusal = Literal["queue full", "too long", "empty prompt", "unknown adapter"]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """How big and how fast an engine is. `prefill_tokens_per_s` 0 means prompts take no time at all."""

    block_tokens: int = 16
    blocks: int = 4096
    prefill_tokens_per_s: float = 8000.0
    decode_ms_per_token: float = 10.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_queued: int | None = None  # waiting requests beyond which new ones are refused
    adapters: Mapping[str, str] = field(default_factory=dict)  # LoRA name -> path (the path is part of the hash)
    vocabulary: Sequence[int] = range(1000, 4000)  # what answers are made of
    end_token: int = 2  # closes an answer that ends by itself
    hash_seed: str = hashes.SEED

    @property
    def capacity_tokens(self) -> int:
        return self.blocks * self.block_tokens


class Request(NamedTuple):
    """One sequence to complete. Its answer follows from (prompt, seed), unless `script` gives it."""

    token_ids: Sequence[int]
    max_tokens: int
    natural_tokens: int | None = None  # length at which the answer ends by itself ("stop"), the end token included
    script: Sequence[int] | None = None  # the answer's tokens; ends by itself after them
    adapter: str | None = None
    salt: str | None = None
    seed: int = 0


class Output(NamedTuple):
    """One new token of one request."""

    token: int
    finish: Finish | None
    cached_tokens: int  # of the prompt, found in the prefix cache when it was admitted


class StepResult(NamedTuple):
    next_wake_s: float | None  # when to call again, on the caller's clock; None: when something is submitted
    outputs: dict[RequestId, Output]
    events: list[Event]  # one batch: removals come before the stores that needed the room


class Gauges(NamedTuple):
    running: int
    waiting: int
    kv_usage: float  # share of blocks in use by requests, cached but unused ones not counted
    cached_blocks: int
    queried_tokens: int
    hit_tokens: int
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    stopped: int
    truncated: int  # ended by max_tokens
    cancelled: int
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]


class _Sequence:
    """A request on its way: its tokens so far, its blocks, how far it is computed and announced."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "digest",
        "id",
        "labels",
        "registered",
        "request",
        "tokens",
        "voice",
    )

    def __init__(self, id: RequestId, request: Request, root: hashes.Digest) -> None:
        self.id = id
        self.request = request
        self.tokens = array("I", request.token_ids)
        self.blocks: list[int] = []
        self.labels: list[EngineHash] = []  # of every full block of `tokens`, as far as they were needed
        self.digest = root  # of the last of them
        self.computed = 0
        self.registered = 0  # leading blocks that are hashed in the pool
        self.cached_tokens: int | None = None  # None until first admitted
        self.voice = Dice(xxhash.xxh3_64_intdigest(self.tokens.tobytes(), request.seed & 0xFFFFFFFF))

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)


class Engine:
    """One engine core. Times are seconds on the caller's clock and must not run backwards.

    `slowdown` stretches every following step; it may be set at any time.
    """

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.slowdown = 1.0
        self._pool = Pool(shape.blocks)
        self._root = hashes.root(shape.hash_seed)
        self._ids = itertools.count()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._step: list[tuple[_Sequence, int]] = []  # what the current step computes: how many tokens of whom
        self._step_ends_s: float | None = None
        self._queried = self._hits = self._prompted = self._generated = 0
        self._preemptions = self._stopped = self._truncated = self._cancelled = 0

    def submit(self, request: Request, now: float) -> RequestId | Refusal:
        """Queue a request; it is looked at when the current step ends (call `step` next when the engine was idle)."""
        if not request.token_ids:
            return "empty prompt"
        if len(request.token_ids) + request.max_tokens > self.shape.capacity_tokens:
            return "too long"
        if request.adapter is not None and request.adapter not in self.shape.adapters:
            return "unknown adapter"
        if self.shape.max_queued is not None and len(self._waiting) >= self.shape.max_queued:
            return "queue full"
        sequence = _Sequence(RequestId(next(self._ids)), request, self._root)
        self._waiting.append(sequence)
        return sequence.id

    def cancel(self, id: RequestId, now: float) -> bool:
        """Forget a request and release its blocks. False: it was not here (any more)."""
        for sequence in self._running:
            if sequence.id == id:
                self._leave(sequence)
                break
        else:
            found = next((sequence for sequence in self._waiting if sequence.id == id), None)
            if found is None:
                return False
            self._waiting.remove(found)
        self._cancelled += 1
        return True

    def step(self, now: float) -> StepResult:
        """End the step that is due, if any, and plan the next. A busy engine's steps follow without gaps."""
        if self._step_ends_s is None:
            self._plan(now)
            return StepResult(self._step_ends_s, {}, [])
        if now < self._step_ends_s:
            return StepResult(self._step_ends_s, {}, [])
        ended_s = self._step_ends_s
        outputs = self._end()
        events = self._pool.drain()
        self._plan(ended_s)
        return StepResult(self._step_ends_s, outputs, events)

    def reset_prefix_cache(self) -> bool:
        """Drop all cached prefixes; refused while a block is in use. As on vLLM it is announced with the next step."""
        return self._pool.reset()

    @property
    def load(self) -> int:
        """What vLLM's balancer compares between ranks: four times the queue plus what runs."""
        return 4 * len(self._waiting) + len(self._running)

    def gauges(self) -> Gauges:
        return Gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=1 - self._pool.free / self.shape.blocks,
            cached_blocks=self._pool.cached,
            queried_tokens=self._queried,
            hit_tokens=self._hits,
            prompt_tokens=self._prompted,
            generated_tokens=self._generated,
            preemptions=self._preemptions,
            stopped=self._stopped,
            truncated=self._truncated,
            cancelled=self._cancelled,
            running_adapters=_adapters(self._running),
            waiting_adapters=_adapters(self._waiting),
        )

    # -- planning a step

    def _plan(self, now: float) -> None:
        """Choose what the next step computes, take the blocks for it, and set its end."""
        self._step = []
        budget, preempted = self._plan_running(self.shape.max_num_batched_tokens)
        if not preempted:
            self._plan_waiting(budget)
        self._step_ends_s = now + self._duration_s() if self._step else None

    def _plan_running(self, budget: int) -> tuple[int, bool]:
        """Those already running, oldest first; out of blocks, the youngest gives up its own and waits again."""
        preempted = False
        place = 0
        while place < len(self._running) and budget > 0:
            sequence = self._running[place]
            count = min(len(sequence.tokens) - sequence.computed, budget)
            while not self._fits(sequence, count):
                victim = self._running[-1]  # never one already planned: those stand before `place`
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    return budget, preempted
            self._compute(sequence, count)
            budget -= count
            place += 1
        return budget, preempted

    def _plan_waiting(self, budget: int) -> None:
        """First come, first served, while whole prompts fit: a head that must wait holds the rest."""
        while self._waiting and budget > 0 and len(self._running) < self.shape.max_num_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                return
            self._waiting.popleft()
            self._running.append(sequence)
            count = min(len(sequence.tokens) - sequence.computed, budget)
            self._compute(sequence, count)
            budget -= count

    def _admit(self, sequence: _Sequence) -> bool:
        """Take the blocks its prefix finds in the cache, if there is room for the rest of it."""
        size = self.shape.block_tokens
        length = len(sequence.tokens)
        self._label(sequence, length // size)
        hits = self._pool.leading(sequence.labels[: (length - 1) // size])  # the last token is always computed
        missing = -(-length // size) - len(hits)
        if missing > self._pool.free - self._pool.waiting(hits):
            return False
        self._pool.touch(hits)
        sequence.blocks = hits
        sequence.registered = len(hits)
        sequence.computed = len(hits) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self._prompted += length
            self._queried += length
            self._hits += sequence.computed
        return True

    def _fits(self, sequence: _Sequence, count: int) -> bool:
        return self._missing(sequence, count) <= self._pool.free

    def _missing(self, sequence: _Sequence, count: int) -> int:
        return -(-(sequence.computed + count) // self.shape.block_tokens) - len(sequence.blocks)

    def _compute(self, sequence: _Sequence, count: int) -> None:
        """Plan `count` more tokens of it: take blocks, and announce those that will be full."""
        missing = self._missing(sequence, count)
        if missing > 0:
            sequence.blocks += self._pool.take(missing)
        self._step.append((sequence, count))
        full = (sequence.computed + count) // self.shape.block_tokens
        if full > sequence.registered:
            self._announce(sequence, full)

    def _announce(self, sequence: _Sequence, full: int) -> None:
        first, size, request = sequence.registered, self.shape.block_tokens, sequence.request
        self._label(sequence, full)
        labels = sequence.labels[first:full]
        self._pool.hold(sequence.blocks[first:full], labels)
        self._pool.events.append(
            Stored(
                hashes=labels,
                parent=sequence.labels[first - 1] if first else None,
                token_ids=sequence.tokens[first * size : full * size],
                block_tokens=size,
                tier=Tier.GPU,
                group=0,
                adapter=request.adapter,
                salt=request.salt if first == 0 else None,
                extras=None,
            )
        )
        sequence.registered = full

    def _label(self, sequence: _Sequence, full: int) -> None:
        """Make sure the first `full` blocks of its tokens have labels."""
        size, request = self.shape.block_tokens, sequence.request
        adapter = (request.adapter, self.shape.adapters[request.adapter]) if request.adapter is not None else None
        for index in range(len(sequence.labels), full):
            tokens = sequence.tokens[index * size : (index + 1) * size]
            sequence.digest = hashes.block(sequence.digest, tokens, hashes.extras(index, adapter, request.salt))
            sequence.labels.append(hashes.label(sequence.digest))

    def _duration_s(self) -> float:
        """Prefill costs by the token, decoding once per step however many decode (they share the memory traffic)."""
        prefill, decodes = 0, False
        for sequence, count in self._step:
            if count == 1 and sequence.generated:
                decodes = True
            else:
                prefill += count
        seconds = self.shape.decode_ms_per_token / 1000 if decodes else 0.0
        if self.shape.prefill_tokens_per_s:
            seconds += prefill / self.shape.prefill_tokens_per_s
        return seconds * self.slowdown

    # -- ending a step

    def _end(self) -> dict[RequestId, Output]:
        """Whoever is computed to the end of its tokens gets one more; whoever got its last one leaves."""
        outputs: dict[RequestId, Output] = {}
        for sequence, count in self._step:
            if not sequence.blocks:
                continue  # cancelled meanwhile
            sequence.computed += count
            if sequence.computed < len(sequence.tokens):
                continue
            token, finish = self._speak(sequence)
            sequence.tokens.append(token)
            self._generated += 1
            outputs[sequence.id] = Output(token, finish, sequence.cached_tokens or 0)
            if finish is not None:
                self._stopped += finish == "stop"
                self._truncated += finish == "length"
                self._leave(sequence)
        return outputs

    def _speak(self, sequence: _Sequence) -> tuple[int, Finish | None]:
        request, position = sequence.request, sequence.generated
        ends = len(request.script) + 1 if request.script is not None else request.natural_tokens
        if ends is not None and position + 1 >= ends:
            return self.shape.end_token, "stop"
        if request.script is not None:
            token = request.script[position]
        else:
            token = self.shape.vocabulary[sequence.voice.below(len(self.shape.vocabulary))]
        return token, "length" if position + 1 >= request.max_tokens else None

    def _leave(self, sequence: _Sequence) -> None:
        self._running.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def _preempt(self, sequence: _Sequence) -> None:
        """Its blocks go; what was cached of it may be hit again when it comes back, first in the queue."""
        self._leave(sequence)
        sequence.computed = sequence.registered = 0
        self._waiting.appendleft(sequence)
        self._preemptions += 1


def _adapters(sequences: Sequence[_Sequence] | deque[_Sequence]) -> tuple[str, ...]:
    return tuple(sorted({s.request.adapter for s in sequences if s.request.adapter is not None}))
