"""A fleet in the command line's words, which name a table, a chart and a cell, and the scenario that follows from them.

A pool's or a memory's size may be left unsaid and then grows with the fleet, so fleets of several sizes have the same
words for it: that is what lets a chart draw hits over the fleet's size.
"""

from __future__ import annotations

from typing import NamedTuple

from router.config.sections.admission import AdmissionConfig
from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import EventLags, LinkSpeed, Scenario, StoreScenario, Trouble
from router.testbed.sweep import option_values
from router.testbed.sweep.option_values import OFF

SHARE = 4  # a pool or memory whose size is not said holds so many times what the GPUs over it hold


class FleetOption(NamedTuple):
    """Cells that say the same here are compared. `pool`, `host_memory`, `trouble`: as their options have it."""

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
        """All but its size. Of what is there only if asked for, only what is."""
        said = [
            f"{self.prefills} of them prefill" if self.prefills else "",
            _named("pool", self.pool) or "no pool",
            _named("host memory", self.host_memory),
            "admission" if self.admission else "",
            f"{self.routers} routers" if self.routers > 1 else "",
            "" if self.trouble == OFF else f"trouble {self.trouble}",
        ]
        return ", ".join(part for part in said if part)

    def scenario(self, profile: EngineProfile, lags: EventLags, trouble: Trouble) -> Scenario:
        """`trouble`: what its name means. Raises ConfigError."""
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
    kept = option_values.parse_memory(option, text)
    if kept is None:
        return None
    return StoreScenario(SHARE * gpu_tokens if kept.tokens is None else kept.tokens, LinkSpeed(kept.tokens_per_s))


def _named(what: str, text: str) -> str:
    kept = option_values.parse_memory(what, text)
    if kept is None:
        return ""
    room = "" if kept.tokens is None else f" of {kept.tokens:,} tokens"
    return f"{what}{room} at {kept.tokens_per_s:,.0f} tokens/s"
