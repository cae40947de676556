"""The engine cores of one emulated server, driven in real time: each rank's simulated engine steps when it is due.

An `TokenStream` is what one HTTP request waits on: the tokens of all its sequences (n > 1, several prompts) in the
order in which they were made. Whoever holds one closes it; closing cancels what is still running, as vLLM's abort
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import zmq

from router.clock import Clock
from router.errors import WarmrouteError
from router.tasks import Tasks
from router.testbed.emulator.kv_publisher import KvPublisher
from router.testbed.emulator.options import EngineFaults, EngineOptions
from router.testbed.emulator.store_client import EmulatedStoreClient
from router.testbed.simulator.engine_types import (
    BlockSave,
    EngineShape,
    Finish,
    Refusal,
    RequestId,
    SequenceOutput,
    SequenceRequest,
)
from router.testbed.simulator.step_engine import StepEngine


class RequestGone(Exception):
    """There is no use in going on: the client left, or the engine core died."""


class EngineFailed(WarmrouteError):
    """The engine failed at a request: 500."""


class TokenStream:
    """Tokens as they come, tagged with the number of their sequence."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.ids: list[RequestId] = []  # by sequence
        self.finishes: dict[int, Finish] = {}  # by sequence
        self._open: dict[RequestId, int] = {}
        self._new: list[tuple[int, SequenceOutput]] = []
        self._wake = asyncio.Event()
        self._end: RequestGone | EngineFailed | None = None
        self._bringing: asyncio.Task[None] | None = None

    async def tokens(self) -> list[tuple[int, SequenceOutput]]:
        """At least one new token; an empty list when every sequence has ended. Raises Gone, Broken."""
        while not self._new and self._open and self._end is None:
            self._wake.clear()
            await self._wake.wait()
        if self._end is not None:
            raise self._end
        new, self._new = self._new, []
        return new

    def abandon(self) -> None:
        """Nobody wants it any more."""
        self._stop(RequestGone())

    def fail(self) -> None:
        """The engine gives it up."""
        self._stop(EngineFailed("Internal server error"))

    def bring(self, task: asyncio.Task[None]) -> None:
        """This task gets its prompt's KV, and is of no use without it."""
        self._bringing = task

    def close(self) -> None:
        if self._bringing is not None:
            self._bringing.cancel()
        for id in self._open:
            self.core.cancel(id, self)
        self._open.clear()

    def expect(self, id: RequestId, sequence: int) -> None:
        self.ids.append(id)
        self._open[id] = sequence

    def take(self, id: RequestId, output: SequenceOutput) -> None:
        self._new.append((self._open[id], output))
        if output.finish is not None:
            self.finishes[self._open.pop(id)] = output.finish
        self._wake.set()

    def _stop(self, end: RequestGone | EngineFailed) -> None:
        self._end = end
        self._wake.set()


class EngineCore:
    """One rank: a simulated engine, its publisher, and who waits for what."""

    def __init__(
        self,
        rank: int,
        shape: EngineShape,
        clock: Clock,
        publisher: KvPublisher | None,
        store: EmulatedStoreClient | None,
        tasks: Tasks,
    ) -> None:
        self.rank = rank
        self.engine = StepEngine(shape)
        self.publisher = publisher
        self.saving = 0  # prompts on their way into the pool
        self.may_run = asyncio.Event()  # not set: frozen
        self.may_run.set()
        self._shape = shape
        self._clock = clock
        self._store = store
        self._tasks = tasks
        self._answers: dict[RequestId, TokenStream] = {}
        self._work = asyncio.Event()

    def submit(self, requests: Sequence[SequenceRequest]) -> TokenStream | Refusal:
        """Queue all sequences of one HTTP request, or none of them."""
        answer = TokenStream(self)
        for number, request in enumerate(requests):
            id = self.engine.submit(request, self._clock.now())
            if isinstance(id, str):
                answer.close()
                return id
            answer.expect(id, number)
            self._answers[id] = answer
        self._work.set()
        return answer

    def cancel(self, id: RequestId, answer: TokenStream) -> None:
        """Nothing happens when the id is no longer this answer's: a restarted engine counts from 0 again."""
        if self._answers.get(id) is answer:
            del self._answers[id]
            self.engine.cancel(id, self._clock.now())
            self._work.set()

    def arrived(self, answer: TokenStream) -> None:
        """The KV that it waits for can be had."""
        for id in self._mine(answer):
            self.engine.arrived(id, self._clock.now())
        self._work.set()

    def lost(self, answer: TokenStream) -> None:
        """The KV that it waits for will not come."""
        for id in self._mine(answer):
            self.engine.lost(id)
        self._work.set()

    def free(self, id: RequestId, engine: StepEngine) -> None:
        """Nobody needs the blocks any more that `engine`, ours or one before a restart, kept of a finished request."""
        engine.free(id)
        self._work.set()

    async def run(self) -> None:
        """Step when due, for ever. With no time to spend, other work still gets its turn after every step."""
        while True:
            await self.may_run.wait()
            now = self._clock.now()
            result = self.engine.step(now)
            if result.events and self.publisher is not None:
                self.publisher.publish(result.events)
            for id, output in result.outputs.items():
                answer = self._answers[id] if output.finish is None else self._answers.pop(id)
                answer.take(id, output)
            for save in result.saves:
                self.saving += 1
                self._tasks.spawn("save", self._save(save))
            pause_s = None if result.next_wake_s is None else max(0.0, result.next_wake_s - now)
            if self.engine.stepping and pause_s is not None:
                await asyncio.sleep(pause_s)
            else:
                await self._idle(pause_s)

    def restart(self) -> None:
        """A new engine core in the old one's place: an empty cache, sequences from 0, and everybody's answer lost."""
        lost = set(self._answers.values())
        self._answers.clear()
        slowdown = self.engine.slowdown
        self.engine = StepEngine(self._shape)
        self.engine.slowdown = slowdown
        if self.publisher is not None:
            self.publisher.restart()
        for answer in lost:
            answer.abandon()

    def _mine(self, answer: TokenStream) -> list[RequestId]:
        return [id for id in answer.ids if self._answers.get(id) is answer]

    async def _idle(self, pause_s: float | None) -> None:
        """Until there is work, or a load is done."""
        self._work.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._work.wait()

    async def _save(self, save: BlockSave) -> None:
        """Puts a computed prompt into the pool, and announces what is new there: a batch of its own."""
        assert self._store is not None
        pooled = save.pooled(await self._store.put(save.digests))
        await self.may_run.wait()
        if pooled and self.publisher is not None:
            self.publisher.publish(pooled)
        self.saving -= 1


class EngineCores:
    """All ranks of a server, and vLLM's way of choosing one when the request does not."""

    def __init__(
        self, options: EngineOptions, shape: EngineShape, clock: Clock, store: EmulatedStoreClient | None
    ) -> None:
        self.faults = options.faults
        self._tasks = Tasks(f"engine {options.name}")
        self._context = zmq.Context()
        self.all = [
            EngineCore(
                rank,
                shape,
                clock,
                self._publisher(options, rank, clock) if options.events else None,
                store,
                self._tasks,
            )
            for rank in range(options.ranks)
        ]
        self.disturb(options.faults)

    def start(self) -> None:
        for rank, core in enumerate(self.all):
            self._tasks.spawn(f"core {rank}", core.run())
            if core.publisher is not None:
                self._tasks.spawn(f"replays {rank}", core.publisher.serve_replays())

    def least_busy(self) -> int:
        """The rank that vLLM's own balancer would take."""
        loads = [core.engine.load for core in self.all]
        return loads.index(min(loads))

    def sources(self) -> dict[str, dict[str, object]]:
        publishers = [core.publisher for core in self.all]
        return {str(publisher.rank): publisher.source() for publisher in publishers if publisher is not None}

    def disturb(self, faults: EngineFaults) -> None:
        """These faults are in force from now on."""
        self.faults = faults
        for core in self.all:
            core.engine.slowdown = faults.slow
            if faults.freeze:
                core.may_run.clear()
            else:
                core.may_run.set()

    def restart(self) -> None:
        """What a crash of the engine processes looks like from outside."""
        for core in self.all:
            core.restart()

    def _publisher(self, options: EngineOptions, rank: int, clock: Clock) -> KvPublisher:
        return KvPublisher(self._context, options, rank, clock, lambda: self.faults)

    async def close(self) -> None:
        await self._tasks.close()
        for core in self.all:
            if core.publisher is not None:
                core.publisher.close()
        self._context.term()
