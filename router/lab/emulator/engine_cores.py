"""The engine cores of one emulated server, driven in real time: each rank's simulated engine steps when it is due.

One HTTP request waits on a `TokenStream`: the tokens of all its sequences (n > 1, several prompts) in the order of
their generation. The holder of the stream closes it; closing cancels the sequences that still run, as vLLM's abort
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from router.clock import Clock
from router.errors import WarmrouteError
from router.lab.emulator.kv_publisher import EventSockets, KvPublisher
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.emulator.store_client import EmulatedStoreClient
from router.lab.simulator.engine_types import (
    BlockSave,
    EngineShape,
    Finish,
    Refusal,
    RequestId,
    SequenceOutput,
    SequenceRequest,
)
from router.lab.simulator.step_engine import StepEngine
from router.tasks import Tasks


class RequestGone(Exception):
    """Nobody waits for the request any more: its client disconnected, or the engine core died."""


class EngineFailed(WarmrouteError):
    """The engine failed on a request, which is answered with status 500."""


class TokenStream:
    """The tokens of one HTTP request as they are generated, each with the number of its sequence."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.ids: list[RequestId] = []  # by sequence
        self.finishes: dict[int, Finish] = {}  # by sequence
        self._open: dict[RequestId, int] = {}
        self._new: list[tuple[int, SequenceOutput]] = []
        self._wake = asyncio.Event()
        self._end: RequestGone | EngineFailed | None = None
        self._fetch: asyncio.Task[None] | None = None

    async def tokens(self) -> list[tuple[int, SequenceOutput]]:
        """Wait for new tokens; empty at the end. Raises RequestGone after `abandon`, EngineFailed after `fail`."""
        while not self._new and self._open and self._end is None:
            self._wake.clear()
            await self._wake.wait()
        if self._end is not None:
            raise self._end
        new, self._new = self._new, []
        return new

    def abandon(self) -> None:
        """End the stream because its client disconnected."""
        self._stop(RequestGone())

    def fail(self) -> None:
        """End the stream with an error of the engine."""
        self._stop(EngineFailed("Internal server error"))

    def attach_fetch(self, task: asyncio.Task[None]) -> None:
        """Cancel `task`, which fetches the prompt's KV, when the stream is closed."""
        self._fetch = task

    def close(self) -> None:
        """Cancel the sequences that still run, and the fetch."""
        if self._fetch is not None:
            self._fetch.cancel()
        for id in self._open:
            self.core.cancel(id, self)
        self._open.clear()

    def expect(self, id: RequestId, sequence: int) -> None:
        """Register a sequence that the engine has queued."""
        self.ids.append(id)
        self._open[id] = sequence

    def put(self, id: RequestId, output: SequenceOutput) -> None:
        """Add a token."""
        self._new.append((self._open[id], output))
        if output.finish is not None:
            self.finishes[self._open.pop(id)] = output.finish
        self._wake.set()

    def _stop(self, end: RequestGone | EngineFailed) -> None:
        self._end = end
        self._wake.set()


class EngineCore:
    """One rank: a simulated engine, its event publisher, and the streams that wait for its tokens."""

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
        self.saving = 0  # prompts that are being written to the pool
        self.may_run = asyncio.Event()  # not set: frozen
        self.may_run.set()
        self._shape = shape
        self._clock = clock
        self._store = store
        self._tasks = tasks
        self._streams: dict[RequestId, TokenStream] = {}
        self._work = asyncio.Event()

    def submit(self, requests: Sequence[SequenceRequest]) -> TokenStream | Refusal:
        """Queue all sequences of one HTTP request, or none of them."""
        stream = TokenStream(self)
        for number, request in enumerate(requests):
            id = self.engine.submit(request, self._clock.now())
            if isinstance(id, str):
                stream.close()
                return id
            stream.expect(id, number)
            self._streams[id] = stream
        self._work.set()
        return stream

    def cancel(self, id: RequestId, stream: TokenStream) -> None:
        """Cancel a sequence, unless `id` now belongs to another stream: a restarted engine counts from 0 again."""
        if self._streams.get(id) is stream:
            del self._streams[id]
            self.engine.cancel(id, self._clock.now())
            self._work.set()

    def finish_load(self, stream: TokenStream) -> None:
        """Resume the sequences that wait for KV from a peer, because the KV has arrived."""
        for id in self._ids_of(stream):
            self.engine.on_peer_ready(id, self._clock.now())
        self._work.set()

    def fail_load(self, stream: TokenStream) -> None:
        """Compute the sequences that wait for KV from a peer, because the KV will not arrive."""
        for id in self._ids_of(stream):
            self.engine.on_peer_lost(id)
        self._work.set()

    def free(self, id: RequestId, engine: StepEngine) -> None:
        """Free the blocks of a finished request that `engine`, the current one or one before a restart, holds."""
        engine.free(id)
        self._work.set()

    async def run(self) -> None:
        """Step the engine whenever a step is due, until cancelled; other tasks run after every step."""
        while True:
            await self.may_run.wait()
            now = self._clock.now()
            result = self.engine.step(now)
            if result.events and self.publisher is not None:
                self.publisher.publish(result.events)
            for id, output in result.outputs.items():
                stream = self._streams[id] if output.finish is None else self._streams.pop(id)
                stream.put(id, output)
            for save in result.saves:
                self.saving += 1
                self._tasks.spawn("save", self._save(save))
            pause_s = None if result.next_wake_s is None else max(0.0, result.next_wake_s - now)
            if self.engine.stepping and pause_s is not None:
                await asyncio.sleep(pause_s)
            else:
                await self._idle(pause_s)

    def restart(self) -> None:
        """Replace the engine by one with an empty cache and event sequences from 0; running requests are lost."""
        lost = set(self._streams.values())
        self._streams.clear()
        slowdown = self.engine.slowdown
        self.engine = StepEngine(self._shape)
        self.engine.slowdown = slowdown
        if self.publisher is not None:
            self.publisher.restart()
        for stream in lost:
            stream.abandon()

    def _ids_of(self, stream: TokenStream) -> list[RequestId]:
        return [id for id in stream.ids if self._streams.get(id) is stream]

    async def _idle(self, pause_s: float | None) -> None:
        """Wait for work, at most for `pause_s`, when the next KV load is done."""
        self._work.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._work.wait()

    async def _save(self, save: BlockSave) -> None:
        """Write a computed prompt to the pool, and publish the blocks new to the pool as a separate batch."""
        assert self._store is not None
        pooled = save.announce(await self._store.put(save.digests))
        await self.may_run.wait()
        if pooled and self.publisher is not None:
            self.publisher.publish(pooled)
        self.saving -= 1


class EngineCores:
    """All ranks of a server, and vLLM's rank selection for a request that names no rank. `sockets` are those of their
    publishers, closed by `close`.
    """

    def __init__(
        self,
        options: EngineOptions,
        shape: EngineShape,
        clock: Clock,
        store: EmulatedStoreClient | None,
        sockets: EventSockets,
    ) -> None:
        self.faults = options.faults
        self._clock = clock
        self.started_wall_s = clock.wall()
        self.adapters = shape.adapters
        self._tasks = Tasks(f"engine {options.name}")
        self._sockets = sockets
        self.all: list[EngineCore] = []
        for rank in range(options.ranks):
            publisher = (
                KvPublisher(sockets, options, rank, clock, lambda: self.faults)
                if options.events and options.prefix_caching
                else None
            )
            self.all.append(EngineCore(rank, shape, clock, publisher, store, self._tasks))
        self.apply_faults(options.faults)

    @property
    def _publishers(self) -> list[KvPublisher]:
        return [core.publisher for core in self.all if core.publisher is not None]

    def start(self) -> None:
        """Run all cores and their replay sockets until `close`."""
        for rank, core in enumerate(self.all):
            self._tasks.spawn(f"core {rank}", core.run())
        for publisher in self._publishers:
            self._tasks.spawn(f"replays {publisher.rank}", publisher.serve_replays())

    def least_busy(self) -> int:
        """Return the rank that vLLM's own balancer would choose."""
        loads = [core.engine.load for core in self.all]
        return loads.index(min(loads))

    def sources(self) -> dict[str, dict[str, object]]:
        """Return the body of `GET /kv_event_sources`."""
        return {str(publisher.rank): publisher.source() for publisher in self._publishers}

    def apply_faults(self, faults: EngineFaults) -> None:
        """Replace the faults in force by these."""
        self.faults = faults
        for core in self.all:
            core.engine.slowdown = faults.slow
            if faults.freeze or faults.wedge:
                core.may_run.clear()
            else:
                core.may_run.set()

    def restart(self) -> None:
        """Crash and restart the engine processes of all ranks."""
        self.started_wall_s = self._clock.wall()
        for core in self.all:
            core.restart()

    async def close(self) -> None:
        """Stop all cores and close their sockets."""
        await self._tasks.close()
        for publisher in self._publishers:
            publisher.close()
        self._sockets.close()
