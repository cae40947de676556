"""Every fault that the doctor knows, planted in a fleet of emulated engines, and named with the line to change.

`FAULTS` is the list. The silent ones are those of which no request fails and nothing is logged: hits are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest

from router.testbed.doctor.finding import MergedFinding
from tests.paths import TOKENIZER
from tests.router.testbed.doctor.balancer import Balancer
from tests.router.testbed.doctor.conftest import (
    AheadClock,
    Fleet,
    Json,
    alarms,
    examined,
    of_check,
    running,
)

pytestmark = pytest.mark.doctor

LONGEST_S = 30.0
Plant = Callable[[Json, Fleet], Any]


class Fault(NamedTuple):
    """A fault, how it is planted, and what must be named."""

    check: str
    at: tuple[str, ...]  # engines
    says: str  # part of what was found
    change: str  # part of the change
    engines: tuple[Json, ...] = ({}, {})
    config: Plant | None = None  # changes the configuration, or the running fleet
    line: str | None = None  # part of the configuration's line to change; None: an engine's command line
    pool: bool = False
    clocks: tuple[AheadClock, ...] = ()
    silent: bool = False


def instance(config: Json, i: int, **keys: Any) -> None:
    config["fleet"]["instances"][i] |= keys


def sources(fleet: Fleet, i: int, **changes: Any) -> list[Json]:
    """The event sources of an engine as they stand in a configuration."""
    return [
        {"rank": int(rank), "endpoint": each["endpoint"], "replay_endpoint": each["replay_endpoint"]} | changes
        for rank, each in fleet.engines[i].sources().items()
    ]


ONE, BOTH = ("engine-1",), ("engine-0", "engine-1")
FAULTS: dict[str, Fault] = {
    # engines
    "nobody listens": Fault(
        "engines.reachable", ONE, "cannot be connected to at port 1", "url: http://HOST:PORT",
        config=lambda config, _: instance(config, 1, url="http://127.0.0.1:1"), line="url: http://127.0.0.1:1",
    ),
    "an API key is missing": Fault(
        "engines.reachable", ONE, "refuses requests without an API key", "api_key_env: NAME",
        engines=({}, {"api_key": "secret"}), line="url: ",
    ),
    "the engine core has died": Fault(
        "engines.reachable", ONE, "GET /health: 503", "restart it",
        config=lambda _, fleet: fleet.engines[1].faults(unhealthy=True), line="url: ",
    ),
    "the engine hangs": Fault(
        "engines.reachable", ONE, "does not answer in time", "hangs",
        config=lambda _, fleet: fleet.engines[1].faults(freeze=True), line="url: ",
    ),
    "one engine twice": Fault(
        "engines.one_each", ONE, "is the same engine as engine-0", "remove this entry",
        config=lambda config, fleet: instance(config, 1, url=fleet.engines[0].url.replace("127.0.0.1", "localhost")),
        line="url: http://localhost", silent=True,
    ),
    "two names for one model": Fault(
        "engines.models", ("engine-2",), "is served under different names", "--served-model-name warm-tiny",
        engines=({"tokenizer": "TOKENIZER"}, {"tokenizer": "TOKENIZER"}, {"tokenizer": "TOKENIZER", "model": "tiny"}),
        silent=True,
    ),
    "two models under one name": Fault(
        "engines.models", ("engine-2",), "different models are served as warm-tiny", "--served-model-name",
        engines=({}, {}, {"tokenizer": "TOKENIZER"}), silent=True,
    ),
    "prefix caching is off": Fault(
        "engines.prefix_caching", ONE, "prefix caching is off", "--enable-prefix-caching",
        engines=({}, {"prefix_caching": False}), silent=True,
    ),
    "cached tokens are not reported": Fault(
        "engines.prompt_token_details", ONE, "does not report cached tokens", "--enable-prompt-tokens-details",
        engines=({}, {"cached_tokens": False}), silent=True,
    ),
    "two versions": Fault(
        "engines.versions", ("engine-2",), "0.30.1 and 0.32.0", "one version",
        engines=({}, {}, {"version": "0.30.1"}),
    ),
    "two block sizes": Fault(
        "engines.blocks", ("engine-2",), "16 and 32 tokens", "--block-size 16",
        engines=({}, {}, {"block_tokens": 32}), silent=True,
    ),
    # events
    "events are off": Fault(
        "events.on", ONE, "KV events are off", "--kv-events-config", engines=({}, {"events": False}), silent=True
    ),
    "vLLM connects instead of binding": Fault(
        "events.address", ONE, '"tcp://0.0.0.0:15557": vLLM connects', '"tcp://*:15557"',
        engines=({}, {"events_endpoint": "tcp://0.0.0.0:15557"}), silent=True,
    ),
    "nobody publishes at the endpoint": Fault(
        "events.reachable", ONE, "no publisher answers at tcp://127.0.0.1:1", "kv_events",
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1, endpoint="tcp://127.0.0.1:1")),
        line="kv_events:", silent=True,
    ),
    "events of two engines are swapped": Fault(
        "events.arriving", ("engine-0",), "published where those of engine-1 are expected", "endpoint: tcp://127.0.0.1:",
        config=lambda config, fleet: [
            instance(config, 0, kv_events=sources(fleet, 1)), instance(config, 1, kv_events=sources(fleet, 0))
        ],
        line="endpoint: ", silent=True,
    ),
    "events are lost on the way": Fault(
        "events.arriving", ONE, "no event came from", "--kv-events-config",
        config=lambda _, fleet: fleet.engines[1].faults(drop_events=1.0), line="url: ", silent=True,
    ),
    "another topic": Fault(
        "events.arriving", ONE, "with topic 'kv'", 'topic: ""',
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1, topic="kv")),
        line="topic: kv", silent=True,
    ),
    "a rank has no stream": Fault(
        "events.ranks", ONE, "rank 1 has no event stream", "kv_events: add {rank: 1, endpoint: ",
        engines=({}, {"ranks": 2}),
        config=lambda config, fleet: instance(config, 1, kv_events=sources(fleet, 1)[:1]),
        line="kv_events:", silent=True,
    ),
    "no replay": Fault(
        "events.replay", ONE, "cannot be replayed", '"replay_endpoint": "tcp://*:5657"',
        engines=({}, {"replay": False}), silent=True,
    ),
    "replay requests are not answered": Fault(
        "events.replay", ONE, "are not answered", "open that port",
        config=lambda _, fleet: fleet.engines[1].faults(silent_replays=True), line="url: ", silent=True,
    ),
    "a wrong clock": Fault(
        "events.clocks", ("engine-0",), "90 s ahead of", "chrony", clocks=(AheadClock(90.0),), silent=True
    ),
}  # fmt: skip


def in_file(found: MergedFinding, file: Path) -> str:
    """The lines that a finding names, as they stand in the file."""
    lines = file.read_text().splitlines()
    return "\n".join(lines[place.line - 1] for place in found.places)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    fault, file = FAULTS[name], tmp_path / "main.yaml"
    engines = [copied(options, tmp_path) for options in fault.engines]
    async with running(*engines, pool=fault.pool, clocks=fault.clocks) as fleet:
        config = fleet.config()
        if fault.config is not None:
            fault.config(config, fleet)
        examination = await examined(file, config)
    assert examination.took_s < LONGEST_S
    found = of_check(examination, fault.check)
    assert [one.finding.at for one in found if fault.says in one.finding.what] == [fault.at], alarms(examination)
    assert {one.finding.check for one in examination.findings} == {fault.check}, "something else is blamed, too"
    (one,) = [one for one in found if fault.says in one.finding.what]
    assert fault.change in one.finding.change
    assert bool(one.places) == (fault.line is not None)
    assert fault.line is None or fault.line in in_file(one, file)


async def test_several_engines_behind_one_address(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running({}, {}, {}))
        balancer = await stack.enter_async_context(Balancer([one.server.port for one in fleet.engines[1:]]))
        config = fleet.config()
        url = balancer.url
        config["fleet"]["instances"][1:] = [{"url": url, "name": "engine-1"}]
        examination = await examined(tmp_path / "main.yaml", config)
    (found,) = of_check(examination, "engines.one_each")
    assert found.finding.at == ("engine-1",)
    assert url in in_file(found, tmp_path / "main.yaml")


def copied(options: Json, folder: Path) -> Json:
    """The options, with a copy of the model's folder for TOKENIZER."""
    if options.get("tokenizer") != "TOKENIZER":
        return options
    return options | {"tokenizer": str(copytree(TOKENIZER, folder / "model", dirs_exist_ok=True))}
