"""KV events of many targets at a given rate, from real ZeroMQ sockets in a process of its own.

Every message is one engine step: sixteen prompts of sixteen blocks of sixteen tokens, each from token 0 and unlike all
others. A full target announces, in the same message and before the new blocks, one removal per block that it evicts, as
vLLM does. Commands are lines on standard input, each answered by one line of JSON:

    pour BLOCKS_PER_S SECONDS CAPACITY      blocks announced per second, all targets together; most that each may hold
    clear                                   every target drops everything
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque

import msgspec
import zmq

BLOCK_TOKENS, EVENT_BLOCKS, STEP_EVENTS = 16, 16, 16
STEP_BLOCKS = EVENT_BLOCKS * STEP_EVENTS
ODD = 0x9E3779B97F4A7C15  # times a counter, modulo 2^64: hashes that differ, and lie everywhere
TOKENS = [(7919 * i) % 100_000 for i in range(BLOCK_TOKENS * EVENT_BLOCKS)]
_encode = msgspec.msgpack.Encoder().encode


class Target:
    """One engine's publisher and the blocks that it holds."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], number: int) -> None:
        self.held: deque[int] = deque()
        self._socket = context.socket(zmq.PUB)
        self._socket.set_hwm(0)  # nothing is lost here: what arrives late is the reader's doing
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._seq = -1
        self._made = number << 40

    def step(self, capacity: int) -> int:
        """Publish one message; return the number of blocks that it announces."""
        events: list[dict[str, object]] = []
        while len(self.held) + STEP_BLOCKS > capacity:
            gone = {"type": "BlockRemoved", "block_hashes": [self.held.popleft()], "medium": "GPU", "group_idx": 0}
            events.append(gone)
        told = len(events) + STEP_BLOCKS
        events += [self._stored() for _ in range(STEP_EVENTS)]
        self._send(events)
        return told

    def close(self) -> None:
        self._socket.close(linger=0)

    def clear(self) -> None:
        self.held.clear()
        self._send([{"type": "AllBlocksCleared"}])

    def _stored(self) -> dict[str, object]:
        first = self._made
        self._made += EVENT_BLOCKS
        hashes = [(n * ODD) & 0xFFFF_FFFF_FFFF_FFFF for n in range(first, self._made)]
        self.held.extend(hashes)
        own = [first & 0xFFFF, (first >> 16) & 0xFFFF, first >> 32]
        return {
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
            "token_ids": own + TOKENS[3:], "block_size": BLOCK_TOKENS, "lora_id": None, "medium": "GPU",
            "lora_name": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        }  # fmt: skip

    def _send(self, events: list[dict[str, object]]) -> None:
        self._seq += 1
        self._socket.send_multipart([b"", self._seq.to_bytes(8, "big"), _encode([time.time(), events, 0])])


def pour(targets: list[Target], blocks_per_s: float, seconds: float, capacity: int) -> dict[str, float]:
    """Let each target in turn publish whenever its step is due. `behind_s`: how late the last one was."""
    began = time.monotonic()
    told = number = 0
    while (due_s := told / blocks_per_s) < seconds:
        if (early_s := began + due_s - time.monotonic()) > 0:
            time.sleep(early_s)
        told += targets[number % len(targets)].step(capacity)
        number += 1
    took_s = time.monotonic() - began
    return {"blocks": told, "took_s": took_s, "behind_s": took_s - seconds, "held": sum(len(t.held) for t in targets)}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--targets", type=int, required=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    targets = [Target(context, number) for number in range(arguments.parse_args().targets)]
    print(json.dumps([target.port for target in targets]), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["pour", rate, seconds, capacity]:
                print(json.dumps(pour(targets, float(rate), float(seconds), int(capacity))), flush=True)
            case ["clear"]:
                for target in targets:
                    target.clear()
                print("{}", flush=True)
            case _:
                raise SystemExit(f"not a command: {line!r}")


if __name__ == "__main__":
    main()
