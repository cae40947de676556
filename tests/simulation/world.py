"""One simulated world: routers, engines, clients and faults of one seed, and what must hold at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from router.lab.rng import Rng
from tests.paths import TOKENIZER
from tests.simulation.clients import LONGEST_ANSWER, MODEL, PATIENCE_S, TENANT_HEADER, Clients
from tests.simulation.engines import EngineHost
from tests.simulation.faults import DURATION_S, Faults
from tests.simulation.invariants import KEPT_RECORDS, check_answers, check_counters, check_quiet, check_stopped
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import SECRET_ENV, simulated_machine
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.routers import RouterHost

COLLECT_S = 30.0  # between two collections of garbage
QUIET_S = 180.0  # without requests and faults, before anything is checked
SESSIONS = 6
POLICIES: Sequence[dict[str, Any]] = (
    {"scorers": [{"name": "prefix_overlap"}], "picker": {"name": "best"}},
    {"filters": [{"name": "near_longest"}], "scorers": [{"name": "warm"}]},
    {"scorers": [{"name": "least_requests"}]},
    {"scorers": [{"name": "expected_ttft"}]},
)
SECTIONS: Sequence[dict[str, Any]] = (
    {"admission": {"enabled": True}},
    {"preload": {"join": True, "drain": True, "copies": True}},
    {
        "clients": {
            "tenant_header": TENANT_HEADER,
            "tenants": {"limited": {"service_class": "limited"}, "few": {"service_class": "few"}},
            "service_classes": {
                "default": {},
                "limited": {"limits": {"requests_per_minute": 12, "tokens_per_minute": 6_000}},
                "few": {"limits": {"concurrent": 1}},
            },
        }
    },
)
"""Sections of the configuration that are absent by default, each in half of the runs."""
ENGINE = {"answer_tokens": 2 * LONGEST_ANSWER, "blocks": 512, "scale_out": True, "max_num_seqs": 8}


class Violation(NamedTuple):
    """An invariant that does not hold, and the faults before."""

    what: str
    at_s: float
    history: Sequence[tuple[float, str]]


class Run(NamedTuple):
    """The result of one seed. `trace` is equal for equal runs."""

    seed: int
    virtual_s: float
    requests: int
    finished: int
    packets: int
    faults: int
    trace: str
    violations: Sequence[Violation]


class _Errors(logging.Handler):
    """Collects what was logged with a stack trace: failures that no code expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.messages.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class World:
    """The parts of one run. `violations`: what does not hold at its end, in words."""

    def __init__(self, loop: VirtualLoop, seed: int, minutes: float) -> None:
        rng = Rng(seed)
        self._loop = loop
        self._minutes = minutes
        self._settings = Rng(rng.bits())
        self.network = loop.network
        count = 2 + self._settings.below(2)
        self.engines = [EngineHost(self.network, f"engine{n}", seed=n, **ENGINE) for n in range(count)]
        names = [f"router{n}" for n in range(1 + self._settings.below(3))]
        config = self._config(names)
        self.routers = [RouterHost(self.network, name, config) for name in names]
        oracle = Oracle(self.engines[0].options)
        self.clients = Clients([router.name for router in self.routers], oracle, Rng(rng.bits()))
        self.faults = Faults(self.network, self.engines, self.routers, Rng(rng.bits()))
        self.oracle = oracle
        self.violations: list[str] = []

    def _config(self, routers: Sequence[str]) -> dict[str, Any]:
        config: dict[str, Any] = {
            "fleet": {"instances": [{"url": engine.url} for engine in self.engines]},
            "tokenizers": {MODEL: {"path": TOKENIZER}},
            "limits": {"first_byte_timeout_s": 60.0, "idle_timeout_s": 30.0, "grace_s": 10.0},
            "records": {"keep": KEPT_RECORDS},
            "policies": {f"policy{n}": policy for n, policy in enumerate(POLICIES)},
            "active": f"policy{self._settings.below(len(POLICIES))}",
            "replicas": {"peers": [f"{name}:9004" for name in routers], "secret_env": SECRET_ENV},
        }
        for section in SECTIONS:
            if self._settings.happens(0.5):
                config |= section
        return config

    async def live(self) -> None:
        """Play the whole run, and fill `violations`."""
        for engine in self.engines:
            await engine.start()
        for router in self.routers:
            await router.start()
        self.clients.start(SESSIONS)
        self.faults.start()
        until_s = self._loop.time() + 60 * self._minutes
        while self._loop.time() < until_s:
            await asyncio.sleep(min(COLLECT_S, until_s - self._loop.time()))
            gc.collect()
        await self.clients.finish(2 * PATIENCE_S)
        await self.faults.heal()
        for engine in self.engines:
            engine.publish_nothing()
        await asyncio.sleep(QUIET_S)
        self.violations += check_answers(self.clients, self.routers, self.oracle)
        self.violations += check_quiet(self.routers, self.engines)
        for router in self.routers:
            await router.stop()
        for engine in self.engines:
            await engine.crash(silently=False)
        self.violations += check_counters(self.clients, self.routers, self.engines, self.oracle)
        await asyncio.sleep(DURATION_S)
        self.violations += check_stopped(self._loop)


def run_world(seed: int, minutes: float) -> Run:
    """Simulate `minutes` of load and faults, then quiet, and return what came of it."""
    rng, errors = Rng(~seed), _Errors()
    loop = VirtualLoop(Rng(rng.bits()))
    loop.network = Network(loop, Rng(rng.bits()))
    logging.getLogger().addHandler(errors)
    try:
        with simulated_machine(Rng(rng.bits()), loop):
            world = World(loop, seed, minutes)
            loop.run_until_complete(world.live())
    finally:
        logging.getLogger().removeHandler(errors)
        loop.close()
    found = [*world.violations, *errors.messages, *(str(context) for context in loop.trouble)]
    history = world.faults.history
    return Run(
        seed=seed,
        virtual_s=loop.time(),
        requests=len(world.clients.sent),
        finished=sum(sent.reply.finished for sent in world.clients.sent),
        packets=loop.network.packets,
        faults=len(history),
        trace=loop.network.trace.hexdigest(),
        violations=[Violation(what, loop.time(), history[-20:]) for what in found],
    )
