"""Find how engines hash blocks, from the first blocks that they announced, and the digests under which a shared
pool stores these blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.config.sections.pool import PoolModelConfig
from router.features.pool.hash_detection import list_candidates
from router.kvcache.engine_hashes import Digest, EngineChain, fits
from router.kvcache.events import BlocksStored
from router.operate.doctor.subject import ExaminedEngine

USUAL = PoolModelConfig()


def first_blocks(engine: ExaminedEngine) -> list[BlocksStored]:
    """Return the first blocks of prompts that the engine announced during the examination."""
    return [] if engine.probe is None else [first for stream in engine.probe.streams for first in stream.firsts]


def find_chains(engine: ExaminedEngine, config: PoolModelConfig = USUAL) -> set[EngineChain] | None:
    """Return the hash chains that reproduce the hash of every announced first block. None if none was announced."""
    firsts = first_blocks(engine)
    if not firsts:
        return None
    return {chain for chain in list_candidates(config) if all(fits(chain, first) for first in firsts)}


def digests_of(chain: EngineChain, firsts: Iterable[BlocksStored]) -> list[Digest]:
    """Return the digest of each first block."""
    return [chain.chain(None, first.token_ids[: first.block_tokens], first.block_tokens)[0] for first in firsts]


def find_saved(keys: Sequence[str], engine: ExaminedEngine) -> Digest | None:
    """Return the digest of one of the engine's first blocks that ends a key of the pool. None if no key has one."""
    endings = {key.rpartition("@")[2] for key in keys}
    for chain in find_chains(engine) or ():
        for digest in digests_of(chain, first_blocks(engine)):
            if digest.hex() in endings:
                return digest
    return None
