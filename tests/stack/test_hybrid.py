"""Hybrid models on two real engines: each delivers what the router promised, with shared prefixes, turns and
evictions. One model has sliding windows; another has linear attention, which vLLM keeps as it keeps Mamba's states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
STATE_BLOCK_TOKENS = 256  # so that a block of full attention is as large as a state
STATE_BLOCKS = 80


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


@contextmanager
def two_engines(models: Models, tmp_path: Path, model: Path, cache_bytes: int, *arguments: str) -> Iterator[Behind]:
    """A router in front of two engines with `model`."""
    with ExitStack() as opened:
        other = {"model": str(model), "engine_args": [*arguments], "kv_cache_bytes": cache_bytes}
        config = small_stack(models, tmp_path, **other)
        stack = opened.enter_context(RunningStack(config))
        pair = [opened.enter_context(Engine(stack, server.name, STATE_BLOCK_TOKENS)) for server in stack.engines]
        for engine in pair:
            engine.wait()
        behind = opened.enter_context(running(Behind("router", pair, model, {}, tmp_path)))
        behind.wait()
        yield behind


@pytest.fixture
def behind(models: Models, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Behind]:
    """Two engines with sliding windows, and as many blocks as the test's parameter says."""
    arguments = "--block-size", str(BLOCK_TOKENS)
    with two_engines(models, tmp_path, models.hybrid, request.param * BLOCK_BYTES, *arguments) as behind:
        yield behind


@pytest.mark.parametrize("behind", [BLOCKS], indirect=True)
def test_sliding_windows_deliver_what_was_promised(behind: Behind) -> None:
    deliver_what_was_promised(behind, BLOCKS * BLOCK_TOKENS)


@pytest.mark.parametrize("arguments", [(), ("--prefix-match-unit", "16")], ids=["blocks", "units"])
def test_linear_attention_delivers_what_was_promised(
    models: Models, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    cache_bytes = STATE_BLOCKS * STATE_BLOCK_TOKENS * 1024
    with two_engines(models, tmp_path, models.linear, cache_bytes, "--mamba-cache-mode", "align", *arguments) as behind:
        asked = deliver_what_was_promised(behind, STATE_BLOCKS * STATE_BLOCK_TOKENS)
    inside = sum(one.cached % STATE_BLOCK_TOKENS > 0 for one in asked if one.cached)
    print(f"{inside} re-uses end inside a block")
    assert inside > REQUESTS / 4 if arguments else not inside


def deliver_what_was_promised(behind: Behind, cache_tokens: int) -> list[Asked]:
    """Send chats with shared beginnings to engines that cache `cache_tokens`, at most."""
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
    computed = tokens - delivered + REQUESTS * STATE_BLOCK_TOKENS  # a small request after each waits for its events
    assert computed > 2 * cache_tokens, "blocks were evicted"
    return asked


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
