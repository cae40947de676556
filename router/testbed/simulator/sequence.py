"""A request on its way through a simulated engine: its tokens so far, its blocks, how far it is computed.

It knows its own block hashes and what it says next; who runs when, and on which blocks, is the engine's business.
"""

from __future__ import annotations

from array import array

import xxhash

from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import EngineHash
from router.testbed.rng import Rng
from router.testbed.simulator.engine_types import EngineShape, Finish, RequestId, SequenceRequest


class Sequence:
    """`computed` tokens of it have their KV in `blocks`; the first `registered` blocks can be hit by others."""

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
        "tokens",
        "voice",
        "waits_for_peer",
    )

    def __init__(self, id: RequestId, request: SequenceRequest, shape: EngineShape, chain: EngineChain) -> None:
        self._shape = shape
        self._chain = chain
        self.id = id
        self.request = request
        self.tokens = array("I", request.token_ids)
        self.blocks: list[int] = []
        self.digests: list[Digest] = []  # of every full block of `tokens`, as far as they were needed
        self.labels: list[EngineHash] = []  # the same blocks
        self.computed = 0
        self.registered = 0
        self.cached_tokens: int | None = None  # None until first admitted
        self.external_tokens = request.external_tokens or 0  # to be had outside, once
        self.waits_for_peer = bool(self.external_tokens) and request.source == "peer"
        self.voice = Rng(xxhash.xxh3_64_intdigest(self.tokens.tobytes(), request.seed & 0xFFFFFFFF))

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)

    def label(self, full: int) -> list[EngineHash]:
        """The labels of at least its first `full` blocks."""
        size, request, known = self._shape.block_tokens, self.request, len(self.digests)
        if full > known:
            adapter = None if request.adapter is None else (request.adapter, self._shape.adapters[request.adapter])
            parent = self.digests[-1] if known else None
            new = self._chain.chain(parent, self.tokens[known * size : full * size], size, adapter, request.salt)
            self.digests += new
            self.labels += map(self._chain.event_hash, new)
        return self.labels

    def speak(self) -> tuple[int, Finish | None]:
        """Its next token, and how it ends with it."""
        request, shape, position = self.request, self._shape, self.generated
        ends = len(request.script) + 1 if request.script is not None else request.natural_tokens
        if ends is not None and position + 1 >= ends:
            return shape.end_token, "stop"
        if request.script is not None:
            token = request.script[position]
        else:
            token = shape.vocabulary[self.voice.below(len(shape.vocabulary))]
        return token, "length" if position + 1 >= request.max_tokens else None
