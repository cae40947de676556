"""Fleets of emulated engines with a configuration file, and what the doctor finds in them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from router.clock import Clock, SystemClock
from router.lab.emulator.mooncake_master import MasterOptions, MooncakeMaster
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.server import EmulatedServer
from router.operate.doctor.finding import MergedFinding
from router.operate.doctor.gather import DoctorOptions
from router.operate.doctor.suite import Examination, examine
from tests.fakes.engines import INSTANT, FakeEngine
from tests.paths import TOKENIZER

MODEL = "warm-tiny"
Json = dict[str, Any]


class AheadClock(SystemClock):
    """A wall clock that is wrong by `ahead_s`."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def wall(self) -> float:  # type: ignore[override]
        return SystemClock.wall() + self._ahead_s


class Fleet(NamedTuple):
    """Running engines, and a pool if there is one."""

    engines: list[FakeEngine]
    master: MooncakeMaster | None

    def config(self) -> Json:
        """A configuration of a healthy router in front of them."""
        instances = [
            {"url": engine.url, "name": f"engine-{i}"} | _pair_settings(engine) for i, engine in enumerate(self.engines)
        ]
        config: Json = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "fleet": {"instances": instances},
            "tokenizers": {MODEL: {"path": TOKENIZER}},
        }
        return config if self.master is None else config | {"pool": {"masters": [self.master.url]}}


def _pair_settings(engine: FakeEngine) -> Json:
    options = engine.server.options
    if options.role == "both" or options.transfer is None:
        return {}
    transfer: Json = {"protocol": options.transfer}
    if options.role == "prefill" and options.transfer == "mooncake":
        transfer["bootstrap_url"] = engine.bootstrap_url
    return {"role": options.role, "transfer": transfer, "revision": "1"}


@asynccontextmanager
async def running(*engines: Json, pool: bool = False, clocks: Sequence[Clock] = ()) -> AsyncIterator[Fleet]:
    """A fleet of emulated engines with these options, two by default; `clocks` of the first ones."""
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(MooncakeMaster(MasterOptions())) if pool else None
        shared = {} if master is None else {"pool_url": master.url}
        fakes = []
        for i, options in enumerate(engines or ({}, {})):
            clock = clocks[i] if i < len(clocks) else SystemClock()
            server = EmulatedServer(EngineOptions(**(INSTANT | shared | {"seed": i} | options)), clock)
            fakes.append(FakeEngine(await stack.enter_async_context(server)))
        yield Fleet(fakes, master)


def write(file: Path, config: Json, text: str | None = None) -> None:
    """Write the configuration, without YAML's anchors."""
    file.write_text(text if text is not None else yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False))


async def examined(file: Path, config: Json, text: str | None = None, **options: Any) -> Examination:
    """What the doctor finds in a configuration file."""
    write(file, config, text)
    return await examine(DoctorOptions(file, **options), SystemClock())


def of_check(examination: Examination, check: str) -> list[MergedFinding]:
    """The findings of one check."""
    return [one for one in examination.findings if one.finding.check == check]


def alarms(examination: Examination) -> list[str]:
    """Everything but notes, as text."""
    return [
        f"{one.finding.severity} {one.finding.check} {one.finding.at} {one.finding.what}"
        for one in examination.findings
        if one.finding.severity != "note"
    ]
