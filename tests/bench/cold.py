"""Cost of a cold prompt of 80,000 tokens: for its own request, and for small requests sent meanwhile.

The chat is new to every cache, so all of it is tokenised. The time that the router adds (`agent_turns.py`) is compared
with tokenising the whole rendered prompt once in a process that does nothing else. The wait of others is that of small
requests through the router, minus that of small requests sent past it to the same backend at the same time: on a busy
machine both wait for a core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from router.clock import SystemClock
from router.config.schema import TokenizerSource
from router.lab.emulator.vocabulary import DATA
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat as Source
from router.prompt.tokenization.model_folder import load
from tests.bench import routers
from tests.bench.agent_turns import ENGINES, TOKENS, cache_aware_settings, check_local
from tests.bench.asking import PATH, TimedClient
from tests.bench.figures import Bar, Line, quantile
from tests.bench.probing import probing
from tests.bench.prompts import Chat, Words
from tests.bench.row import BenchRun, Row

SMALL_PER_S = 100
COLD_S = 0.2  # that a cold prompt takes, about: small requests are sent for as long as there are cold ones


def measure(run: BenchRun) -> list[Line]:
    """Send cold prompts one after the other, with small requests at the same time."""
    words = Words(DATA)
    ratios: list[float] = []
    added: list[float] = []
    waited: list[float] = []
    prompts = run.effort.of(12, 4)
    with routers.engines(ENGINES, events=True) as backends, ExitStack() as stack:
        router = stack.enter_context(routers.warmroute(backends, run.folder, cache_aware_settings(DATA)))
        tokenised_ms = whole_tokenisation(DATA)
        for repetition in range(run.effort.repetitions):
            run.report(f"cold prompts, repetition {repetition + 1}")
            bodies = [Chat(words, TOKENS, seed=500_000 + 100 * repetition + i).body() for i in range(2 * prompts)]
            alone_ms = statistics.median(tokenised_ms(body) for body in bodies[:5])
            added.append(statistics.median(cold_prompts(router.port, backends[0], bodies[:prompts])))
            ratios.append(added[-1] / alone_ms)
            waited.append(meanwhile(run, router.port, backends[0], words, bodies[prompts:]))
        check_local(router)
    return [
        Line("added by a cold prompt, over one full tokenisation", "ms", added, ratios=ratios, bar=Bar(1.1, "ratio")),
        Line("p99 added to small requests meanwhile", "ms", waited, bar=Bar(5.0)),
    ]


def cold_prompts(router: int, direct: int, bodies: list[bytes]) -> list[float]:
    with TimedClient(router) as through, TimedClient(direct) as straight:
        return [through.ask(body).seen_ms - straight.ask(body).seen_ms for body in bodies]


def meanwhile(run: BenchRun, router: int, direct: int, words: Words, bodies: list[bytes]) -> float:
    """Return p99 of small requests through the router minus p99 of those sent past it at the same time."""
    small = run.folder / "small.json"
    small.write_bytes(Chat(words, 40, seed=7).body())
    with (
        TimedClient(router) as large,
        probing([router, direct], small, SMALL_PER_S, len(bodies) * COLD_S) as (seen, running),
    ):
        for body in bodies:
            if running():
                large.ask(body)
        took_ms = seen()
    return quantile(took_ms[router], 0.99) - quantile(took_ms[direct], 0.99)


def whole_tokenisation(folder: Path) -> Callable[[bytes], float]:
    """Return a function of a chat's body: milliseconds to render and tokenise it as a whole, alone."""
    local = load(TokenizerSource(path=str(folder)), "bench", SystemClock().wall)
    options = ReadOptions(strip_fields=frozenset(), inject_usage=False)

    def took_ms(body: bytes) -> float:
        source = read_prompt(PATH, "application/json", body, options).source
        assert isinstance(source, Source)
        began = time.perf_counter()
        local.tokenize(source)
        return (time.perf_counter() - began) * 1e3

    return took_ms


ROWS = (Row("cold", "cold prompt of 80,000 tokens", measure, 90, 9),)
