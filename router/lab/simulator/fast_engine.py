"""A fast engine: the engine of `step_engine.py` with many equal steps as one, blocks by name, and no tokens.

A step that computes part of a prompt is taken by itself. Between those a batch only decodes, and every context
grows by a token per step: the time of many such steps is one sum, and the engine jumps to the first step at which a
request ends, the memory is full, or a new request has come.

    submit -> waiting -> [prefill steps: a chunk each, decodes beside it] -> first token -> [strides] -> done
                 |              ^
                 +-- loading ---+      from host memory, the pool or a peer, beside all computing

The profile gives the time per step. As in `step_engine.py`: first come, first served, a whole prompt must fit
before it begins, decodes first, the youngest request is preempted when memory runs out. Simpler: an answer's blocks
are named when it ends, a prompt's can be hit when they are computed (vLLM: when that is planned), and a request
that computes the same blocks as another one at the same time has no copy of its own. A test compares the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

from router.fleet.engine_facts import Gauges
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.block_cache import BlockCache, KvTier, TransferLink


@dataclass(slots=True, eq=False)
class EngineJob:
    """One request at one engine. `names` are the blocks of its prompt and its answer, without the last token."""

    names: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    tag: Any = None  # for the caller
    generated: int = 0  # output tokens, as of the last preemption
    computed: int = 0  # tokens of the prompt and of the output before the last preemption
    held: int = 0  # number of leading blocks that it uses
    tails: Sequence[int] = ()  # of a hybrid model: numbers of leading blocks at which it will leave a tail
    finish_at: int = 0  # the step after which it ends
    local_tokens: int | None = None  # prompt tokens from the GPU cache at its first admission
    host_tokens: int = 0
    pool_tokens: int = 0
    external: int = 0  # leading tokens that a peer has computed

    @property
    def whole_tokens(self) -> int:
        """Tokens to compute before the next output token."""
        return self.prompt_tokens + self.generated

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from any cache."""
        return (self.local_tokens or 0) + self.host_tokens + self.pool_tokens


class StrideResult(NamedTuple):
    """The jobs that got their first or last token in a step or stride."""

    firsts: list[EngineJob]
    dones: list[EngineJob]


class EngineSurroundings(NamedTuple):
    """The memory outside of an engine's GPUs, and its links."""

    pool: KvTier | None
    pool_link: TransferLink | None
    host: KvTier | None
    host_link: TransferLink | None
    peer_link: TransferLink | None


NO_SURROUNDINGS = EngineSurroundings(None, None, None, None, None)
NOTHING_ENDED = StrideResult([], [])


class FastEngine:
    """One instance. Times are virtual seconds and never run backwards. `slowdown` stretches every following
    step.
    """

    def __init__(
        self,
        profile: EngineProfile,
        block_tokens: int,
        around: EngineSurroundings = NO_SURROUNDINGS,
        max_queued: int | None = None,
    ) -> None:
        self.profile = profile
        self.cache = BlockCache(profile.kv_tokens, block_tokens, profile.tail_tokens)
        self.slowdown = 1.0
        self.until_s: float | None = None  # when its step or stride ends; None: idle
        self.busy_s = self.prefill_s = 0.0
        self.preemptions = self.generated_tokens = 0
        self._size = block_tokens
        self._around = around
        self._max_queued = max_queued
        self._waiting: deque[EngineJob] = deque()
        self._loading: dict[EngineJob, float] = {}  # until this time
        self._prefilling: deque[EngineJob] = deque()
        self._chunks: list[tuple[EngineJob, int]] = []  # of the current step
        self._decoding: dict[EngineJob, None] = {}  # in the order of their begin
        self._context_tokens = 0  # of all decoding jobs
        # By the step at which they end; some may have been preempted since.
        self._ends: list[tuple[int, int, EngineJob]] = []
        self._order = 0
        self._steps = 0  # ended so far
        self._began_s = 0.0
        self._stride = 0  # steps of the current stride; 0: a step with part of a prompt

    # requests

    def submit(self, job: EngineJob, now: float) -> bool:
        """Queue `job`. Return False when the queue is full, or when it is too long for the memory."""
        if job.prompt_tokens + job.output_tokens > self.profile.kv_tokens:
            return False
        if self._max_queued is not None and len(self._waiting) >= self._max_queued:
            return False
        self._waiting.append(job)
        if len(self._waiting) == 1:
            self._admit_soon(now)
        return True

    def end_loads(self, now: float) -> None:
        """End the loads that are due."""
        done = [job for job, until_s in self._loading.items() if until_s <= now]
        for job in done:
            del self._loading[job]
            reached = min(job.computed, job.whole_tokens - 1)
            self._name(job, job.computed // self._size)
            job.computed = reached
            self._prefilling.append(job)
        if done:
            self._admit_soon(now)

    @property
    def loads_until_s(self) -> float | None:
        """Time at which the next load ends; None without loads."""
        return min(self._loading.values(), default=None)

    @property
    def unfinished_jobs(self) -> list[EngineJob]:
        """All jobs that have not ended."""
        return [*self._waiting, *self._loading, *self._prefilling, *self._decoding]

    def gauges(self) -> Gauges:
        """Return the engine's metrics."""
        return Gauges(
            len(self._decoding) + len(self._prefilling),
            len(self._waiting) + len(self._loading),
            min(1.0, self.cache.live_tokens / self.profile.kv_tokens),
            self._size,
            self.profile.kv_tokens,
            None,
            None,
            output_tokens=self.generated_tokens,
        )

    # time

    def end(self, now: float) -> StrideResult:
        """End the step or stride that is due, and begin the next."""
        if self.until_s is None or now < self.until_s:
            return NOTHING_ENDED
        self.busy_s += self.until_s - self._began_s
        ended = StrideResult([], [])
        steps = self._stride or 1
        self._grow(steps)
        for job, count in self._chunks:
            self._end_chunk(job, count, ended)
        self._finish(ended)
        self.cache.fit()
        self._plan(self.until_s)
        return ended

    def _admit_soon(self, now: float) -> None:
        """Let a new job begin: at once if the engine is idle, otherwise after the current step."""
        if self.until_s is None:
            self._plan(now)
        elif self._stride > 1 and (self._prefilling or self._may_admit()):
            self._cut(now)

    def _cut(self, now: float) -> None:
        """Shorten the stride to end with the current step."""
        steps = 1 + bisect_left(range(1, self._stride), now, key=lambda count: self._began_s + self._lasts_s(count))
        if steps < self._stride:
            self._stride = steps
            self.until_s = self._began_s + self._lasts_s(steps)

    def _plan(self, now: float) -> None:
        self._began_s = now
        self._chunks = []
        self._stride = 0
        self.until_s = None
        budget = self.profile.batched_tokens - len(self._decoding)
        for job in self._prefilling:
            if budget <= 0:
                break
            count = min(job.whole_tokens - job.computed, budget)
            self._chunks.append((job, count))
            budget -= count
        while budget > 0 and self._may_admit():
            job = self._waiting.popleft()
            if self._admit(job, now):
                count = min(job.whole_tokens - job.computed, budget)
                self._chunks.append((job, count))
                budget -= count
        self._make_room()
        if self._chunks:
            self.until_s = now + self._step_s() * self.slowdown
        elif self._decoding:
            self._plan_stride(now)

    def _plan_stride(self, now: float) -> None:
        """Plan the steps up to the next event. (A single job always continues: loads may take the other memory.)"""
        while self._ends[0][2].finish_at != self._ends[0][0] or self._ends[0][2] not in self._decoding:
            heappop(self._ends)  # preempted since
        room = (self.profile.kv_tokens - self.cache.live_tokens) // len(self._decoding)
        self._stride = max(1, min(self._ends[0][0] - self._steps, room))
        self.until_s = now + self._lasts_s(self._stride)

    def _make_room(self) -> None:
        """Preempt the youngest jobs until the next token of all others fits."""
        while len(self._decoding) > 1 and self.cache.live_tokens + len(self._decoding) > self.profile.kv_tokens:
            self._preempt(next(reversed(self._decoding)))

    def _step_s(self) -> float:
        """Return the duration of the planned step."""
        profile, new, pairs, context = self.profile, 0, 0.0, self._context_tokens
        for job, count in self._chunks:
            new += count
            pairs += count * (job.computed + count / 2)
            context += job.computed + count
        self.prefill_s += (profile.us_per_token * new + profile.ns_per_pair * pairs / 1e3) / 1e6
        return profile.step_s(new, pairs, len(self._decoding), context)

    def _lasts_s(self, steps: int) -> float:
        """Return the duration of `steps` steps that only decode; each reads one token per job more than the
        last.
        """
        profile, count = self.profile, len(self._decoding)
        compute = profile.us_per_decode * count
        memory = profile.weights_ms * 1e3 + profile.ns_per_context_token * self._context_tokens / 1e3
        growth = profile.ns_per_context_token * count / 1e3
        flat = 0  # steps bound by compute
        if compute > memory:
            flat = steps if growth <= 0 else min(steps, int((compute - memory) / growth) + 1)
        left = steps - flat
        bound = left * (memory + growth * flat) + growth * left * (left - 1) / 2
        return (steps * profile.step_ms / 1e3 + (flat * compute + bound) / 1e6) * self.slowdown

    # one job

    def _may_admit(self) -> bool:
        """Return whether the head of the queue can begin."""
        if not self._waiting or (
            len(self._decoding) + len(self._prefilling) + len(self._loading) >= self.profile.max_seqs
        ):
            return False
        job = self._waiting[0]
        hits, _ = self._hits(job)
        idle = self.cache.count_idle(job.names[:hits]) * self._size
        return self.cache.live_tokens + idle + job.whole_tokens - hits * self._size <= self.profile.kv_tokens

    def _hits(self, job: EngineJob) -> tuple[int, int]:
        """Return how many leading blocks of `job` it re-uses, and how many are cached; its last token is always
        computed.
        """
        names = job.names[: (job.whole_tokens - 1) // self._size]
        held = self.cache.count_held(names)
        return self.cache.count_reusable(names, held), held

    def _admit(self, job: EngineJob, now: float) -> bool:
        """Take the memory that the prompt of `job` needs. Return False if part of it must be loaded first."""
        hits, cached = self._hits(job)
        if self.cache.tail_tokens is not None:  # where it ends, and where it parts from others
            job.tails = sorted({cached, (job.whole_tokens - 1) // self._size} - {0})
            if hits:
                self.cache.keep_tail(job.names[hits - 1])
        self.cache.use(job.names[:hits])
        job.held = hits
        job.computed = hits * self._size
        self.cache.nameless_tokens += job.whole_tokens - job.computed
        self.cache.fit()
        first = job.local_tokens is None
        if first:
            job.local_tokens = job.computed
        until_s = self._fetch(job, now, first)
        if until_s is not None:
            self._loading[job] = until_s
            return False
        self._prefilling.append(job)
        return True

    def _fetch(self, job: EngineJob, now: float, first: bool) -> float | None:
        """Begin to load blocks beyond the engine's own cache, whatever the cost, as vLLM does. Return when the load
        ends; None: no load.
        """
        pool, pool_link, host, host_link, peer_link = self._around
        if job.external > job.computed and peer_link is not None:
            tokens, job.computed, job.external = job.external - job.computed, job.external, 0
            job.pool_tokens += tokens
            return peer_link.load(tokens, now)
        names = job.names[: job.whole_tokens // self._size]
        until_s: float | None = None
        if host is not None and host_link is not None and (reach := host.count_held(names) * self._size) > job.computed:
            until_s = host_link.load(reach - job.computed, now)
            host.use(names[: reach // self._size])
            job.host_tokens += (reach - job.computed) * first
            job.computed = reach
        if pool is not None and pool_link is not None and (reach := pool.count_held(names) * self._size) > job.computed:
            until_s = pool_link.load(reach - job.computed, now if until_s is None else until_s)
            pool.use(names[: reach // self._size])
            job.pool_tokens += (reach - job.computed) * first
            job.computed = reach
        return until_s

    def _end_chunk(self, job: EngineJob, count: int, ended: StrideResult) -> None:
        """End a chunk of `count` tokens of the prompt of `job`."""
        job.computed += count
        self._name(job, job.computed // self._size)
        if job.computed < job.whole_tokens:
            return
        self._prefilling.remove(job)
        self._save(job)
        if not job.generated:
            ended.firsts.append(job)
        self.generated_tokens += 1
        job.generated += 1
        if job.generated >= job.output_tokens:
            self._done(job, ended)
            return
        job.finish_at = self._steps + job.output_tokens - job.generated
        self._decoding[job] = None
        self._context_tokens += job.whole_tokens - 1  # its newest token is not cached yet
        self._order += 1
        heappush(self._ends, (job.finish_at, self._order, job))

    def _name(self, job: EngineJob, blocks: int) -> None:
        if blocks > job.held:
            self.cache.name(job.names, job.held, blocks)
            for end in job.tails:
                if job.held < end <= blocks:
                    self.cache.keep_tail(job.names[end - 1])
            job.held = blocks

    def _save(self, job: EngineJob) -> None:
        """Save a job's prompt to host memory and pool; answers are not saved (vLLM: save_decode_cache is off)."""
        names = job.names[: job.prompt_tokens // self._size]
        if self._around.host is not None:
            self._around.host.use(names)
        if self._around.pool is not None:
            self._around.pool.use(names)

    def _grow(self, steps: int) -> None:
        """Add `steps` tokens to every decoding job."""
        self._steps += steps
        more = steps * len(self._decoding)
        self.generated_tokens += more
        self._context_tokens += more
        self.cache.nameless_tokens += more

    def _finish(self, ended: StrideResult) -> None:
        while self._ends and self._ends[0][0] <= self._steps:
            at, _, job = heappop(self._ends)
            if at != job.finish_at or job not in self._decoding:
                continue
            del self._decoding[job]
            job.generated = job.output_tokens
            self._context_tokens -= job.whole_tokens - 1
            self._done(job, ended)

    def _done(self, job: EngineJob, ended: StrideResult) -> None:
        """Remove a job that has ended; its full blocks stay cached."""
        in_cache = job.whole_tokens - 1
        full = min(in_cache // self._size, len(job.names))
        if full > job.held:
            self._name(job, full)
        self.cache.nameless_tokens -= in_cache - job.held * self._size
        self.cache.release(job.names[: job.held])
        job.held = 0
        ended.dones.append(job)

    def _preempt(self, job: EngineJob) -> None:
        """Put a job back to the head of the queue; blocks that are evicted until it returns are computed anew."""
        del self._decoding[job]
        self.preemptions += 1
        job.generated = job.output_tokens - (job.finish_at - self._steps)
        job.finish_at = -1
        self._context_tokens -= job.whole_tokens - 1
        self.cache.nameless_tokens -= job.whole_tokens - 1 - job.held * self._size
        self.cache.release(job.names[: job.held])
        job.held = 0
        self._waiting.appendleft(job)
