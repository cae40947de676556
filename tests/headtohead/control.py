"""The positive control of a router that claims to know the engines' caches: an engine is sent a prompt directly, and
the router must send the same prompt, with a question after it, to that engine; after all engines have dropped their
caches, only by chance. A router that fails knows what it sent, at best. In virtual time an engine publishes the blocks
of a prompt that nobody has sent, and later their removal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import msgspec

from router.clock import SystemClock
from router.errors import WarmrouteError
from router.kvcache.bulk import SHORT
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Tier
from router.lab.gameday.reading import sum_samples
from router.lab.rng import Rng
from tests.bench.routers import Running
from tests.headtohead.contenders import Contender
from tests.headtohead.engines import BLOCK_TOKENS, ENGINES, MODEL, Engine, build_fleet, list_engines
from tests.headtohead.held_engines import HeldEngines, write_chat
from tests.headtohead.match import SETTLE_S

TRIALS, VIRTUAL_TRIALS = 8, 64
BLOCKS_EACH = 40
ANNOUNCED_S = 0.5
WORDS = 200


class Control(msgspec.Struct, frozen=True):
    """Of so many trials, those in which the router chose the engine that had the prompt, or the one that had had it.
    `left_out`: why there were none.
    """

    router: str
    took_s: float
    left_out: str | None = None
    trials: int = 0
    found: int = 0
    found_after_reset: int = 0

    @property
    def is_exact(self) -> bool:
        return 0 < self.trials == self.found and self.found_after_reset <= self.trials // 2


async def examine(contender: Contender) -> Control:
    """Return what the router does in `TRIALS` trials. A router that cannot be installed or started is left out."""
    clock = SystemClock()
    began = clock.now()
    try:
        found, lost = await _count_choices(contender)
    except (WarmrouteError, OSError, httpx.HTTPError) as why:
        return Control(contender.name, round(clock.now() - began, 1), f"{type(why).__name__}: {why}")
    return Control(contender.name, round(clock.now() - began, 1), None, TRIALS, found, lost)


def examine_virtual(contender: Contender) -> Control:
    """Return what the router does in `VIRTUAL_TRIALS` trials with held engines. A router that cannot be installed or
    started is left out.
    """
    clock, rng = SystemClock(), Rng(1)
    began = clock.now()
    found = lost = 0
    try:
        with (
            HeldEngines() as held,
            contender.running(held.engines) as router,
        ):
            for trial in range(VIRTUAL_TRIALS):
                warm = trial % ENGINES
                hashes = [EngineHash(rng.bits() & SHORT) for _ in range(BLOCKS_EACH)]
                held.publish(warm, [BlocksStored(hashes, None, (), BLOCK_TOKENS, Tier.GPU, 0, None, None, None)])
                found += _choose(held, router, hashes) == warm
                held.publish(warm, [BlocksRemoved(hashes, Tier.GPU, 0)])
                lost += _choose(held, router, hashes) == warm
    except (WarmrouteError, OSError) as why:
        return Control(contender.name, round(clock.now() - began, 1), f"{type(why).__name__}: {why}")
    return Control(contender.name, round(clock.now() - began, 1), None, VIRTUAL_TRIALS, found, lost)


def _choose(held: HeldEngines, router: Running, hashes: Sequence[EngineHash]) -> int:
    """Return the number of the engine to which the router sends a prompt of these blocks and one more."""
    kept = held.send(router, write_chat([*hashes, 1], 2), f"session {hashes[0]}")
    held.begin(kept)
    held.release(kept)
    return kept.number


async def _count_choices(contender: Contender) -> tuple[int, int]:
    """Return in how many trials the router chose the engine that had the prompt, and the one that had had it. Each is
    with another engine and prompt.
    """
    found = lost = 0
    async with build_fleet(seed=1) as fleet, httpx.AsyncClient(trust_env=False, timeout=60.0) as http:
        engines = await list_engines(fleet)
        with contender.running(engines) as router:
            await asyncio.sleep(SETTLE_S)
            url = f"http://127.0.0.1:{router.port}"
            for trial in range(TRIALS):
                warm, other = engines[trial % ENGINES], engines[(trial + 3) % ENGINES]
                await _chat(http, warm.url, f"{trial} warm")
                await _chat(http, other.url, f"{trial} other")
                await asyncio.sleep(ANNOUNCED_S)
                found += await _find_chosen(http, url, engines, f"{trial} warm") is warm
                for engine in engines:  # all: the only empty one would be a good choice for any prompt
                    (await http.post(f"{engine.url}/reset_prefix_cache")).raise_for_status()
                    await _chat(http, engine.url, f"{trial}", words=1)  # with its next step it announces the reset
                await asyncio.sleep(ANNOUNCED_S)
                lost += await _find_chosen(http, url, engines, f"{trial} other") is other
    return found, lost


async def _find_chosen(http: httpx.AsyncClient, url: str, engines: list[Engine], prompt: str) -> Engine | None:
    """Return the engine to which the router sends a continued prompt; None if it cannot be told."""
    before = [await _count(http, engine) for engine in engines]
    await _chat(http, url, prompt, "And now?")
    after = [await _count(http, engine) for engine in engines]
    chosen = [engine for engine, then, now in zip(engines, before, after, strict=True) if now > then]
    return chosen[0] if len(chosen) == 1 else None


async def _count(http: httpx.AsyncClient, engine: Engine) -> float:
    return sum_samples((await http.get(f"{engine.url}/metrics")).text, "vllm:request_success_total")


async def _chat(http: httpx.AsyncClient, url: str, name: str, *more: str, words: int = WORDS) -> None:
    texts = [" ".join(f"{name} {word}" for word in range(words)), *more]
    messages = [{"role": "user", "content": text} for text in texts]
    body = msgspec.json.encode({"model": MODEL, "messages": messages, "max_tokens": 2})
    answer = await http.post(f"{url}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    answer.raise_for_status()
