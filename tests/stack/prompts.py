"""Prompts by their seed: the same words or token ids each time, and no others' ones from the first on."""

from __future__ import annotations

import random

from tests.stack.bodies import Json

WORDS = [
    "warm",
    "cold",
    "block",
    "token",
    "prompt",
    "router",
    "engine",
    "cache",
    "hit",
    "miss",
    "page",
    "stream",
    "answer",
    "queue",
    "prefix",
    "salt",
    "tenant",
]


def prose(seed: str, words: int) -> str:
    """Text that no other seed has, from its first word on; about 1.3 tokens per word."""
    dice = random.Random(seed)
    return f"{seed}: " + " ".join(dice.choice(WORDS) for _ in range(words))


def ids(seed: str, count: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(300, 4000) for _ in range(count)]


def user(content: object) -> Json:
    return {"role": "user", "content": content}


def assistant(content: str) -> Json:
    return {"role": "assistant", "content": content}
