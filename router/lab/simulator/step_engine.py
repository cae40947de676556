"""A vLLM engine core without a GPU: its caching, events, delays and answers as a pure function of time.

One `StepEngine` is one data-parallel rank. It works in steps, as vLLM's scheduler does:

    submit -> waiting -> [step: decode one token each | chunks of prefill, within a token budget] -> tokens -> done
                 |                              ^
                 +-- loading from outside ------+

A step is planned when the one before it has ended; planning a step takes blocks (evicting, announcing), ending it
yields one token per request that is fully computed, together with the cache events since then. `step(now)` does
what is due and returns when to call it again, so the same object serves real sockets (`router/lab/emulator`) and
virtual time. The engine has no clock and no I/O, and does not depend on the router, or on where outside KV is held
and saved.

Modelled on vLLM v1: core/sched/scheduler.py, core/kv_cache_manager.py. Not modelled: speculation, media, Mamba,
offloading to its own host, priorities.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import BlocksStored, EngineHash, Tier
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.block_pool import BlockPool
from router.lab.simulator.engine_types import (
    BlockSave,
    EngineGauges,
    EngineShape,
    Finish,
    Refusal,
    RequestId,
    SequenceOutput,
    SequenceRequest,
    StepResult,
)
from router.lab.simulator.sequence import KvLoad, KvLoads, Sequence
from router.lab.simulator.window_group import GIVEN_UP, WindowGroup

Labels = list[EngineHash]


class StepEngine:
    """One engine core. Times are seconds on the caller's clock and must not run backwards."""

    def __init__(self, shape: EngineShape) -> None:
        self.shape = shape
        self.slowdown = 1.0  # stretches every following step; it may be set at any time
        self._pool = BlockPool(shape.blocks)
        self._windows = [WindowGroup(n, one, shape.block_tokens) for n, one in enumerate(shape.sliding_windows)]
        self._full = len(self._windows)  # the number of the group of full attention
        self._chain = EngineChain(shape.hash_algo, shape.hash_seed)
        self._ids = itertools.count()
        self._waiting: deque[Sequence] = deque()
        self._loads = KvLoads(shape)
        self._running: list[Sequence] = []
        self._held: dict[RequestId, list[int]] = {}  # blocks of finished requests, which peers may fetch
        self._step: list[tuple[Sequence, int]] = []  # the current step: sequences and how many of their tokens
        self._step_ends_s: float | None = None
        self._saves: list[BlockSave] = []
        self._queried = self._hits = self._prompted = self._generated = 0
        self._external_queried = self._external_hits = 0
        self._preemptions = self._stopped = self._truncated = self._cancelled = 0

    def submit(self, request: SequenceRequest, now: float) -> RequestId | Refusal:
        """Queue a request for the next step; if the engine was idle, call `step` next. Return its id or a
        refusal.
        """
        if not request.token_ids:
            return "empty prompt"
        if len(request.token_ids) + request.max_tokens > self.shape.capacity_tokens:
            return "too long"
        if request.adapter is not None and request.adapter not in self.shape.adapters:
            return "unknown adapter"
        if self.shape.max_queued is not None and len(self._waiting) >= self.shape.max_queued:
            return "queue full"
        sequence = Sequence(RequestId(next(self._ids)), request, self.shape, self._chain)
        self._waiting.append(sequence)
        return sequence.id

    def cancel(self, id: RequestId, now: float) -> bool:
        """Forget a request and release its blocks. Return False when the engine does not have it."""
        if (sequence := _with_id(id, self._running)) is not None:
            self._leave(sequence)
        elif (sequence := self._loads.drop(id)) is not None:
            self._pool.release(sequence.blocks)
        elif (sequence := _with_id(id, self._waiting)) is not None:
            self._waiting.remove(sequence)
        else:
            return False
        self._cancelled += 1
        return True

    def on_peer_ready(self, id: RequestId, now: float) -> None:
        """Begin to load the KV of request `id`, computed by its peer, as soon as there is room for it."""
        if (sequence := _with_id(id, self._waiting)) is not None:
            sequence.waits_for_peer = False
        self._loads.on_peer_ready(id, now)

    def on_peer_lost(self, id: RequestId) -> None:
        """Compute the prompt of request `id` here, because its peer's KV will not come."""
        if (sequence := _with_id(id, self._waiting)) is not None:
            sequence.external_tokens = 0
        elif (sequence := self._loads.drop(id)) is not None:
            sequence.cached_tokens = sequence.computed
            self._running.append(sequence)

    def free(self, id: RequestId) -> None:
        """Release the blocks that a finished request holds for its peer."""
        self._pool.release(self._held.pop(id, []))

    def digests(self, request: SequenceRequest) -> list[Digest]:
        """Return the names of the full blocks of the request's prompt in the shared pool."""
        full = len(request.token_ids) // self.shape.block_tokens
        sequence = Sequence(RequestId(-1), request, self.shape, self._chain)
        sequence.label(full)
        return sequence.digests

    def step(self, now: float) -> StepResult:
        """End the step that is due, if any, and plan the next. Steps of a busy engine follow without gaps."""
        if self._step_ends_s is None:
            self._plan(now)
            return StepResult(self._wake_s, {}, [])
        if now < self._step_ends_s:
            return StepResult(self._step_ends_s, {}, [])
        ended_s = self._step_ends_s
        outputs = self._end()
        events = self._pool.drain()
        saves, self._saves = self._saves, []
        self._plan(ended_s)
        return StepResult(self._wake_s, outputs, events, saves)

    def reset_prefix_cache(self) -> bool:
        """Drop all cached prefixes, announced with the next step as in vLLM. Return False while a block is in
        use.
        """
        return self._pool.reset()

    @property
    def load(self) -> int:
        """The load that vLLM's balancer compares between ranks: four times the waiting plus the running
        requests.
        """
        return 4 * (len(self._waiting) + len(self._loads)) + len(self._running)

    @property
    def stepping(self) -> bool:
        """Return whether a step is under way; new requests wait for its end."""
        return self._step_ends_s is not None

    @property
    def _wake_s(self) -> float | None:
        return self._loads.next_s if self._step_ends_s is None else self._step_ends_s

    def gauges(self) -> EngineGauges:
        """Return the engine's metrics."""
        return EngineGauges(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._loads),
            loading=len(self._loads),
            kv_usage=1 - self._pool.free / self.shape.blocks,
            cached_blocks=self._pool.cached_blocks,
            queried_tokens=self._queried,
            hit_tokens=self._hits,
            external_queried_tokens=self._external_queried,
            external_hit_tokens=self._external_hits,
            pool_loads=self._loads.count,
            pool_loaded_blocks=self._loads.blocks,
            pool_load_s=self._loads.seconds,
            prompt_tokens=self._prompted,
            generated_tokens=self._generated,
            preemptions=self._preemptions,
            stopped=self._stopped,
            truncated=self._truncated,
            cancelled=self._cancelled,
            running_adapters=_adapters(self._running),
            waiting_adapters=_adapters([*self._waiting, *self._loads.sequences]),
        )

    # -- planning a step

    def _plan(self, now: float) -> None:
        """Plan what the next step computes, take the blocks for the step, and set its end."""
        self._step = []
        for load in self._loads.take_finished(now):
            self._resume(load)
        budget, preempted = self._plan_running(self.shape.max_num_batched_tokens)
        if not preempted:
            self._plan_waiting(budget, now)
        self._step_ends_s = now + self._duration_s() if self._step else None

    def _plan_running(self, budget: int) -> tuple[int, bool]:
        """Plan running requests, oldest first; preempt the youngest for room. Return the remaining budget, and
        whether a request was preempted.
        """
        preempted = False
        place = 0
        while place < len(self._running) and budget > 0:
            sequence = self._running[place]
            for group, blocks in zip(self._windows, sequence.windows, strict=True):
                group.give_up(self._pool, blocks, sequence.computed)
            count = min(len(sequence.tokens) - sequence.computed, budget)
            while not self._fits(sequence, count):
                victim = self._running[-1]  # never one already planned: those are before `place`
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    return budget, preempted
            self._compute(sequence, count)
            budget -= count
            place += 1
        return budget, preempted

    def _plan_waiting(self, budget: int, now: float) -> None:
        """Admit requests, first come, first served, while whole prompts fit: a head that must wait blocks the
        rest.
        """
        while self._waiting and budget > 0 and len(self._running) + len(self._loads) < self.shape.max_num_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                return
            self._waiting.popleft()
            if outside := max(0, sequence.external_tokens - sequence.computed):
                self._load(sequence, outside, now)
                continue
            self._running.append(sequence)
            count = min(len(sequence.tokens) - sequence.computed, budget)
            self._compute(sequence, count)
            budget -= count

    def _admit(self, sequence: Sequence) -> bool:
        """Take the cached blocks of the prefix if there is room for the rest. Return whether there is room."""
        size, pool = self.shape.block_tokens, self._pool
        length = len(sequence.tokens)
        labels = sequence.label(length // size)
        held = pool.find_leading(labels[: (length - 1) // size], self._full)  # the last token is always computed
        reused = self._count_reused(labels, len(held))
        windows = [group.list_cached(pool, labels, reused) for group in self._windows]
        hits = [block for blocks in (*windows, held[:reused]) for block in blocks if block != GIVEN_UP]
        missing = (-(-length // size) - reused) * (1 + len(windows))
        if missing > pool.free - pool.count_free(hits):
            return False
        pool.touch(hits)
        sequence.blocks, sequence.windows = held[:reused], windows
        sequence.junction = len(held) if len(held) > reused else 0
        sequence.registered = reused
        sequence.computed = reused * size
        if sequence.cached_tokens is None:
            self._count(sequence)
        return True

    def _count_reused(self, labels: Labels, held: int) -> int:
        """Return how many of the leading blocks of a prompt, of which full attention holds `held`, are re-used."""
        before = -1
        while held != before:
            before = held
            for group in self._windows:
                held = group.count_reused(self._pool, labels, held)
        return held

    def _count(self, sequence: Sequence) -> None:
        """Count the sources of the sequence's prompt, at its first admission."""
        length, local = len(sequence.tokens), sequence.computed
        sequence.cached_tokens = max(local, sequence.external_tokens)
        self._prompted += length
        self._queried += length
        self._hits += local
        if sequence.request.external_tokens is not None:
            self._external_queried += length - local
            self._external_hits += sequence.cached_tokens - local

    def _load(self, sequence: Sequence, tokens: int, now: float) -> None:
        """Park the sequence, with blocks for its load. A sequence is parked once: after a preemption it computes
        everything itself.
        """
        sequence.external_tokens = 0
        sequence.blocks += self._pool.take(self._missing(sequence, tokens))
        self._loads.begin(sequence, tokens, now)

    def _resume(self, load: KvLoad) -> None:
        """Run a request whose load has ended, and announce its blocks. A prompt's last token is always computed."""
        sequence, reached = load.sequence, load.sequence.computed + load.tokens
        sequence.computed = min(reached, len(sequence.tokens) - 1)
        self._announce(sequence, reached // self.shape.block_tokens)
        self._running.append(sequence)

    def _fits(self, sequence: Sequence, count: int) -> bool:
        return self._missing(sequence, count) <= self._pool.free

    def _missing(self, sequence: Sequence, count: int) -> int:
        """Return how many blocks `count` more tokens of the sequence require in all groups."""
        missing = -(-(sequence.computed + count) // self.shape.block_tokens) - len(sequence.blocks)
        return missing * (1 + len(self._windows))

    def _compute(self, sequence: Sequence, count: int) -> None:
        """Plan `count` more tokens of the sequence: take blocks, and announce those that will be full."""
        missing = self._missing(sequence, count) // (1 + len(self._windows))
        if missing > 0:
            for blocks in (*sequence.windows, sequence.blocks):
                blocks += self._pool.take(missing)
        self._step.append((sequence, count))
        self._announce(sequence, (sequence.computed + count) // self.shape.block_tokens)

    def _announce(self, sequence: Sequence, full: int) -> None:
        """Announce the first `full` blocks of the sequence, which can be hit from now on."""
        first, size, request = sequence.registered, self.shape.block_tokens, sequence.request
        if full <= first:
            return
        labels = sequence.label(full)[:full]
        ends = (len(request.token_ids) - 1) // size, sequence.junction
        for group, blocks in zip(self._windows, sequence.windows, strict=True):
            group.announce(self._pool, blocks, labels, first, ends)
        del labels[:first]
        self._pool.label(sequence.blocks[first:full], labels, self._full)
        self._pool.events.append(
            BlocksStored(
                hashes=labels,
                parent=sequence.labels[first - 1] if first else None,
                token_ids=sequence.tokens[first * size : full * size],
                block_tokens=size,
                tier=Tier.GPU,
                group=self._full,
                adapter=request.adapter,
                salt=request.salt if first == 0 else None,
                extras=None,
            )
        )
        sequence.registered = full

    def _duration_s(self) -> float:
        """Return the step's duration by the profile; without one, prefill costs per token, decoding per step."""
        if self.shape.profile is not None:
            return self._profiled_s(self.shape.profile) * self.slowdown
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

    def _profiled_s(self, profile: EngineProfile) -> float:
        new, pairs, decodes, context = 0, 0.0, 0, 0
        for sequence, count in self._step:
            context += sequence.computed
            if count == 1 and sequence.generated and sequence.computed + 1 == len(sequence.tokens):
                decodes += 1
            else:
                new += count
                pairs += count * (sequence.computed + count / 2)
                context += count
        return profile.step_s(new, pairs, decodes, context)

    # -- ending a step

    def _end(self) -> dict[RequestId, SequenceOutput]:
        """Add a token to each fully computed sequence, and remove those that got their last one."""
        outputs: dict[RequestId, SequenceOutput] = {}
        for sequence, count in self._step:
            if not sequence.blocks:
                continue  # cancelled meanwhile
            sequence.computed += count
            if sequence.computed < len(sequence.tokens):
                continue
            if self.shape.saves and not sequence.generated:
                self._save(sequence)
            token, finish = sequence.next_token()
            sequence.tokens.append(token)
            self._generated += 1
            outputs[sequence.id] = SequenceOutput(token, finish, sequence.cached_tokens or 0)
            if finish is not None:
                self._finish(sequence, finish)
        return outputs

    def _save(self, sequence: Sequence) -> None:
        """Save the full blocks of the sequence's prompt; as in vLLM by default, output is not saved."""
        size = self.shape.block_tokens
        if full := len(sequence.tokens) // size:
            self._saves.append(BlockSave(sequence.tokens[: full * size], sequence.digests[:full], size))

    def _finish(self, sequence: Sequence, finish: Finish) -> None:
        self._stopped += finish == "stop"
        self._truncated += finish == "length"
        if finish in sequence.request.keeps_after:
            self._held[sequence.id], sequence.blocks = sequence.blocks, []
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        for blocks in (*sequence.windows, sequence.blocks):
            self._pool.release([block for block in blocks if block != GIVEN_UP])
        sequence.blocks = []
        sequence.windows = [[] for _ in self._windows]

    def _preempt(self, sequence: Sequence) -> None:
        """Release the sequence's blocks and put it first in the queue; blocks that stay cached may be hit later."""
        self._leave(sequence)
        sequence.computed = sequence.registered = 0
        self._waiting.appendleft(sequence)
        self._preemptions += 1


def _with_id(id: RequestId, sequences: Iterable[Sequence]) -> Sequence | None:
    return next((sequence for sequence in sequences if sequence.id == id), None)


def _adapters(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    return tuple(sorted({s.request.adapter for s in sequences if s.request.adapter is not None}))
