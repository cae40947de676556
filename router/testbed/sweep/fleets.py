"""A fleet in the words of the command line, which name a table, a chart and a cell, and the scenario made from it.

A pool's or a host memory's size may be left out and then grows with the fleet. Fleets of several sizes then have the
same words for it, which lets a chart draw hits over the fleet's size.
"""

from __future__ import annotations

from typing import NamedTuple

from router.config.sections.listeners import AdmissionConfig
from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import EventLags, LinkSpeed, Scenario, StoreScenario, Trouble
from router.testbed.sweep.option_values import OFF, parse_memory

SHARE = 4  # size of a pool or host memory, if not given, as a multiple of the GPU memory that it serves


class FleetOption(NamedTuple):
    """Cells with equal values here are compared. `pool`, `host_memory`, `trouble`: the text of their options."""

    instances: int
    prefills: int = 0
    pool: str = OFF
    host_memory: str = OFF
    admission: bool = False
    routers: int = 1
    trouble: str = OFF

    def __str__(self) -> str:
        return f"{self.instances:,} instance{'' if self.instances == 1 else 's'}, {self.beside}"

    @property
    def beside(self) -> str:
        """Description without the size; options that are off are left out, except for the pool."""
        parts = [
            f"{self.prefills} of them prefill" if self.prefills else "",
            _describe("pool", self.pool) or "no pool",
            _describe("host memory", self.host_memory),
            "admission" if self.admission else "",
            f"{self.routers} routers" if self.routers > 1 else "",
            "" if self.trouble == OFF else f"trouble {self.trouble}",
        ]
        return ", ".join(part for part in parts if part)

    def scenario(self, profile: EngineProfile, lags: EventLags, trouble: Trouble) -> Scenario:
        """Return the scenario; `trouble` is the value that its name stands for. Raises ConfigError."""
        return Scenario(
            profile=profile,
            instances=self.instances,
            store=_store("--pool", self.pool, self.instances * profile.kv_tokens),
            host=_store("--host-memory", self.host_memory, profile.kv_tokens),
            lags=lags,
            trouble=trouble,
            routers=self.routers,
            prefills=self.prefills,
            admission=AdmissionConfig(enabled=True) if self.admission else None,
        )


def _store(option: str, text: str, gpu_tokens: int) -> StoreScenario | None:
    memory = parse_memory(option, text)
    if memory is None:
        return None
    tokens = SHARE * gpu_tokens if memory.tokens is None else memory.tokens
    return StoreScenario(tokens, LinkSpeed(memory.tokens_per_s))


def _describe(what: str, text: str) -> str:
    memory = parse_memory(what, text)
    if memory is None:
        return ""
    size = "" if memory.tokens is None else f" of {memory.tokens:,} tokens"
    return f"{what}{size} at {memory.tokens_per_s:,.0f} tokens/s"
