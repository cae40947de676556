"""`reference_cache.py GROUPS SEED REQUESTS UNIT [eagle]` plays requests to the installed vLLM's KV cache manager.

Run with the Python of the stack's environment: this project is not in it, and no model is loaded. GROUPS is JSON, a
list of `[kind, block_tokens, window]`; UNIT as `--prefix-match-unit`, 0 for none; `eagle`: as with drafts of EAGLE or
MTP. For each request one line of JSON goes to standard output: the prompt's token ids, how many of them were cached,
and the events that the request caused.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from math import gcd, lcm
from typing import Any

CACHE_BLOCKS = 400
SYSTEMS, SESSIONS = 3, 12
MAX_TOKENS = 16_384


def make_manager(groups: Sequence[Sequence[Any]], unit: int, *, eagle: bool) -> tuple[Any, Any, tuple[int, int]]:
    """Return a cache manager with these groups, the function that hashes its requests, and the sizes at whose multiples
    a step may end.
    """
    import torch
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    init_none_hash(sha256_cbor)
    heads = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs: list[Any] = []
    for kind, block_tokens, window in groups:
        if kind == "full":
            specs.append(FullAttentionSpec(block_size=block_tokens, **heads))
        elif kind == "sliding":
            specs.append(SlidingWindowSpec(block_size=block_tokens, sliding_window=window, **heads))
        else:
            shape = {"shapes": ((1,),), "dtypes": (torch.float32,)}
            specs.append(MambaSpec(block_size=block_tokens, mamba_cache_mode="align", **shape))
    sizes = [block_tokens for _, block_tokens, _ in groups]
    layers = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    config = KVCacheConfig(CACHE_BLOCKS, [], layers, prefix_cache_retention_interval=0)
    hashed = unit or gcd(*sizes)
    manager = KVCacheManager(
        config,
        max_model_len=MAX_TOKENS,
        scheduler_block_size=lcm(*sizes),
        hash_block_size=hashed,
        enable_kv_cache_events=True,
        use_eagle=eagle,
    )
    return manager, get_request_block_hasher(hashed, sha256_cbor), (lcm(*sizes), unit or lcm(*sizes))


def play(manager: Any, hasher: Any, sizes: tuple[int, int], number: int, ids: list[int], answer: Sequence[int]) -> int:
    """Run one request from its first step to its end. Return the number of cached tokens."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    manager.new_step_starts()
    request = Request(str(number), ids, SamplingParams(max_tokens=len(answer)), None, block_hasher=hasher)
    blocks, cached, junction = manager.get_computed_blocks(request)
    request.shared_prefix_boundary = junction
    # As the scheduler does for states: a step ends where one is to be kept.
    block_tokens, unit = sizes
    kept = {(len(ids) - 1) // size * size for size in sizes}
    begun = -(-cached // block_tokens) * block_tokens  # a step that begins inside a block ends with it
    parted = cached + (junction - cached) // block_tokens * block_tokens if unit < block_tokens else junction
    ends = {len(ids), *kept, parted, begun} if begun < len(ids) else {len(ids), *kept, parted}
    done, first = cached, True
    for end in sorted(end for end in ends if end > cached):
        hit = (cached, blocks) if first else (0, None)
        if not first:
            manager.new_step_starts()
            request.num_computed_tokens = done
        assert manager.allocate_slots(request, end - done, *hit) is not None, "the cache is too small for a prompt"
        copy_states(manager)
        done, first = end, False
    for token in answer:
        request.num_computed_tokens = done
        manager.new_step_starts()
        request.append_output_token_ids(token)
        assert manager.allocate_slots(request, 1) is not None
        copy_states(manager)
        done += 1
    manager.free(request)
    return int(cached)


def copy_states(manager: Any) -> None:
    """Give up the states that were copied in a step because requests go on from inside a block."""
    _, copied = manager.take_kv_cache_block_copies()
    manager.block_pool.free_blocks(copied)


def prompts(seed: int, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield prompts and answers of chats that share beginnings, grow by turns, part and are repeated."""
    dice = random.Random(seed)

    def some(tokens: int) -> list[int]:
        return [dice.randrange(1000, 50_000) for _ in range(tokens)]

    systems = [some(dice.randrange(100, 700)) for _ in range(SYSTEMS)]
    chats = [list(dice.choice(systems)) for _ in range(SESSIONS)]
    for _ in range(count):
        number = dice.randrange(SESSIONS)
        chat = chats[number]
        if dice.random() < 0.1 or len(chat) > 2500:
            chat = list(dice.choice(systems))
        elif dice.random() < 0.1:
            chat = chat[: dice.randrange(1, len(chat) + 1)]
        prompt = chat + some(dice.randrange(1, 300))
        if dice.random() < 0.2:
            prompt = prompt[: max(1, len(prompt) // 32 * 32)]
        answer = some(dice.randrange(1, 60))
        chats[number] = prompt + answer if dice.random() < 0.9 else prompt
        yield prompt, answer


def plain(event: Any) -> dict[str, Any]:
    """Return an event with the fields of the wire, and its hashes as numbers."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    for name in ("block_hashes", "parent_block_hash"):
        if (value := fields.get(name)) is not None:
            fields[name] = list(map(number_of, value)) if isinstance(value, list) else number_of(value)
    return {"type": type(event).__name__, **fields, "extra_keys": None}


def number_of(hash_: Any) -> int:
    return hash_ if isinstance(hash_, int) else int.from_bytes(hash_[:8], "big")


def main() -> None:
    groups, (seed, count, unit) = json.loads(sys.argv[1]), map(int, sys.argv[2:5])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    sys.path.pop(0)  # this folder's modules are none of vLLM's
    manager, hasher, sizes = make_manager(groups, unit, eagle="eagle" in sys.argv[5:])
    for number, (ids, answer) in enumerate(prompts(seed, count)):
        cached = play(manager, hasher, sizes, number, ids, answer)
        events = [plain(event) for event in manager.take_events()]
        out.write(json.dumps({"ids": ids, "cached": cached, "events": events}) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
