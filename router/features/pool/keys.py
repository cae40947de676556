"""Key names of blocks in the Mooncake Store: one key per rank and KV cache group that holds a part of the block.

    [<cache_prefix>@]<model><namespace>@tp_rank:<t>@pcp<p>@dcp<d>@pp_rank:<q>@group:<g>@<digest in hex>

(`protocol.md` 6.3; vllm .../mooncake/store/data.py, worker.py `_init_lookup_key_prefixes`.) Everything but the
digest is the same for all blocks of a model and is computed once. A block can be loaded only if every one of its
keys exists. This module does not depend on queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from router.config.sections.pool import PoolModelConfig
from router.kvcache.engine_hashes import Digest


class PoolKey(NamedTuple):
    """The parts of a key."""

    cache_prefix: str  # "" for none
    model: str
    namespace: str  # with its leading @; "" for none
    tp_rank: int
    pcp: int
    dcp: int
    pp_rank: int
    group: int
    digest: Digest

    def __str__(self) -> str:
        prefix = f"{self.cache_prefix}@" if self.cache_prefix else ""
        ranks = f"@tp_rank:{self.tp_rank}@pcp{self.pcp}@dcp{self.dcp}@pp_rank:{self.pp_rank}"
        return f"{prefix}{self.model}{self.namespace}{ranks}@group:{self.group}@{self.digest.hex()}"


_KEY = re.compile(
    r"(?:(?P<cache_prefix>.+?)@)??(?P<model>[^@]+)(?P<namespace>(?:@store_\w+:[^@]+)*)"
    r"@tp_rank:(?P<tp_rank>\d+)@pcp(?P<pcp>\d+)@dcp(?P<dcp>\d+)@pp_rank:(?P<pp_rank>\d+)"
    r"@group:(?P<group>\d+)@(?P<digest>(?:[0-9a-f]{2})+)"
)
KEY_CHARS = 1024  # the expression takes quadratic time for a string that is not a key
_STORE_TP = re.compile(r"@store_tp:(\d+)")


def parse_key(key: str) -> PoolKey | None:
    """Return the parts of `key`; `None` if it is not the key of a vLLM block (the store may hold anything)."""
    if len(key) > KEY_CHARS or (found := _KEY.fullmatch(key)) is None:
        return None
    return PoolKey(
        cache_prefix=found["cache_prefix"] or "",
        model=found["model"],
        namespace=found["namespace"],
        tp_rank=int(found["tp_rank"]),
        pcp=int(found["pcp"]),
        dcp=int(found["dcp"]),
        pp_rank=int(found["pp_rank"]),
        group=int(found["group"]),
        digest=bytes.fromhex(found["digest"]),
    )


class KeyForm:
    """Forms the keys of one model's blocks."""

    def __init__(self, config: PoolModelConfig, model: str) -> None:
        """Form keys with `model` as the part that names the model: see `from_config`."""
        self.config = config
        self.model = model
        self.parts = tuple(_parts(config, model))  # with empty digests
        self._stems = tuple(map(str, self.parts))

    @classmethod
    def from_config(cls, config: PoolModelConfig, path: str | None) -> KeyForm | None:
        """Return the form of the model loaded from `path`; None if neither `path` nor setting `name` is known."""
        model = config.name or (path or "").rstrip("/").split("/")[-1]
        return cls(config, model) if model else None

    @property
    def keys_per_block(self) -> int:
        """Number of keys of one block."""
        return len(self._stems)

    def keys(self, digest: Digest) -> tuple[str, ...]:
        """Return every key of the block: all must exist for the block to be usable."""
        name = digest.hex()
        return tuple([stem + name for stem in self._stems])


def _parts(config: PoolModelConfig, model: str) -> Iterator[PoolKey]:
    for group in range(config.groups):
        for pcp in range(config.prefill_context_parallel):
            for tp_rank in range(_shards(config)):
                for pp_rank in range(config.pipeline_parallel):
                    dcp = tp_rank % config.decode_context_parallel
                    yield PoolKey(
                        config.cache_prefix, model, config.namespace, tp_rank, pcp, dcp, pp_rank, group, digest=b""
                    )


def _shards(config: PoolModelConfig) -> int:
    """Return how many different parts the tensor parallel ranks hold. A shared layout has the number in its
    namespace; ranks beyond the KV heads hold copies, unless decode context parallelism divides the tokens between
    them.
    """
    if (shared := _STORE_TP.search(config.namespace)) is not None:
        return int(shared[1])
    ranks = config.tensor_parallel
    if config.kv_heads is None or config.decode_context_parallel > 1:
        return ranks
    return ranks // max(1, ranks // config.kv_heads)
