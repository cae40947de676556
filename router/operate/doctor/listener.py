"""Subscribe to the event streams of the examined engines, as the router does, and keep what they announce.

The listener subscribes with the router's own modules and indexes each stored block under the router's own keys, so
that it finds of a prompt exactly what the router would promise. It never requests an engine's whole history, only a
replay of the one batch that it has just received, to see whether replay works.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from router.backends.feeds.kv_events import KvEventSubscriber
from router.clock import Clock
from router.fleet.engine_facts import EventEndpoint
from router.fleet.engine_limits import OverLimit
from router.kvcache.block_keys import Keyring
from router.kvcache.events import BlocksPooled, BlocksStored, EngineHash, EventBatch, Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.instance_bounds import IndexLimit
from router.operate.doctor.subject import StreamProbe
from router.tasks import Tasks

REPLAY_TIMEOUT_S = 2.0
FIRSTS = 4  # first blocks kept per stream: enough to detect how its engine hashes


class ExpectedPrompt(NamedTuple):
    """A prompt that is about to be sent. Its beginning may be cached already (a system prompt, the head of a chat
    template), and an engine does not announce cached blocks again.
    """

    ids: array[int]
    adapter: str | None


class ObservedStream:
    """The messages received from one stream so far."""

    def __init__(self, endpoint: EventEndpoint, model: str) -> None:
        self.endpoint = endpoint
        self.model = model
        self.opened = False
        self.batches = 0
        self.malformed = 0
        self.replay_complete: bool | None = None
        self.replay_requested = False
        self.block_tokens: int | None = None
        self.ahead_s: list[float] = []  # of each batch: its time stamp minus our clock
        self.firsts: list[BlocksStored] = []  # first blocks of prompts without adapter and salt
        self.hashes: set[EngineHash] = set()  # of all announced blocks
        self.expected: list[ExpectedPrompt] = []

    def is_replayed(self) -> bool:
        """Return whether the replay that was requested has ended."""
        return self.replay_complete is not None


class EventListener:
    """Subscribes to any number of streams. An `EventHandler` and `LimitObserver` of the router's subscriber."""

    def __init__(self, clock: Clock, secret: int) -> None:
        self.keyring = Keyring(secret)
        self.streams: dict[TargetId, ObservedStream] = {}
        self._clock = clock
        self._index = BlockIndex(self.keyring)
        self._tasks = Tasks("doctor")
        self._subscriber = KvEventSubscriber(self, self, self._tasks, clock, REPLAY_TIMEOUT_S)
        self._changed = asyncio.Event()

    def subscribe(self, target: TargetId, model: str, endpoint: EventEndpoint) -> None:
        """Subscribe to the stream of `target`."""
        self.streams[target] = ObservedStream(endpoint, model)
        self._index.join(target, model)
        self._subscriber.subscribe(target, endpoint)

    async def close(self) -> None:
        """Close all sockets."""
        await self._subscriber.close()
        await self._tasks.close()

    async def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition()` is true, evaluating it after each received message. Return False if it is not
        true within `timeout_s`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()

    def expect(self, target: TargetId, prompt: ExpectedPrompt) -> None:
        """Recognise `prompt` on the stream of `target`, if there is one, even if its first blocks are cached."""
        if (observed := self.streams.get(target)) is not None:
            observed.expected.append(prompt)

    def held_blocks(self, target: TargetId, keys: Sequence[Key]) -> int:
        """Return how many leading blocks of a prompt the stream of `target` announced."""
        held = self._index.match(keys, (target,)).get(target)
        return 0 if held is None else held.disk

    def reusable_blocks(self, target: TargetId, keys: Sequence[Key]) -> int:
        """Return how many leading blocks of a prompt the engine re-uses, by what the stream of `target` announced."""
        held = self.held_blocks(target, keys)
        return self._index.count_reusable(target, keys, held) if held else 0

    def find(self, keys: Sequence[Key]) -> TargetId | None:
        """Return a stream that announced a whole prompt. None if no stream did, or `keys` is empty."""
        found = self._index.match(keys, self.streams)
        return next((target for target, held in found.items() if held.disk >= len(keys)), None)

    def describe(self, target: TargetId, rank: int, *, own: bool, found_at: TargetId | None) -> StreamProbe:
        """Return a description of the stream of `target`. `own`: it announced the prompt sent to `rank`;
        `found_at`: the stream that announced that prompt instead.
        """
        observed = self.streams[target]
        replay = None if not observed.replay_requested else "answered" if observed.replay_complete else "silent"
        return StreamProbe(
            rank,
            observed.endpoint.endpoint,
            observed.endpoint.replay_endpoint,
            observed.endpoint.topic,
            observed.opened,
            observed.batches,
            own,
            found_at,
            observed.malformed,
            replay,  # type: ignore[arg-type]
            observed.block_tokens,
            max(observed.ahead_s, default=None),
            tuple(observed.firsts[:FIRSTS]),
        )

    # EventHandler

    def on_connected(self, target: TargetId) -> int | None:
        """Note the connection. Return None: no replay is requested."""
        self.streams[target].opened = True
        self._changed.set()
        return None

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        """Index the blocks of a live batch. Return the first batch's number, to request its replay, else None."""
        observed = self.streams[target]
        observed.batches += 1
        observed.ahead_s.append(batch.wall_s - self._clock.wall())
        for event in batch.events:
            if isinstance(event, BlocksPooled):
                continue
            if isinstance(event, BlocksStored):
                self._supply_parents(target, observed, event)
                observed.hashes.update(event.hashes)
                observed.block_tokens = event.block_tokens
                if _is_plain(event):
                    observed.firsts.append(event)
            self._index.apply(target, event)
        self._changed.set()
        if observed.replay_requested or observed.endpoint.replay_endpoint is None:
            return None
        observed.replay_requested = True
        return batch.seq

    def _supply_parents(self, target: TargetId, observed: ObservedStream, event: BlocksStored) -> None:
        """Index the blocks before `event` in an expected prompt if they were announced before we subscribed."""
        if event.parent is None or event.parent in observed.hashes:
            return
        size, first = event.block_tokens, array("I", event.token_ids[: event.block_tokens])
        for ids, adapter in observed.expected:
            starts = (at for at in range(size, len(ids) - size + 1, size) if ids[at : at + size] == first)
            if adapter == event.adapter and (start := next(starts, None)) is not None:
                hashes = [*(EngineHash(-n) for n in range(1, start // size)), event.parent]
                earlier = event._replace(hashes=hashes, parent=None, token_ids=ids[:start], extras=None)
                self._index.apply(target, earlier)
                observed.hashes.add(event.parent)
                return

    def on_replayed(self, target: TargetId, batch: EventBatch) -> int | None:
        """Ignore the batch: it was received live."""
        return None

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        """Note whether the engine answered."""
        self.streams[target].replay_complete = complete
        self._changed.set()
        return None

    def on_malformed(self, target: TargetId, reason: str) -> None:
        """Count the malformed message."""
        self.streams[target].malformed += 1
        self._changed.set()

    def resume(self, target: TargetId) -> bool:
        """Return False: every batch is applied at once."""
        return False

    def sweep(self) -> bool:
        """Return False: nothing is kept for long."""
        return False

    def over_bounds(self, target: TargetId) -> tuple[IndexLimit, str] | None:
        """Return None: an examination is too short to fill the index."""
        return None

    def target_over_limit(self, target: TargetId, over: OverLimit) -> None:
        """Count, as malformed, a message that the router would reject."""
        self.on_malformed(target, over.detail)


def _is_plain(event: BlocksStored) -> bool:
    """Return whether the event begins a prompt, and its blocks are hashed from tokens alone."""
    return event.parent is None and event.adapter is None and event.salt is None and not any(event.extras or ())
