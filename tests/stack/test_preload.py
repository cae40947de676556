"""The first turn at a new engine: its prefix loaded ahead from the pool, fetched by the turn itself, or computed.

Two engines over a store. In each round one of them is unknown to the router and has an empty cache, while sessions at
the other one share a long prompt; then it joins, and the first turns there are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from router.lab.local_stack.install import Models
from tests.stack.behind import running
from tests.stack.bodies import CHAT, Json
from tests.stack.children import until
from tests.stack.engines import BLOCK_TOKENS, MODEL, Engine
from tests.stack.over_store import OverStore, Store, engines_over_store, reset
from tests.stack.prompts import prose, user

pytestmark = [pytest.mark.stack, pytest.mark.long]

TOKEN_BYTES = 8 * 1024  # of KV, of the middle model
ROUNDS = 2
WORDS = 3400  # of the shared prompt: more than 32 blocks, of which 32 are loaded ahead
KINDS = "loaded ahead", "fetched", "computed"


@pytest.fixture(scope="module")
def pooled(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two engines with the middle model, which takes seconds for a long prompt."""
    settings: dict[str, Any] = {
        "model": str(models.mid),
        "kv_cache_bytes": 128 * BLOCK_TOKENS * TOKEN_BYTES,
        "pool_bytes": 512 * BLOCK_TOKENS * TOKEN_BYTES,
        "engine_args": ["--enable-scale-out"],
    }
    with engines_over_store(models, tmp_path_factory.mktemp("pooled"), **settings) as engines:
        yield engines


class Fleet:
    """The instances that the router's file lists."""

    def __init__(self, file: Path, engines: list[Engine]) -> None:
        self._file = file
        self._engines = engines
        self.list(2)

    def list(self, count: int) -> None:
        """List the first `count` of the engines."""
        self._file.write_text(json.dumps([engine.instance() for engine in self._engines[:count]]))


def test_the_first_turn_at_a_new_engine(pooled: list[Engine], models: Models, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet.json", pooled)
    settings: dict[str, Any] = {
        "fleet": {"file": str(tmp_path / "fleet.json"), "file_poll_s": 0.1, "metrics": {"idle_interval_s": 0.5}},
        "policies": {"warm": {"scorers": [{"name": "warm"}]}},
        "preload": {"join": True},
    }
    old, new = pooled
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with Store(old.stack) as store, running(OverStore("router", pooled, models.mid, tmp_path, **settings)) as over:
        over.wait()
        for number in range(ROUNDS):
            for kind, ttft_ms in play(number, fleet, old, new, store, over).items():
                took[kind].append(ttft_ms)
    print("\n" + "\n".join(f"{kind}: {median(ms):.0f} ms ({min(ms):.0f}-{max(ms):.0f})" for kind, ms in took.items()))
    assert median(took["loaded ahead"]) < median(took["fetched"]) < median(took["computed"]) / 2


def play(number: int, fleet: Fleet, old: Engine, new: Engine, store: Store, over: OverStore) -> dict[str, float]:
    """Play one round. Return the time to first token of each kind of first turn, in ms."""
    fleet.list(1)
    until(f"{new.name} has left", lambda: new.name not in names(over))
    until(f"{new.name} has reset its cache", lambda: reset(new))
    new.said_all()  # it publishes the reset with its next request
    shared, alone = prose(f"shared {number}", WORDS), prose(f"alone {number}", WORDS)
    for session in range(4 + 2 * number):  # more than began with the prompt of the round before
        over.send(CHAT, turn(shared, f"session {session}"))
    over.send(CHAT, turn(alone, "the only session"))  # too few for it to be loaded ahead
    for said, asked in ((shared, "session 0"), (alone, "the only session")):
        store.has(old.render(CHAT, {"model": MODEL, **turn(said, asked)}))
    began_s = time.time()
    fleet.list(2)
    until(f"{new.name} is warm", lambda: warmed(over, new.name, began_s) is not None)
    assert warmed(over, new.name, began_s)["end"] == "done"
    loaded = [prefix for prefix in preloads(over)["prefixes"] if prefix["at_wall_s"] >= began_s]
    assert {(prefix["target"], prefix["tokens"]) for prefix in loaded} == {(f"{new.name}/0", 32 * BLOCK_TOKENS)}
    assert all(prefix["pool_tokens"] >= 31 * BLOCK_TOKENS for prefix in loaded)
    found = {}
    with over.without(old.name):
        for kind, said in zip(KINDS, (shared, alone, prose(f"never seen {number}", WORDS)), strict=True):
            record = over.send(CHAT, turn(said, f"a new session {kind}") | {"stream": True}).record
            found[kind] = float(record["ttft_ms"])
            assert (record["preloaded_tokens"] is not None) == (kind == "loaded ahead")
    return found


def turn(system: str, asked: str) -> Json:
    return {"messages": [{"role": "system", "content": system}, user(asked)], "max_tokens": 2}


def names(over: OverStore) -> list[str]:
    return [one["id"] for one in over.admin.get("/admin/instances").raise_for_status().json()["instances"]]


def preloads(over: OverStore) -> Json:
    told: Json = over.admin.get("/admin/preloads").raise_for_status().json()
    return told


def warmed(over: OverStore, name: str, since_s: float) -> Any:
    """The instance's warm-up that began after `since_s`, once it has ended; None before."""
    warmups = [one for one in preloads(over)["warmups"] if one["id"] == name and one["began_wall_s"] >= since_s]
    return warmups[0] if warmups and warmups[0]["end"] is not None else None
