"""What the index promises of hybrid models, against the cache manager of the installed vLLM: groups of every kind."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from router.kvcache.events import TargetId
from router.kvcache.index import BlockIndex
from router.lab.local_stack.install import stack_venv
from tests.fakes.caches import RING, promise_each, read_batch

pytestmark = pytest.mark.stack

SCRIPT = Path(__file__).parent / "reference_cache.py"
REQUESTS, SEED = 300, 1
A = TargetId("a/0")
FULL = ["full", 32, None]


class Played(NamedTuple):
    """A request to the cache manager."""

    prompt_tokens: int
    held: int  # tokens that full attention holds
    promised: int
    cached: int


def play_requests(groups: list[list[Any]], *options: str, unit: int = 0) -> list[dict[str, Any]]:
    """Play chats to a cache manager with these groups."""
    arguments = [str(SCRIPT), json.dumps(groups), *map(str, (SEED, REQUESTS, unit)), *options]
    command = [str(stack_venv() / "bin" / "python"), *arguments]
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin:/bin"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return [json.loads(line) for line in output.splitlines()]


def play(groups: list[list[Any]], *options: str) -> list[Played]:
    """Play chats to a cache manager with these groups, whose events are all that the index gets."""
    (block_tokens,) = {size for kind, size, _ in groups if kind == "full"}
    index = BlockIndex(RING)
    index.join(A, "m")
    played = []
    for request in play_requests(groups, *options):
        ids = request["ids"]
        keys = RING.chain(RING.root("m", None, None), ids, block_tokens)[: (len(ids) - 1) // block_tokens]
        found = index.match(keys, [A])
        held = found[A].gpu if A in found else 0
        promised = index.count_reusable(A, keys, held, drafts="eagle" in options)
        played.append(Played(len(ids), block_tokens * held, block_tokens * promised, request["cached"]))
        for applied in read_batch(request["events"]).events:
            index.apply(A, applied)  # type: ignore[arg-type]
    return played


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
    played = play(groups)
    broken = [one for one in played if one.promised != one.cached]
    held_more = sum(one.held > one.cached for one in played)
    print(f"\n{groups}: {len(broken)} of {REQUESTS} wrong {broken[:5]}; full attention alone {held_more}")
    assert broken == []
    assert sum(one.cached for one in played) > 0
    assert held_more > REQUESTS / 10


@pytest.mark.parametrize("groups", [[FULL], [["sliding", 32, 128], FULL], [["mamba", 32, None], FULL]], ids=str)
def test_promises_of_an_engine_that_drafts(groups: list[list[Any]]) -> None:
    """With EAGLE or MTP the last block of every hit is computed again. Only a prompt of whole blocks is looked up to
    its end, so more of it may be re-used.
    """
    played = play(groups, "eagle")
    less = Counter((one.cached - one.promised) // 32 for one in played)
    print(f"\n{groups}: re-used more than promised, in blocks: {dict(less)}")
    assert all(one.promised == one.cached for one in played if one.prompt_tokens % 32)
    assert min(less) == 0, "never less"
    assert sum(one.held > one.cached > 0 for one in played) > REQUESTS / 3


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ([["mamba", 64, None], ["full", 64, None]], 8),
        ([["full", 64, None], ["mamba", 64, None], ["mamba", 64, None]], 16),
        ([["full", 528, None], ["mamba", 528, None]], 16),
        ([["mamba", 128, None], ["full", 64, None]], 8),
        ([["mamba", 64, None], ["full", 64, None], ["sliding", 8, 100]], 8),
    ],
    ids=str,
)
def test_promises_inside_blocks(groups: list[list[Any]], unit: int) -> None:
    """With `--prefix-match-unit` prompts are re-used up to any unit, where an earlier prompt ended."""
    (block_tokens,) = {size for kind, size, _ in groups if kind == "full"}
    played = play_requests(groups, unit=unit)
    promised = promise_each(played, block_tokens)
    wrong = [(n, promise, one["cached"]) for n, (promise, one) in enumerate(zip(promised, played, strict=True))]
    wrong = [one for one in wrong if one[1] != one[2]]
    inside = sum(one["cached"] % block_tokens > 0 for one in played)
    print(f"\n{groups}, unit {unit}: {len(wrong)} of {REQUESTS} wrong {wrong[:8]}; {inside} hits end inside a block")
    assert len(wrong) <= REQUESTS / 100, "no size is known before the first whole block"
    assert inside > REQUESTS / 10
