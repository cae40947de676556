"""What a rollout of a whole fleet costs its clients: hits, latency and failures, before, during and after it.

    python -m tests.bench.rollout [--engines 8] [--pool] [--preload] [--hand-off] [--chats 16]

Emulated engines are restarted one after the other by `warmroute rollout`, while chats go on: each is one of an
application, whose instructions all its chats share, and ends after a few turns, when one of another begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop

from router.lab.emulator.mooncake_master import MasterOptions, MooncakeMaster
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from tests.e2e.conftest import MODEL, TOKENIZER, RouterProcess, _router_process
from tests.paths import CONFIGS, ROOT

TURNS = 3
RULES = 500  # in the instructions of an application: about 2,000 tokens
THINK_S = 0.5
AFTER_S = 12.0
WINDOW_S = 4.0
RECOVERED = 0.95  # of the hit share before


class Turn(NamedTuple):
    """One answered request."""

    at_s: float
    took_s: float
    ok: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Phase(NamedTuple):
    """The requests of a time."""

    requests: int
    failed: int
    hit_share: float
    p50_s: float
    p90_s: float


def sum_up(turns: Sequence[Turn]) -> Phase:
    """Return the figures of some requests."""
    took = sorted(turn.took_s for turn in turns)
    prompt, cached = sum(turn.prompt_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
    failed = sum(not turn.ok for turn in turns)
    return Phase(len(turns), failed, cached / max(1, prompt), took[len(took) // 2], took[len(took) * 9 // 10])


def between(turns: Iterable[Turn], begin_s: float, end_s: float) -> list[Turn]:
    return [turn for turn in turns if begin_s <= turn.at_s < end_s]


async def chat_on(client: httpx.AsyncClient, number: int, applications: int, turns: list[Turn]) -> None:
    """One chat after the other, until cancelled."""
    dice = random.Random(number)
    for chat in count():
        name, app = f"{number}-{chat}", dice.randrange(applications)
        rules = " ".join(f"app {app} rule {n}" for n in range(RULES // 2))
        messages = [{"role": "system", "content": rules}]
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"chat {name} turn {turn}: " + f"why {turn} " * 40})
            body = {"model": MODEL, "messages": messages, "max_tokens": 16}
            began = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=body)
            took_s = time.monotonic() - began
            if answer.status_code != 200:
                turns.append(Turn(began, took_s, False))
                continue
            said = answer.json()
            usage = said["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            turns.append(Turn(began, took_s, True, usage["prompt_tokens"], cached))
            messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})
            await asyncio.sleep(THINK_S)


async def roll(router: RouterProcess, command: str, look_s: float, settle_s: float) -> tuple[int | None, str]:
    """Run the command. Return its exit code and what it printed."""
    words = ["--command", command, "--passive", "--look", f"{look_s}", "--settle", f"{settle_s}"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "rollout", "--max-p90", "50", "--min-hits", "0", *words),
        *("--admin", router.admin_url, "--metrics", f"{router.url}/metrics"),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


def configure(fleet: EmbeddedFleet, master: MooncakeMaster | None, preload: dict[str, bool]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "fleet": {
            "instances": [{"name": one.name, "url": one.url} for one in fleet.members],
            "speed_prior": {"pool": {"base_ms": 5, "us_per_token": 10}},
            "health": {"interval_s": 0.25},
            "metrics": {"idle_interval_s": 0.5},
        },
        "tokenizers": {MODEL: {"path": TOKENIZER}},
        "policies_dir": str(CONFIGS / "policies"),
        "active": "warm",
        "preload": preload,
        "seed": 1,
    }
    if master is not None:
        config["pool"] = {"masters": [master.url]}
    return config


async def measure(args: argparse.Namespace) -> None:
    """Run the rollout under load, and print the figures as JSON."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = await stack.enter_async_context(MooncakeMaster(MasterOptions())) if args.pool else None
        options = [
            EngineOptions(
                name=f"e{n}",
                seed=n,
                prefill_tokens_per_s=4000,
                decode_ms_per_token=10,
                answer_tokens=16,
                pool_url=None if master is None else master.url,
            )
            for n in range(args.engines)
        ]
        fleet = await stack.enter_async_context(EmbeddedFleet(options))
        config = configure(fleet, master, {"join": args.preload, "drain": args.hand_off})
        router = await stack.enter_async_context(_router_process(config, folder))
        client = await stack.enter_async_context(router.client(timeout=60.0))
        for member in fleet.members:
            (folder / member.name).write_text(str(member.pid))
        turns: list[Turn] = []
        load = [asyncio.create_task(chat_on(client, number, args.applications, turns)) for number in range(args.chats)]
        await asyncio.sleep(args.look)  # caches fill
        began_s = time.monotonic()
        command = f"sh -c 'kill $(cat {folder}/$WARMROUTE_INSTANCE)'"
        code, printed = await roll(router, command, args.look, args.settle)
        ended_s = time.monotonic()
        await asyncio.sleep(AFTER_S)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        if args.verbose:
            print(printed)
        rolled_s = began_s + args.look
        before = sum_up(between(turns, began_s, rolled_s))
        preloads = (await router.admin.get("/admin/preloads")).json()
        figures = {
            "engines": args.engines,
            "pool": args.pool,
            "preload": args.preload,
            "hand_off": args.hand_off,
            "exit": code,
            "rolled_in_s": round(ended_s - rolled_s, 1),
            "before": before._asdict(),
            "during": (during := sum_up(between(turns, rolled_s, ended_s)))._asdict(),
            "after": sum_up(between(turns, ended_s, time.monotonic()))._asdict(),
            "hit_share_kept": during.hit_share / before.hit_share,
            "lowest_window": min(shares(turns, rolled_s, ended_s)) / before.hit_share,
            "recovered_after_s": find_recovery(turns, ended_s - args.settle, before.hit_share * RECOVERED),
            "loaded": preloads["loaded_tokens"],
            "settled": preloads["settled_tokens"],
            "handed_off": [(one["id"], one["planned"], one["loaded"], one["end"]) for one in preloads["handoffs"]],
            "warmed": [(one["id"], one["planned"], one["loaded"], one["end"]) for one in preloads["warmups"]],
        }
        print(json.dumps(figures, indent=1))


def shares(turns: Sequence[Turn], begin_s: float, end_s: float) -> list[float]:
    """Return the hit share of each `WINDOW_S`, a second apart."""
    starts = range(int(begin_s), int(end_s - WINDOW_S))
    return [sum_up(found).hit_share for at in starts if (found := between(turns, at, at + WINDOW_S))]


def find_recovery(turns: Sequence[Turn], since_s: float, share: float) -> float | None:
    """Return seconds from `since_s`, when the last engine served again, to the begin of the first window with such a
    hit share; None: there was none.
    """
    for tenth in range(int(AFTER_S * 10)):
        at = since_s + tenth / 10
        if (found := between(turns, at, at + WINDOW_S)) and sum_up(found).hit_share >= share:
            return tenth / 10
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="What a rollout costs clients.")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--applications", type=int, default=64)
    parser.add_argument("--pool", action="store_true", help="the engines share a pool")
    parser.add_argument("--preload", action="store_true", help="engines that join are warmed")
    parser.add_argument("--hand-off", action="store_true", help="engines are handed off before they are drained")
    parser.add_argument("--look", type=float, default=12.0, help="seconds before the rollout")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds after each engine")
    parser.add_argument("--verbose", action="store_true", help="print the rollout's own lines, too")
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
