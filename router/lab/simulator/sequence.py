"""A request in a simulated engine: its tokens, blocks and progress, and its wait for KV from outside.

A `Sequence` has its own block hashes and determines its next token; the engine decides when it runs, and on which
blocks. While the KV of a `Sequence` is loaded from outside, its blocks are taken, and other requests compute.

Loads from the pool follow each other, as through the one receiving thread of vLLM's store connector
(VLLM_MOONCAKE_LOAD_RECV_THREADS); each takes a fixed time and a time per token. A load from a peer takes as long,
from the time at which the peer has the KV, and delays no other.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import xxhash

from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import EngineHash
from router.lab.rng import Rng
from router.lab.simulator.engine_types import EngineShape, Finish, RequestId, SequenceRequest

GREEDY_TOKENS = 8  # number of last tokens from which a greedy request's next token follows


class Sequence:
    """A request. The KV of its first `computed` tokens is in `blocks`; others can hit the first `registered`
    blocks.
    """

    __slots__ = (
        "_chain",
        "_shape",
        "blocks",
        "cached_tokens",
        "computed",
        "digests",
        "external_tokens",
        "id",
        "junction",
        "labels",
        "registered",
        "request",
        "rng",
        "tokens",
        "waits_for_peer",
        "windows",
    )

    def __init__(self, id: RequestId, request: SequenceRequest, shape: EngineShape, chain: EngineChain) -> None:
        self._shape = shape
        self._chain = chain
        self.id = id
        self.request = request
        self.tokens = array("I", request.token_ids)
        self.blocks: list[int] = []
        self.windows: list[list[int]] = [[] for _ in shape.sliding_windows]  # its blocks in each of those groups
        self.junction = 0  # leading blocks that full attention held beyond those re-used; 0: none
        self.digests: list[Digest] = []  # of full blocks of `tokens`, computed on demand
        self.labels: list[EngineHash] = []  # of the same blocks
        self.computed = 0
        self.registered = 0
        self.cached_tokens: int | None = None  # None until it is first admitted
        # available outside, once; a hybrid engine has no connector
        self.external_tokens = 0 if shape.sliding_windows else request.external_tokens or 0
        self.waits_for_peer = bool(self.external_tokens) and request.source == "peer"
        self.rng = Rng(xxhash.xxh3_64_intdigest(self.tokens.tobytes(), request.seed & 0xFFFFFFFF))

    @property
    def generated(self) -> int:
        """Number of output tokens so far."""
        return len(self.tokens) - len(self.request.token_ids)

    def label(self, full: int) -> list[EngineHash]:
        """Return the labels of at least its first `full` blocks."""
        size, request, known = self._shape.block_tokens, self.request, len(self.digests)
        if full > known:
            adapter = None if request.adapter is None else (request.adapter, self._shape.adapters[request.adapter])
            parent = self.digests[-1] if known else None
            new = self._chain.chain(parent, self.tokens[known * size : full * size], size, adapter, request.salt)
            self.digests += new
            self.labels += map(self._chain.event_hash, new)
        return self.labels

    def next_token(self) -> tuple[int, Finish | None]:
        """Return the next token, and how the request ends with it; None: the request continues."""
        request, shape, position = self.request, self._shape, self.generated
        ends = len(request.script) + 1 if request.script is not None else request.natural_tokens
        if ends is not None and position + 1 >= ends:
            return shape.end_token, "stop"
        if request.script is not None:
            token = request.script[position]
        elif request.greedy:
            last = array("Q", self.tokens[-GREEDY_TOKENS:]).tobytes()
            token = shape.vocabulary[xxhash.xxh32_intdigest(last, len(self.tokens)) % len(shape.vocabulary)]
        else:
            token = shape.vocabulary[self.rng.below(len(shape.vocabulary))]
        return token, "length" if position + 1 >= request.max_tokens else None


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
        """Remove the load of request `id` and return its sequence. None if there is no such load."""
        load = self._all.pop(id, None)
        return None if load is None else load.sequence

    def _duration_s(self, tokens: int) -> float:
        rate = self._shape.load_tokens_per_s
        return self._shape.load_base_ms / 1000 + (tokens / rate if rate else 0.0)
