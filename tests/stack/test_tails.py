"""What the index promises of hybrid models, against the cache manager of the installed vLLM: groups of every kind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.kvcache.events import TargetId
from router.kvcache.index import BlockIndex
from router.lab.local_stack.install import stack_venv
from tests.fakes.caches import RING, read_batch

pytestmark = pytest.mark.stack

SCRIPT = Path(__file__).parent / "reference_cache.py"
REQUESTS, SEED = 300, 1
A = TargetId("a/0")
FULL = ["full", 32, None]


@pytest.mark.parametrize(
    "groups",
    [
        [["sliding", 32, 128], FULL],
        [["sliding", 32, 128], ["sliding", 32, 128], FULL],
        [["sliding", 32, 64], ["sliding", 32, 300], FULL],
        [["full", 16, None], ["sliding", 16, 1024]],
        [["mamba", 32, None], FULL],
        [["mamba", 32, None], ["sliding", 32, 100], FULL],
        [["sliding", 16, 128], FULL],
        [["sliding", 64, 200], FULL],
        [["mamba", 64, None], FULL],
        [["mamba", 64, None], ["sliding", 32, 128], FULL],
        [["mamba", 128, None], ["sliding", 64, 200], ["sliding", 32, 100], FULL],
        [FULL, FULL, ["sliding", 32, 128]],
    ],
    ids=str,
)
def test_promises_are_what_the_cache_manager_finds(groups: list[list[Any]]) -> None:
    python = str(stack_venv() / "bin" / "python")
    command = [python, str(SCRIPT), json.dumps(groups), str(SEED), str(REQUESTS)]
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin:/bin"}
    played = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    (block_tokens,) = {size for kind, size, _ in groups if kind == "full"}
    index = BlockIndex(RING)
    index.join(A, "m")
    broken, cached_tokens, held_more = [], 0, 0
    for line in played.stdout.splitlines():
        request = json.loads(line)
        ids, cached = request["ids"], request["cached"]
        keys = RING.chain(RING.root("m", None, None), ids, block_tokens)[: (len(ids) - 1) // block_tokens]
        held = index.match(keys, [A])
        blocks = held[A].gpu if A in held else 0
        promised = block_tokens * index.count_reusable(A, keys, blocks)
        if promised != cached:
            broken.append((len(ids), promised, cached))
        cached_tokens += cached
        held_more += block_tokens * blocks > cached
        for applied in read_batch(request["events"]).events:
            index.apply(A, applied)  # type: ignore[arg-type]
    print(f"\n{groups}: {len(broken)} of {REQUESTS} wrong {broken[:5]}; full attention alone {held_more}")
    assert broken == []
    assert cached_tokens > 0
    assert held_more > REQUESTS / 10
