"""The emulated engines of a match: eight processes, started anew for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httpx

from router.backends.vllm.info import read_event_sources
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from router.lab.emulator.vocabulary import DATA

ENGINES, BLOCKS, BLOCK_TOKENS = 8, 8192, 16
PREFILL_TOKENS_PER_S, DECODE_MS = 4000.0, 10.0
MODEL = "warm-tiny"
NO_FAULTS: Mapping[int, EngineFaults] = MappingProxyType({})


class Engine(NamedTuple):
    """An engine as routers reach it. `events`, `replay`: endpoints of its KV events; `blocks`: of its cache;
    `tokenizer`: the folder of its model's.
    """

    url: str
    events: str
    replay: str
    blocks: int
    block_tokens: int = BLOCK_TOKENS
    tokenizer: str = str(DATA)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def build_fleet(seed: int, blocks: int = BLOCKS) -> EmbeddedFleet:
    """Return new engines with `blocks` each."""
    return EmbeddedFleet(
        [
            EngineOptions(
                name=f"engine-{number}",
                model=MODEL,
                seed=seed,
                blocks=blocks,
                prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
                decode_ms_per_token=DECODE_MS,
                scale_out=True,  # vllm-router's `kv_aware` renders there
            )
            for number in range(ENGINES)
        ]
    )


async def find_engine(url: str, blocks: int, block_tokens: int = BLOCK_TOKENS, tokenizer: Path = DATA) -> Engine:
    """Return the engine at `url`, with the addresses of its events."""
    async with httpx.AsyncClient(trust_env=False) as http:
        sources = read_event_sources((await http.get(f"{url}/kv_event_sources")).content, "127.0.0.1")
    assert isinstance(sources, list)
    return Engine(url, sources[0].endpoint, sources[0].replay_endpoint or "", blocks, block_tokens, str(tokenizer))


async def list_engines(fleet: EmbeddedFleet, blocks: int = BLOCKS) -> list[Engine]:
    """Return the engines, of `blocks` each."""
    return [await find_engine(one.url, blocks) for one in fleet.members]
