"""Inputs and outputs of a simulated engine: plain values between `step_engine.py` and its driver.

KV from outside comes in two kinds, as with vLLM's connectors. A shared *pool* is queried before the request is
submitted, and what it holds can be loaded at once. A *peer* (the prefill side of a pair) is still computing: the
engine makes room, parks the request, and its driver calls `on_peer_ready` or `on_peer_lost`.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NewType

from router.config.sections.pool import HashAlgo
from router.kvcache.engine_hashes import DEFAULT_SEED, Digest, EngineChain
from router.kvcache.events import BlocksPooled, Event
from router.lab.engine_profile import EngineProfile

RequestId = NewType("RequestId", int)
Finish = Literal["stop", "length"]
Refusal = Literal["queue full", "too long", "empty prompt", "unknown adapter"]
Source = Literal["pool", "peer"]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Size and speed of an engine. `prefill_tokens_per_s` 0: prompts take no time."""

    block_tokens: int = 16
    blocks: int = 4096
    sliding_windows: Sequence[int] = ()  # tokens, of each KV cache group beside full attention: a hybrid model
    prefill_tokens_per_s: float = 8000.0
    decode_ms_per_token: float = 10.0
    profile: EngineProfile | None = None  # duration of a step, instead of the two before
    load_tokens_per_s: float = 100_000.0  # of KV from outside; 0: no time at all
    load_base_ms: float = 5.0  # per load
    saves: bool = False  # whether it offers computed prompts to the pool
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_queued: int | None = None  # waiting requests beyond which new ones are refused
    adapters: dict[str, str] = field(default_factory=dict)  # LoRA name -> path (the path is part of the hash)
    vocabulary: Sequence[int] = range(1000, 4000)  # from which answers are made
    end_token: int = 2  # last token of an answer that ends by itself
    hash_algo: HashAlgo = "sha256"
    hash_seed: str = DEFAULT_SEED

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the cache holds; every group takes a block for each block of tokens."""
        return self.blocks // (1 + len(self.sliding_windows)) * self.block_tokens


class SequenceRequest(NamedTuple):
    """One sequence to complete. (prompt, seed) determine its answer, unless `script` gives it."""

    token_ids: Sequence[int]
    max_tokens: int
    natural_tokens: int | None = None  # length at which the answer ends by itself ("stop"), the end token included
    script: Sequence[int] | None = None  # the answer's tokens; ends by itself after them
    adapter: str | None = None
    salt: str | None = None
    seed: int = 0
    greedy: bool = False  # the next token follows from those before it, wherever the prompt ends
    external_tokens: int | None = None  # leading tokens with KV outside; None: no outside source was queried
    source: Source = "pool"
    keeps_after: tuple[
        Finish, ...
    ] = ()  # after these ends its blocks stay until `StepEngine.free`, for a peer to fetch


class SequenceOutput(NamedTuple):
    """One new token of one request."""

    token: int
    finish: Finish | None
    cached_tokens: int  # of the prompt: found in the prefix cache when it was admitted, or loaded from outside


class BlockSave(NamedTuple):
    """Full blocks of a computed prompt, which may go to the shared pool."""

    token_ids: array[int]
    digests: list[Digest]
    block_tokens: int

    def announce(self, new: Container[Digest]) -> list[BlocksPooled]:
        """Return the events that the saving engine announces: one for each block that entered the pool."""
        label, size = EngineChain.event_hash, self.block_tokens
        return [
            BlocksPooled(
                hashes=[label(digest)],
                parent=label(self.digests[number - 1]) if number else None,
                token_ids=self.token_ids[number * size : (number + 1) * size],
                block_tokens=size,
            )
            for number, digest in enumerate(self.digests)
            if digest in new
        ]


class StepResult(NamedTuple):
    next_wake_s: float | None  # when to call `step` again, on the caller's clock; None: after the next submit
    outputs: dict[RequestId, SequenceOutput]
    events: list[Event]  # one batch: removals come before the stores that needed their space
    saves: Sequence[BlockSave] = ()


class EngineGauges(NamedTuple):
    running: int
    waiting: int  # loading ones included
    loading: int
    kv_usage: float  # share of blocks that requests use; idle cached ones do not count
    cached_blocks: int
    queried_tokens: int
    hit_tokens: int
    external_queried_tokens: int  # not found in its own cache, of requests with an outside source
    external_hit_tokens: int
    pool_loads: int
    pool_loaded_blocks: int
    pool_load_s: float
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    stopped: int
    truncated: int  # ended by max_tokens
    cancelled: int
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
