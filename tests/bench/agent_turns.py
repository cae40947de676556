"""Time that the router adds to an agent's warm turn of 80,000 tokens, 1,000 of them new, before the engine has it.

Added time is the time from the client's first byte sent to the backend's last byte received, through the router, minus
the same for the same bytes sent to the backend directly, right after. By default the router passes token ids to engines
that accept them, so what the engine receives is longer than what the client sent.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from router.lab.emulator.vocabulary import DATA
from tests.bench import routers
from tests.bench.answers import MODEL
from tests.bench.asking import TimedClient
from tests.bench.figures import Bar, Line, beside, quantile
from tests.bench.prompts import Chat, Words
from tests.bench.real_stack.engine_counters import CounterPage
from tests.bench.routers import EVEN, Running
from tests.bench.row import BenchRun, NotMeasured, Row

TOKENS, NEW_TOKENS = 80_000, 1_000
SESSIONS, TURNS = 3, 20
ENGINES = 4


def cache_aware_settings(folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of a router that tokenises here and decides by what caches hold."""
    tokens = {"budget_ms": 5000.0} | more.pop("tokens", {})
    return {"tokenizers": {MODEL: {"path": str(folder)}}, "tokens": tokens, "active": "warm", **more}


def warm(run: BenchRun) -> list[Line]:
    """Return what a warm turn costs, with ids for the engine beside a router that only reads and forwards it, and
    without.
    """
    lines: list[Line] = []
    for hand, bars in (("auto", (Bar(4.0), Bar(10.0))), ("off", (None, None))):
        with routers.engines(ENGINES, events=True) as backends, ExitStack() as stack:
            settings = cache_aware_settings(DATA, tokens={"token_id_passthrough": hand})
            router = stack.enter_context(routers.warmroute(backends, run.folder, settings, f"hand-{hand}"))
            added, cpu_ms = warm_turns(run, router, backends[0], Words(DATA))
            check_local(router)
            p50 = [quantile(some, 0.5) for some in added]
            if hand == "auto":
                even = stack.enter_context(routers.warmroute(backends, run.folder, EVEN, "even"))
                forwarding = [quantile(some, 0.5) for some in warm_turns(run, even, backends[0], Words(DATA))[0]]
                what = "added, p50, beside reading and forwarding alone"
                lines.append(beside(what, "ms", p50, forwarding, "our round_robin", Bar(2.0, "ratio")))
            passed = count_passed_prompts(router)
            run.notes.append(f"token_id_passthrough {hand}: {passed:.0f} prompts were sent with their ids")
        what = f"added before the engine sees it, ids handed: {hand}"
        lines.append(Line(f"{what}, p50", "ms", p50, bar=bars[0]))
        lines.append(Line(f"{what}, p99", "ms", [quantile(some, 0.99) for some in added], bar=bars[1]))
        lines.append(Line(f"CPU of the router per turn, ids handed: {hand}", "ms", cpu_ms))
    run.notes.append(f"p50 and p99 of {SESSIONS * run.effort.of(TURNS, 10)} turns per repetition")
    return lines


def warm_turns(
    run: BenchRun, router: Running, direct: int, words: Words, tokens: int = TOKENS
) -> tuple[list[list[float]], list[float]]:
    """Return added milliseconds by repetition and turn, and CPU milliseconds per turn by repetition.

    The first turn of each session is cold and does not count.
    """
    added: list[list[float]] = []
    cpu_ms: list[float] = []
    turns = run.effort.of(TURNS, 10)
    for repetition in range(run.effort.repetitions):
        added.append([])
        cpu_ms.append(0.0)
        for number in range(SESSIONS):
            run.report(f"{router.name}, repetition {repetition + 1}, session {number + 1} of {SESSIONS}")
            chat = Chat(words, tokens - turns * NEW_TOKENS // 2, seed=1000 * repetition + number)
            with TimedClient(router.port, f"agent-{repetition}-{number}") as through, TimedClient(direct) as straight:
                through.ask(chat.body())
                before = router.cpu_s()
                for _ in range(turns):
                    chat.turn(NEW_TOKENS)
                    body = chat.body()
                    added[-1].append(through.ask(body).seen_ms - straight.ask(body).seen_ms)
                cpu_ms[-1] += (router.cpu_s() - before) * 1e3 / (SESSIONS * turns)
    return added, cpu_ms


def count_passed_prompts(router: Running) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/metrics", timeout=10) as page:
        return CounterPage(page.read().decode()).total("warmroute_token_id_passthrough_prompts_total") or 0.0


def check_local(router: Running) -> None:
    """Check that the router tokenised locally and counted as the backend did. Raises NotMeasured otherwise."""
    for instance in router.get_admin("/admin/instances")["instances"]:
        told = instance["tokenizer"]
        if told is None or told["source"] != "local" or told["mismatches"]:
            raise NotMeasured(f"the router did not tokenise by itself: {json.dumps(told)}")


ROWS = (Row("warm-turn", "warm agent turn: 80,000 tokens, 1,000 of them new", warm, 150, 14),)
