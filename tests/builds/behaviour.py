"""What the index answers to random events, and what is read of requests that are cut anywhere: a line per seed.

python -m tests.builds.behaviour 300
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from router.kvcache.events import CacheEvent, TargetId, Tier
from router.kvcache.index import BlockIndex
from tests.abuse.fuzz.connection_targets import running_loop, serve_pieces
from tests.fakes.caches import RING, Cache, prompt_of

TARGETS = [TargetId(f"{name}/0") for name in "abcd"]
BLOCK = 4
PIECES = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n",
    b"GET /stream HTTP/1.1\r\nhost: b\r\n\r\n",
    b"GET /early HTTP/1.0\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"content-length: 3\r\n\r\nabc",
    b"transfer-encoding: chunked\r\n\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
    b"connection: close\r\n",
    b"x: \xff\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"\r\n",
)


def index_answers(chance: random.Random) -> Iterator[object]:
    """Apply events to an index, and yield what it then knows of prompts."""
    index = BlockIndex(RING, orphan_blocks=20)
    caches = {target: Cache(BLOCK) for target in TARGETS}
    for target in TARGETS:
        index.join(target, "m")
    for _ in range(60):
        ids = [chance.randrange(2) for _ in range(BLOCK * chance.randrange(1, 9))]
        target = chance.choice(TARGETS)
        cache, start = caches[target], chance.randrange(len(ids) // BLOCK)
        tier = chance.choice((Tier.GPU, Tier.GPU, Tier.GPU, Tier.CPU, Tier.DISK))
        events: list[CacheEvent] = [cache.stored(ids, start, tier), cache.removed(ids, start, tier)]
        event = cache.cleared() if chance.random() < 0.02 else chance.choice([events[0], *events])
        keys = prompt_of(ids, BLOCK).keys[BLOCK]
        stats = index.stats(target)._replace(bytes=0)  # the tables take less in C
        yield index.apply(target, event), index.match(keys, TARGETS), index.holders(keys[-1]), stats
        if chance.random() < 0.1:
            index.forget(target)
        index.sweep(chance.randrange(1, 20))


def request_answers(chance: random.Random) -> Iterator[object]:
    """Send bytes that are nearly a request in pieces, and yield what was read and answered."""
    whole = b"".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 7)))
    cuts = sorted(chance.randrange(len(whole)) for _ in range(chance.randrange(4)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    with running_loop() as running:
        yield serve_pieces(running, [piece for piece in pieces if piece])


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(seed, *index_answers(random.Random(seed)), *request_answers(random.Random(seed)))
