"""Requests of a simulated engine that wait for KV from outside, with their blocks taken, while others compute.

Loads from the pool follow each other, as through the one receiving thread of vLLM's store connector
(VLLM_MOONCAKE_LOAD_RECV_THREADS); each takes a fixed time and a time per token. A load from a peer takes as long, from
the time at which the peer has the KV, and delays no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.testbed.simulator.engine_types import EngineShape, RequestId
from router.testbed.simulator.sequence import Sequence


@dataclass(slots=True)
class KvLoad:
    sequence: Sequence
    tokens: int  # beyond those that the sequence has computed
    ready_s: float | None  # None: the peer has not finished


class KvLoads:
    """Loads under way. `count`, `blocks` and `seconds` are totals of finished loads from the pool."""

    def __init__(self, shape: EngineShape) -> None:
        self.count = 0
        self.blocks = 0
        self.seconds = 0.0
        self._shape = shape
        self._free_s = float("-inf")  # when the receiving thread is free
        self._all: dict[RequestId, KvLoad] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def sequences(self) -> list[Sequence]:
        return [load.sequence for load in self._all.values()]

    @property
    def next_s(self) -> float | None:
        """Time at which the next load is ready; None when no such time is known."""
        return min((load.ready_s for load in self._all.values() if load.ready_s is not None), default=None)

    def begin(self, sequence: Sequence, tokens: int, now: float) -> None:
        """Start to load `tokens` for `sequence`."""
        load = self._all[sequence.id] = KvLoad(sequence, tokens, None)
        if sequence.request.source == "pool":
            load.ready_s = self._free_s = max(now, self._free_s) + self._duration_s(tokens)
        elif not sequence.waits_for_peer:
            self.on_peer_ready(sequence.id, now)

    def on_peer_ready(self, id: RequestId, now: float) -> None:
        """Start the load of a request whose peer has computed the KV."""
        load = self._all.get(id)
        if load is not None and load.ready_s is None:
            load.ready_s = now + self._duration_s(load.tokens)

    def take_finished(self, now: float) -> list[KvLoad]:
        """Remove and return the loads that are ready."""
        done = [load for load in self._all.values() if load.ready_s is not None and load.ready_s <= now]
        for load in done:
            del self._all[load.sequence.id]
            if load.sequence.request.source == "pool":
                self.count += 1
                self.blocks += load.tokens // self._shape.block_tokens
                self.seconds += self._duration_s(load.tokens)
        return done

    def drop(self, id: RequestId) -> Sequence | None:
        """Remove the load of request `id` and return its sequence; None when there is none."""
        load = self._all.pop(id, None)
        return None if load is None else load.sequence

    def _duration_s(self, tokens: int) -> float:
        rate = self._shape.load_tokens_per_s
        return self._shape.load_base_ms / 1000 + (tokens / rate if rate else 0.0)
