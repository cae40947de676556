"""A hybrid model on two real engines: each delivers what the router promised, to the block, with shared prefixes, turns
and evictions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.lab.local_stack.install import Models
from router.lab.local_stack.supervisor import RunningStack
from tests.stack.behind import Asked, Behind, running
from tests.stack.bodies import CHAT, COMPLETIONS, Json
from tests.stack.engines import Engine, small_stack
from tests.stack.prompts import assistant, ids, prose, user

pytestmark = pytest.mark.stack

REQUESTS, KEPT = 100, 99
SYSTEMS, SESSIONS = 4, 16
BLOCK_TOKENS = 32
BLOCKS = 400
BLOCK_BYTES = BLOCK_TOKENS * 1024  # a group has two layers, with two heads of 64, in bfloat16


class Session:
    """A chat that grows by a turn at a time."""

    def __init__(self, number: int) -> None:
        self.name = f"session {number}"
        self.messages: list[Json] = [{"role": "system", "content": prose(f"system {number % SYSTEMS}", 350)}]

    def turn(self, behind: Behind, dice: random.Random) -> Asked:
        """Ask a next question, or the last one again."""
        if len(self.messages) > 1 and dice.random() < 0.2:
            self.messages.pop()
        else:
            self.messages.append(user(prose(f"{self.name} {len(self.messages)}", dice.randint(20, 200))))
        body = {"messages": self.messages, "max_tokens": dice.randint(2, 70), "temperature": 0, "ignore_eos": True}
        asked = behind.send(CHAT, body)
        self.messages.append(assistant(asked.text))
        return asked


@pytest.fixture
def behind(models: Models, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Behind]:
    """Two engines with as many blocks as the test's parameter says."""
    other = {"model": str(models.hybrid), "engine_args": ["--block-size", str(BLOCK_TOKENS)]}
    with ExitStack() as opened:
        config = small_stack(models, tmp_path, **other, kv_cache_bytes=request.param * BLOCK_BYTES)
        stack = opened.enter_context(RunningStack(config))
        pair = [opened.enter_context(Engine(stack, server.name)) for server in stack.engines]
        for engine in pair:
            engine.wait()
        behind = opened.enter_context(running(Behind("router", pair, models.hybrid, {}, tmp_path)))
        behind.wait()
        yield behind


@pytest.mark.parametrize("behind", [BLOCKS], indirect=True)
def test_a_hybrid_model_delivers_what_was_promised(behind: Behind) -> None:
    dice = random.Random(1)
    sessions = [Session(number) for number in range(SESSIONS)]
    asked = []
    for _ in range(REQUESTS):
        asked.append(dice.choice(sessions).turn(behind, dice))
        behind.hear(behind.engine(asked[-1].instance))
    broken = [(one.predicted, one.cached) for one in asked if not one.kept]
    tokens, delivered = sum(one.record["prompt_tokens"] for one in asked), sum(one.cached or 0 for one in asked)
    print(f"\n{REQUESTS - len(broken)} of {REQUESTS} kept, {delivered} of {tokens} tokens re-used; not kept: {broken}")
    assert len(broken) <= REQUESTS - KEPT
    assert delivered > tokens / 4
    assert tokens - delivered > 2 * BLOCKS * BLOCK_TOKENS, "blocks were evicted"


@pytest.mark.parametrize("behind", [4 * BLOCKS], indirect=True)
def test_what_is_re_used_of_prompts_that_share_a_beginning(behind: Behind) -> None:
    """Blocks of 32 tokens, windows of 128. An engine keeps a tail where a prompt ends, and where the second one
    parts from the first.
    """
    away = behind.engines[1].name
    behind.admin.post(f"/admin/instances/{away}/drain").raise_for_status()
    a, b, c, d, other = (ids(name, 1024) for name in ("a", "b", "c", "d", "other"))
    turn = a[:1000] + b[:100]

    def ask(prompt: list[int], answered: int = 1) -> tuple[int | None, list[int]]:
        body = {"prompt": prompt, "max_tokens": answered, "ignore_eos": True, "return_token_ids": True}
        asked = behind.send(COMPLETIONS, body)
        behind.hear(behind.engine(asked.instance))
        assert asked.kept, f"{asked.predicted} promised, {asked.cached} re-used of {len(prompt)}"
        return asked.cached, asked.ids or []

    assert ask(a[:1000])[0] == 0
    assert ask(a[:1000])[0] == 992
    assert ask(a[:512] + b[:500])[0] == 0, "full attention holds 512; nobody had parted there before"
    assert ask(a[:512] + c[:500])[0] == 512, "the second one has"
    assert ask(a[:500] + d[:500])[0] == 0, "another junction: 480"
    assert ask(a[:500] + other[:500])[0] == 480
    assert ask(a[:1000] + b[:500])[0] == 992
    cached, answer = ask(turn, 300)
    assert cached == 992, "the tail of the first prompt is nearer than that of the last one"
    assert len(answer) == 300
    assert ask(turn + answer + c[:60])[0] == 1088, "the answer is computed again"
    assert ask(turn + answer + d[:60])[0] == 1376, "and then kept"
    assert ask(other[:100])[0] == 0
    assert ask(other[:100])[0] == 96
    assert ask(other[:64] + b[:100])[0] == 64, "less than a window, from the beginning on"
    assert ask(b)[0] == 0
    assert ask(b)[0] == 992
    assert ask(b + c[:100])[0] == 992
