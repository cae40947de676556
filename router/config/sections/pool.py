"""The `pool` section: where the shared Mooncake Store is, and how engines name their blocks in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from router.config.sections.base import BaseUrl, Positive, Seconds, Section, Shape

HashAlgo = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]


class PoolModelConfig(Section):
    """Block names of one model. All engines that share its blocks agree on these values (`protocol.md` 6.9)."""

    name: str | None = None
    """the model's part of pool keys; null: the last component of its path, as `/v1/models` reports it"""
    block_tokens: Positive | None = None
    """tokens per block in the pool; null: as in the engines' events"""
    hash_algo: Literal["auto"] | HashAlgo = "auto"
    """the engines' `--prefix-caching-hash-algo`; auto: determined by comparison with their events"""
    hash_seed: str | None = None
    """the engines' PYTHONHASHSEED; null: not set, which gives equal hashes everywhere since vLLM 0.29"""
    extra_keys: Literal["auto", "tagged", "bare"] = "auto"
    """how adapters and salts enter a hash; tagged: vLLM 0.31 and later; bare: before; auto: tagged until events
    show otherwise
    """
    cache_prefix: str = ""
    """the store connector's `cache_prefix`"""
    namespace: Annotated[str, Shape("^(@.*)?$", "nothing, or text that begins with @")] = ""
    """the store connector's namespace (shared-TP layouts), including its @"""
    tensor_parallel: Positive = 1
    """the engines' tensor parallel size"""
    pipeline_parallel: Positive = 1
    """the engines' pipeline parallel size"""
    prefill_context_parallel: Positive = 1
    """the engines' prefill context parallel size"""
    decode_context_parallel: Positive = 1
    """the engines' decode context parallel size"""
    kv_heads: Positive | None = None
    """KV heads of the model (1 for MLA); tensor parallel ranks beyond them hold copies and share keys; null: no
    rank does
    """
    groups: Positive = 1
    """KV cache groups with keys of their own; hybrid models have several"""


class PoolConfig(Section):
    masters: list[BaseUrl] = Field(min_length=1)
    """base URLs of the Mooncake masters' HTTP servers (`metrics_port`, 9003); the leader is queried"""
    deadline_ms: Seconds = 5.0
    """longest wait for the pool's answer within a request, milliseconds; after it the pool's overlap is unknown"""
    ttl_ms: Seconds = 500.0
    """how long an answer about a block is reused, milliseconds"""
    health_interval_s: Seconds = 1.0
    """interval between checks which master leads, seconds"""
    keys_at_once: Positive = 256
    """keys in one query (16,000 at most, and at least those of 3 blocks); a prompt with more than twice as many is
    searched in strides, which may miss short holes"""
    remembered_blocks: Positive = 200_000
    """blocks whose engine hash and last answer are remembered"""
    models: dict[str, PoolModelConfig] = {}
    """block names by base model name as the engines serve it; a model without an entry has all defaults"""
