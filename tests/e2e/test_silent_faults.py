"""Engines in front of which the router is ready and hits are lost: it says so, once, some seconds later."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.clock import SystemClock
from router.control import fault_watch
from router.control.fault_watch import SETTLE_S, UNSERVED_S
from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import chats
from tests.e2e.conftest import WARM, Json, Router
from tests.e2e.test_live import feed_of
from tests.fakes.engines import engine, eventually
from tests.paths import TOKENIZER

BLIND = {"scorers": [{"name": "random"}]}
POLICIES = {"warm": WARM, "blind": BLIND}


class LaterClock(SystemClock):
    """The system's clock, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:  # type: ignore[override]
        return SystemClock.now() + self.ahead_s


class Log:
    """What was logged of silent faults since the last look."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self, level: str = "WARNING") -> list[str]:
        found = [
            one.getMessage() for one in self._caplog.records if one.levelname == level and one.getMessage()[-1:] == "]"
        ]
        if level == "WARNING":
            self._caplog.clear()
        return found


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    with caplog.at_level(logging.INFO, "warmroute.members"):
        yield Log(caplog)


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


async def ready(r: Router, count: int = 1) -> None:
    await eventually(lambda: [one.state.value for one in r.core.fleet] == ["ready"] * count)
    await eventually(r.polled)


async def look(r: Router, clock: LaterClock, later_s: float = SETTLE_S) -> None:
    """Let the router judge its engines now, and again some time later."""
    await r.app.core.faults.check()
    clock.ahead_s += later_s
    await r.app.core.faults.check()


async def faults(r: Router) -> dict[str, list[str]]:
    """By instance, as the admin API has them; what no policy needs is in brackets."""
    return {
        id: [one["what"] if one["needed"] else f"({one['what']})" for one in described["silent_faults"]]
        for id, described in (await r.instances()).items()
    }


async def switch(r: Router, policy: str) -> None:
    (await r.admin.post("/admin/activate", json={"policy": policy})).raise_for_status()


async def test_engines_without_caches_or_events(router: Any, clock: LaterClock, log: Log) -> None:
    on_purpose = {"kv_events": "off", "name": "on-purpose"}
    async with (
        engine() as well,
        engine(prefix_caching=False) as cold,
        engine(events=False) as quiet,
        engine(events=False) as off,
        router([well, cold, quiet, on_purpose | {"url": off.url}], clock=clock, policies=POLICIES, wait=False) as r,
    ):
        await ready(r, 4)
        await look(r, clock, SETTLE_S - 1)
        assert log.take() == []
        assert not any((await faults(r)).values())
        await look(r, clock, 1)
        first, second = log.take()
        assert first == (
            f"instance {cold.address}: prefix caching is off: no request can hit a cache there; "
            "change: engine: --enable-prefix-caching [engines.prefix_caching]"
        )
        assert second.startswith(f"instance {quiet.address}: KV events are off: the router guesses from ")
        await look(r, clock)
        assert log.take() == []
        shown = {cold.address: ["prefix caching is off"], quiet.address: ["KV events are off"]}
        assert await faults(r) == {well.address: [], "on-purpose": []} | shown
        listed = (await r.instances())[cold.address]["silent_faults"]
        async with feed_of(r) as feed:
            await feed.until(lambda: feed.targets)
            assert feed.targets[f"{cold.address}/0"]["silent_faults"] == listed
            await switch(r, "blind")
            await feed.until(lambda: not feed.targets[f"{cold.address}/0"]["silent_faults"][0]["needed"])
        assert (await faults(r))[quiet.address] == ["(KV events are off)"]


async def test_a_router_looks_by_itself(
    router: Any, clock: LaterClock, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_watch, "CHECK_S", 0.01)
    found: list[str] = []

    def seen_later() -> list[str]:
        clock.ahead_s += 0.5
        found.extend(log.take())
        return found

    async with engine(events=False) as quiet, router([quiet], clock=clock, wait=False) as r:
        await ready(r)
        await eventually(seen_later)
        assert found[0].startswith(f"instance {quiet.address}: KV events are off: ")


async def test_a_policy_that_reads_no_caches_needs_no_warning_until_another_does(
    router: Any, clock: LaterClock, log: Log
) -> None:
    async with (
        engine(events=False) as quiet,
        router([quiet], clock=clock, policies=POLICIES, active="blind", wait=False) as r,
    ):
        await ready(r)
        await look(r, clock)
        assert log.take() == []
        assert await faults(r) == {quiet.address: ["(KV events are off)"]}
        for policy in ("warm", "blind", "warm"):
            await switch(r, policy)
            await look(r, clock)
        assert [line.partition(": the router")[0] for line in log.take()] == [
            f"instance {quiet.address}: KV events are off"
        ]


async def test_a_port_at_which_a_publisher_comes_later(router: Any, clock: LaterClock, log: Log) -> None:
    port, other = free_ports(2)
    ranks = [{"rank": rank, "endpoint": f"tcp://127.0.0.1:{at}"} for rank, at in enumerate((port, other))]
    async with engine(events=False, ranks=2) as one:
        fleet = [{"url": one.url, "name": "one", "kv_events": ranks}]
        async with router(fleet, clock=clock, wait=False) as r:
            await ready(r)
            await look(r, clock)
            (line,) = log.take()
            both = ", ".join(sorted(source["endpoint"] for source in ranks))
            assert line.startswith(f"instance one: no publisher answers at {both}: ")
            assert line.endswith("or write where it publishes: kv_events: [{endpoint: ...}] [events.reachable]")
            async with engine(events_port=port), engine(events_port=other):
                heard = [r.core.indexer.sequencer(f"one/{rank}") for rank in range(2)]
                await eventually(lambda: all(stream.last_heard_s is not None for stream in heard))
                await look(r, clock)
            assert await faults(r) == {"one": []}
            assert log.take("INFO") == [f"instance one: mended: no publisher answers at {both} [events.reachable]"]
            assert log.take() == []


async def test_a_stream_on_which_nothing_comes(router: Any, clock: LaterClock, log: Log) -> None:
    async with engine() as one, router([one], clock=clock) as r:
        one.faults(drop_events=1.0)
        await look(r, clock)
        assert log.take() == [], "it had no request yet"
        for talk in chats(r, "talk", 4):
            clock.ahead_s += 1.0
            assert (await talk.turn(max_tokens=40)).ok
        await look(r, clock)
        await look(r, clock)
        endpoint = one.sources()["0"]["endpoint"]
        (line,) = [line for line in log.take() if "[events." in line]
        assert line.startswith(f"instance {one.address}: a prompt was computed, and no event came from {endpoint}: ")
        one.faults(drop_events=0.0)
        assert (await talk.turn(max_tokens=40)).ok
        await eventually(lambda: r.core.indexer.sequencer(f"{one.address}/0").events)
        await look(r, clock)
        assert await faults(r) == {one.address: []}
        assert [line.split(": ")[1] for line in log.take("INFO")] == ["mended"]


@pytest.mark.parametrize("discovers", [False, True])
async def test_a_tokenizer_for_a_model_that_nobody_serves(
    router: Any, clock: LaterClock, log: Log, tmp_path: Path, discovers: bool
) -> None:
    """Where engines are discovered, those of another model may still be loading."""
    tokenizers = {name: {"path": TOKENIZER} for name in ("warm-tiny", "warm-tini")}
    async with engine() as one:
        file = tmp_path / "engines.yaml"
        file.write_text(json.dumps([{"url": one.url}]))
        fleet: Json = {"instances": [], "file": str(file), "file_poll_s": 0.02} if discovers else {}
        async with router([] if discovers else [one], clock=clock, fleet=fleet, tokenizers=tokenizers, wait=False) as r:
            await ready(r)
            await look(r, clock)
            await look(r, clock, 1)
            if discovers:
                assert log.take() == []
                await look(r, clock, UNSERVED_S)
            await look(r, clock)
            (line,) = log.take()
            assert line.startswith("the fleet: tokenizers has warm-tini, which is a model that no engine serves: ")
            assert line.endswith("[tokens.models]")
            listed = (await r.admin.get("/admin/instances")).json()["silent_faults"]
            assert [(fault["check"], fault["needed"]) for fault in listed] == [("tokens.models", True)]
            async with feed_of(r) as feed:
                await feed.until(lambda: feed.router)
                assert feed.router["silent_faults"] == listed
