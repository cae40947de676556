"""What routers see of held engines, and when they have taken it in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx
import zmq

from router.backends.vllm.kv_events import decode
from router.kvcache.events import BlocksStored, EngineHash, EventBatch, Tier
from router.lab.workloads.block_names import NamedTokens
from tests.headtohead.engines import BLOCK_TOKENS, Engine
from tests.headtohead.held_engines import HeldEngines, write_chat
from tests.headtohead.quiescence import Quiescence

NAMES = [0xABCD, 1 << 59, 7]
WORKS = "import sys\nfor line in sys.stdin: print(sum(range(int(line))), flush=True)"


def test_stored_blocks_have_the_ids_to_which_the_engine_renders_their_text() -> None:
    hashes = [EngineHash(name) for name in NAMES]
    tokens = NamedTokens(NAMES, BLOCK_TOKENS)
    event = BlocksStored(hashes, None, tokens, BLOCK_TOKENS, Tier.GPU, 0, None, None, None)
    with HeldEngines() as held:
        stored = publish(held, 3, event)
        assert stored.hashes == hashes
        assert list(stored.token_ids) == render(held.engines[0])


def publish(held: HeldEngines, number: int, event: BlocksStored) -> BlocksStored:
    """Return the event as it arrives at a subscriber of an engine."""
    context: zmq.Context[Any] = zmq.Context()
    with context, context.socket(zmq.SUB) as subscriber:
        subscriber.connect(held.engines[number].events)
        subscriber.subscribe(b"")
        while not subscriber.poll(20):  # until the subscription has arrived
            held.publish(number, [event])
        batch = decode(subscriber.recv_multipart())
    assert isinstance(batch, EventBatch)
    (arrived,) = batch.events
    assert isinstance(arrived, BlocksStored)
    return arrived


def render(engine: Engine) -> Sequence[int]:
    url = f"{engine.url}/v1/chat/completions/render"
    answer = httpx.post(url, content=write_chat(NAMES, 1), trust_env=False)
    ids: Sequence[int] = answer.json()["token_ids"]
    return ids


def test_a_process_is_quiescent_when_it_has_answered() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        quiescence = Quiescence([process.pid])
        os.set_blocking(process.stdout.fileno(), False)
        for last in (1, 3_000_000, 10):
            process.stdin.write(b"%d\n" % last)
            process.stdin.flush()
            asyncio.run(quiescence.wait())
            assert os.read(process.stdout.fileno(), 100) == b"%d\n" % (last * (last - 1) // 2)
        quiescence.close()
        process.stdin.close()
