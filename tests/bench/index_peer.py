"""NVIDIA Dynamo's `RadixTree` over the events of `cache_events.py`, run by the Python of the benchmark's own venv.

    index_peer.py REPETITIONS BLOCKS QUERIES        writes the fields of `index.Figures` as JSON, per repetition

Its calls are handed to a thread of its own and wait, so CPU time is the process's, that thread included.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository: its venv does not have it

from tests.bench.cache_events import Part, StoredRun, apart, keys_of, make_runs, sessions, spread


def main() -> None:
    repetitions, blocks, queries = map(int, sys.argv[1:])
    print(json.dumps([_measure_once(blocks, queries) for _ in range(repetitions)]))


def _measure_once(blocks: int, queries: int) -> dict[str, Any]:
    tree, took_s = _filled(apart(blocks), shared=False)
    tree.find_matches([1])
    return {
        "applied": blocks / took_s,
        "sessions": _match(sessions(blocks), queries, shared=True),
        "spread": _match(spread(blocks), queries, shared=False),
    }


def _filled(parts: list[Part], *, shared: bool) -> tuple[Any, float]:
    """Return a tree that has all events, and the CPU time of applying them, in s."""
    from dynamo._core import RadixTree

    events = [(event.target, _bytes(number, event)) for number, event in enumerate(make_runs(parts, shared))]
    tree = RadixTree()
    began = time.process_time()
    for worker, event in events:
        tree.apply_event(worker, event)
    tree.find_matches([1])  # whatever it still had to do is done when it answers
    return tree, time.process_time() - began


def _bytes(number: int, event: StoredRun) -> bytes:
    blocks = [{"block_hash": h, "tokens_hash": k} for h, k in zip(event.hashes, event.keys, strict=True)]
    return json.dumps(
        {"event_id": number, "data": {"stored": {"parent_hash": event.parent, "blocks": blocks}}}
    ).encode()


def _match(parts: list[Part], queries: int, *, shared: bool) -> dict[str, float]:
    tree, _ = _filled(parts, shared=shared)
    prompts = [keys_of(chain, shared) for chain in sorted({part.chain for part in parts})]
    took = []
    for number in range(queries):
        prompt = prompts[number * 7 % len(prompts)]
        began = time.process_time_ns()
        tree.find_matches(prompt)
        took.append((time.process_time_ns() - began) / 1e3)
    return {"p50_us": median(took), "p99_us": sorted(took)[int(len(took) * 0.99)]}


if __name__ == "__main__":
    main()
