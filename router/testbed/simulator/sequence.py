"""A request in a simulated engine: its tokens so far, its blocks, how far it is computed.

It has its own block hashes and determines its next token; the engine decides when it runs, and on which blocks.
"""

from __future__ import annotations

from array import array

import xxhash

from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import EngineHash
from router.testbed.rng import Rng
from router.testbed.simulator.engine_types import EngineShape, Finish, RequestId, SequenceRequest


class Sequence:
    """A request. The KV of its first `computed` tokens is in `blocks`; others can hit the first `registered` blocks."""

    __slots__ = (
        "_chain",
        "_shape",
        "blocks",
        "cached_tokens",
        "computed",
        "digests",
        "external_tokens",
        "id",
        "labels",
        "registered",
        "request",
        "rng",
        "tokens",
        "waits_for_peer",
    )

    def __init__(self, id: RequestId, request: SequenceRequest, shape: EngineShape, chain: EngineChain) -> None:
        self._shape = shape
        self._chain = chain
        self.id = id
        self.request = request
        self.tokens = array("I", request.token_ids)
        self.blocks: list[int] = []
        self.digests: list[Digest] = []  # of full blocks of `tokens`, computed on demand
        self.labels: list[EngineHash] = []  # of the same blocks
        self.computed = 0
        self.registered = 0
        self.cached_tokens: int | None = None  # None until it is first admitted
        self.external_tokens = request.external_tokens or 0  # available outside, once
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
        """Return its next token, and how the request ends with it; None: it does not."""
        request, shape, position = self.request, self._shape, self.generated
        ends = len(request.script) + 1 if request.script is not None else request.natural_tokens
        if ends is not None and position + 1 >= ends:
            return shape.end_token, "stop"
        if request.script is not None:
            token = request.script[position]
        else:
            token = shape.vocabulary[self.rng.below(len(shape.vocabulary))]
        return token, "length" if position + 1 >= request.max_tokens else None
