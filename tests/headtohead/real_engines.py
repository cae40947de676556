"""Matches at four real vLLM engines on CPUs, started anew for each, with the stack's small model. They share the cores
with the router and its clients, so only what routers do to hits and times is of interest, not their own work.
"""

from __future__ import annotations

import asyncio
import tempfile

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack.install import stack_models, stack_venv
from router.lab.local_stack.supervisor import RunningStack
from tests.headtohead.contenders import Contender
from tests.headtohead.engines import MODEL, find_engine
from tests.headtohead.loads import Load
from tests.headtohead.match import MatchFigures, play_at

ENGINES, BLOCK_TOKENS, TOKEN_BYTES, CONTEXT_TOKENS = 4, 32, 8192, 9216
START_S = 60.0  # of the engines, about


def play(contender: Contender, load: Load, seed: int) -> MatchFigures:
    """Play a match. Raises WarmrouteError or OSError for engines or a router that cannot be installed or started."""
    with (
        tempfile.TemporaryDirectory(prefix="warmroute-headtohead-") as logs,
        RunningStack(_configure(load, logs)) as stack,
    ):
        return asyncio.run(_play(stack, contender, load, seed))


def _configure(load: Load, logs: str) -> LocalStackConfig:
    return LocalStackConfig(
        engines=ENGINES,
        first_port=0,
        model=str(stack_models(stack_venv()).mid),
        served_name=MODEL,
        kv_cache_bytes=load.blocks * BLOCK_TOKENS * TOKEN_BYTES,
        max_model_len=CONTEXT_TOKENS,
        engine_args=["--block-size", str(BLOCK_TOKENS), "--enable-scale-out"],  # vllm-router's `kv_aware` renders there
        store=False,
        logs_dir=logs,
    )


async def _play(stack: RunningStack, contender: Contender, load: Load, seed: int) -> MatchFigures:
    engines = [await find_engine(one.url, load.blocks, BLOCK_TOKENS, stack.model) for one in stack.engines]
    return await play_at(engines, contender, load, seed)
