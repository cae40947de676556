"""Requests that wait for KV from outside, in blocks that are theirs already, while the others compute.

Loads from the pool go one after the other, as through the one receiving thread that vLLM's store connector has
(VLLM_MOONCAKE_LOAD_RECV_THREADS); each takes a fixed time and a time per token. What a peer sends takes as long, from
the moment on that the peer has it, and disturbs nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.testbed.simulator.engine_types import EngineShape, RequestId
from router.testbed.simulator.sequence import Sequence


@dataclass(slots=True)
class KvLoad:
    sequence: Sequence
    tokens: int  # beyond those that it has computed
    ready_s: float | None  # None: its peer has not finished


class KvLoads:
    """`begin` puts a sequence in; `finished` and `drop` take it out. The counts are of loads from the pool, ended."""

    def __init__(self, shape: EngineShape) -> None:
        self.count = 0
        self.blocks = 0
        self.seconds = 0.0
        self._shape = shape
        self._free_s = float("-inf")  # when the receiving thread has done what it was given
        self._all: dict[RequestId, KvLoad] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def sequences(self) -> list[Sequence]:
        return [load.sequence for load in self._all.values()]

    @property
    def next_s(self) -> float | None:
        """When the next one is ready, as far as that is known."""
        return min((load.ready_s for load in self._all.values() if load.ready_s is not None), default=None)

    def begin(self, sequence: Sequence, tokens: int, now: float) -> None:
        load = self._all[sequence.id] = KvLoad(sequence, tokens, None)
        if sequence.request.source == "pool":
            load.ready_s = self._free_s = max(now, self._free_s) + self._takes_s(tokens)
        elif not sequence.waits_for_peer:
            self.arrived(sequence.id, now)

    def arrived(self, id: RequestId, now: float) -> None:
        """The peer has computed it."""
        load = self._all.get(id)
        if load is not None and load.ready_s is None:
            load.ready_s = now + self._takes_s(load.tokens)

    def finished(self, now: float) -> list[KvLoad]:
        done = [load for load in self._all.values() if load.ready_s is not None and load.ready_s <= now]
        for load in done:
            del self._all[load.sequence.id]
            if load.sequence.request.source == "pool":
                self.count += 1
                self.blocks += load.tokens // self._shape.block_tokens
                self.seconds += self._takes_s(load.tokens)
        return done

    def drop(self, id: RequestId) -> Sequence | None:
        """It is not loaded any more. None: it was not."""
        load = self._all.pop(id, None)
        return None if load is None else load.sequence

    def _takes_s(self, tokens: int) -> float:
        rate = self._shape.load_tokens_per_s
        return self._shape.load_base_ms / 1000 + (tokens / rate if rate else 0.0)
