"""LoRA adapters over three processes: one of them loads and unloads for all, and none that a request wants goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from router.backends.fetch import ANSWER_BYTES, HttpAnswer
from router.backends.vllm.lora import LOAD, UNLOAD
from router.clock import ManualClock
from router.config.schema import AdapterConfig, AdapterLoadingConfig, Config, InstanceConfig
from router.control.peers.parts import Message
from router.errors import NoTarget
from router.features.adapters import peers as adapter_peers
from router.features.adapters.loading import AdapterLoader
from router.features.adapters.peers import (
    AdapterLoadEnded,
    AdapterUseQuery,
    AdapterWanted,
    AdapterWithdrawal,
    SharedAdapters,
)
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.router.request.requests import a_request
from tests.router.request.some_services import some_services

ADAPTERS = {name: AdapterConfig(path=f"/{name}", base="llama") for name in ("poet", "sql", "law")}
RETRY_S = 10.0


class Engines:
    """What engines have loaded, and what processes posted to them."""

    def __init__(self, *names: str) -> None:
        self.loaded: dict[str, list[str]] = {name: [] for name in names}
        self.posted: list[tuple[str, str, str, str]] = []  # run, instance, path, adapter
        self.refused: set[str] = set()  # paths that are answered with 500
        self.running = asyncio.Event()  # else posts wait
        self.running.set()

    def did(self, path: str) -> list[str]:
        return [adapter for _, _, posted, adapter in self.posted if posted == path]


class Process:
    """A process with a request path of `use`, and nothing else."""

    def __init__(self, run: str, world: World) -> None:
        self.run, self.engines = run, world.engines
        loading = AdapterLoadingConfig(max_loaded=world.max_loaded, wait_s=PATIENCE_S, retry_s=RETRY_S)
        config = Config(adapters=dict(ADAPTERS), adapter_loading=loading)
        self.fleet = Fleet(config.fleet)
        for name in world.engines.loaded:
            self.fleet.join(InstanceConfig(name=name, url=f"http://{name}:1"))
            self.fleet.mark_ready(name, [ModelCard("llama", None, None, None)], [0])
        self.tasks = Tasks(run)
        self.loader = AdapterLoader(config, self.fleet, self.fetch, self.tasks, world.clock)
        peers = world.network.join(run)
        self.shared = SharedAdapters(self.loader, peers)
        peers.parts.append(self.shared)
        world.network.meet(run)
        self.shared.start(self.tasks)
        self.shared.poll()

    async def fetch(
        self,
        instance: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = ANSWER_BYTES,
        rank: int | None = None,
    ) -> HttpAnswer | None:
        adapter = msgspec.json.decode(body)["lora_name"]
        self.engines.posted.append((self.run, instance, path, adapter))
        await self.engines.running.wait()
        if path in self.engines.refused:
            return HttpAnswer(500, b"no memory")
        loaded = self.engines.loaded[instance]
        if path == LOAD:
            loaded.append(adapter)
        else:
            loaded.remove(adapter)
        return HttpAnswer(200, b"")

    def chosen(self, adapter: str) -> list[str]:
        """Return the instances that this process chooses for an adapter."""
        return [target.instance.id for target in self.fleet.targets_serving(adapter)]

    @asynccontextmanager
    async def use(self, adapter: str) -> AsyncIterator[None]:
        """A request that uses an adapter, from its stage to its end."""
        request = a_request(model=adapter)
        try:
            wait = self.loader.enter(request, some_services())
            assert wait is not None
            await wait
            yield
        finally:
            request.release()

    async def request(self, adapter: str) -> None:
        async with self.use(adapter):
            pass

    def begin(self, adapter: str) -> asyncio.Task[None]:
        return self.tasks.spawn(f"request for {adapter}", self.request(adapter))


class World:
    """Three processes in front of the same engines. `load` is the one that loads adapters."""

    def __init__(self, *engines: str, max_loaded: int = 4) -> None:
        self.engines, self.max_loaded = Engines(*engines), max_loaded
        self.clock = ManualClock(100.0)
        self.network = MemoryNetwork()
        self.processes = [Process(run, self) for run in ("p1", "p2", "p3")]
        self.network.sent.clear()
        owner = self.processes[0].shared.find_owner("poet")
        (self.owner,) = (one for one in self.processes if one.run == owner)
        self.others = [one for one in self.processes if one is not self.owner]

    def sent(self, kind: type[Message]) -> list[Message]:
        return [message for _, _, message in self.network.sent if isinstance(message, kind)]


@asynccontextmanager
async def three(*engines: str, max_loaded: int = 4) -> AsyncIterator[World]:
    world = World(*engines, max_loaded=max_loaded)
    try:
        yield world
    finally:
        for process in world.processes:
            await process.tasks.close()


async def until_posted(world: World, count: int) -> None:
    await eventually(lambda: len(world.engines.posted) == count)


async def test_it_is_loaded_once_for_all_that_want_it_and_all_choose_it() -> None:
    async with three("a", "b") as world:
        await asyncio.gather(*(one.request("poet") for one in world.processes * 3))
        assert [post[0] for post in world.engines.posted] == [world.owner.run]
        (place,) = (name for name, loaded in world.engines.loaded.items() if loaded == ["poet"])
        assert [one.chosen("poet") for one in world.processes] == [[place]] * 3
        assert len(world.sent(AdapterWanted)) == 2, "a query by each other process"


async def test_processes_that_did_not_ask_choose_it_too_and_requests_for_it_send_nothing() -> None:
    async with three("a") as world:
        await world.others[0].request("poet")
        assert [one.chosen("poet") for one in world.processes] == [["a"]] * 3
        world.network.sent.clear()
        for one in world.processes:
            await one.request("poet")
        assert world.network.sent == []


async def test_one_that_any_process_uses_stays() -> None:
    async with three("a", max_loaded=2) as world:
        first, second = world.others
        async with first.use("poet"):
            await second.request("sql")
            await world.owner.request("law")
            assert world.engines.loaded["a"] == ["poet", "law"], "though poet was asked for first"
            world.clock.advance(1.0)
            async with second.use("law"):
                with pytest.raises(NoTarget):
                    await world.owner.request("sql")
        world.clock.advance(RETRY_S)
        await second.request("sql")
        assert world.engines.loaded["a"] == ["law", "sql"]


async def test_the_coldest_is_that_of_all_processes() -> None:
    async with three("a", max_loaded=2) as world:
        first, second = world.others
        for process, adapter in ((first, "poet"), (world.owner, "sql"), (second, "poet")):
            world.clock.advance(1.0)
            await process.request(adapter)
        await first.request("law")
        assert world.engines.did(UNLOAD) == ["sql"]


async def test_none_chooses_it_when_it_is_unloaded() -> None:
    async with three("a", max_loaded=1) as world:
        await world.owner.request("poet")
        world.engines.running.clear()
        request = world.others[0].begin("sql")
        await until_posted(world, 2)
        assert world.engines.did(UNLOAD) == ["poet"]
        assert [one.chosen("poet") for one in world.processes] == [[]] * 3
        world.engines.running.set()
        await request


async def test_one_that_is_not_unloaded_is_chosen_again_by_all() -> None:
    async with three("a", max_loaded=1) as world:
        await world.owner.request("poet")
        world.engines.refused.add(UNLOAD)
        with pytest.raises(NoTarget):
            await world.others[0].request("sql")
        assert [one.chosen("poet") for one in world.processes] == [["a"]] * 3


async def test_a_request_that_comes_when_it_is_to_be_unloaded_keeps_it() -> None:
    async with three("a", max_loaded=2) as world:
        first, second = world.others
        await first.request("poet")
        world.clock.advance(1.0)
        await first.request("sql")
        apply = first.shared.apply
        held = first.use("poet")
        chosen: list[str] = []

        def begin_before(message: Message, run: str) -> None:
            if not isinstance(message, AdapterWithdrawal) or message.adapter != "poet":
                apply(message, run)
                return
            with pytest.raises(StopIteration):  # it begins without a wait
                held.__aenter__().__await__().send(None)
            apply(message, run)
            chosen.extend(first.chosen("poet"))

        first.shared.apply = begin_before  # type: ignore[method-assign]
        await second.request("law")
        assert world.engines.did(UNLOAD) == ["sql"]
        assert chosen == ["a"], "where that request is about to go"
        assert [one.chosen("poet") for one in world.processes] == [["a"]] * 3
        await held.__aexit__(None, None, None)


async def test_when_the_process_that_loads_ends_those_that_wait_query_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_peers, "AGAIN_S", 0.01)
    async with three("a") as world:
        world.engines.running.clear()
        requests = [one.begin("poet") for one in world.others]
        await until_posted(world, 1)
        world.network.end(world.owner.run)
        await world.owner.tasks.close()
        await until_posted(world, 2)
        world.engines.running.set()
        await asyncio.gather(*requests)
        assert len({post[0] for post in world.engines.posted}) == len(world.engines.posted) == 2
        assert [one.chosen("poet") for one in world.others] == [["a"]] * 2


async def test_a_failed_loading_is_reported_to_all_that_wait_and_not_tried_again_at_once() -> None:
    async with three("a") as world:
        world.engines.refused.add(LOAD)
        for one in (*world.others, *world.others, world.owner):
            with pytest.raises(NoTarget):
                await one.request("poet")
        assert world.engines.did(LOAD) == ["poet"]
        assert len(world.sent(AdapterWanted)) == 2, "each process remembers the failure"
        ended = AdapterLoadEnded("poet", None, "instance a: 500 no memory")
        assert world.sent(AdapterLoadEnded) == [ended, ended]
        world.engines.refused.clear()
        world.clock.advance(RETRY_S)
        await world.others[0].request("poet")


async def test_what_a_silent_process_wanted_counts_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_peers, "REPLY_S", 2 * PATIENCE_S)
    async with three("a", max_loaded=1) as world:
        silent, other = world.others
        async with silent.use("poet"):
            world.network.mute.add(silent.run)
            request = other.begin("sql")
            await eventually(lambda: world.sent(AdapterUseQuery))
            assert world.engines.did(UNLOAD) == []
            world.network.end(silent.run)
            async with asyncio.timeout(PATIENCE_S):
                await request
            assert world.engines.did(UNLOAD) == ["poet"]


async def test_without_a_reply_nothing_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_peers, "REPLY_S", 0.01)
    async with three("a", max_loaded=1) as world:
        await world.owner.request("poet")
        world.network.mute.add(world.others[0].run)
        with pytest.raises(NoTarget):
            await world.others[1].request("sql")
        assert world.engines.did(UNLOAD) == []


async def test_a_process_without_ready_instances_loads_for_nobody() -> None:
    async with three("a") as world:
        world.owner.fleet.drain("a")
        world.owner.shared.poll()
        await world.others[0].request("poet")
        (post,) = world.engines.posted
        assert post[0] != world.owner.run
        assert world.owner.chosen("poet") == ["a"], "once it is ready there"


async def test_a_process_that_does_not_know_the_adapter_does_not_load_it() -> None:
    async with three("a") as world:
        del world.owner.loader.adapters["poet"]  # as while its configuration is rolled out
        world.owner.shared.poll()
        await world.others[0].request("poet")
        assert [one.chosen("poet") for one in world.others] == [["a"]] * 2
        assert world.owner.run not in {post[0] for post in world.engines.posted}


async def test_a_card_that_was_lost_is_there_again_with_the_next_request() -> None:
    """As by a health check that read the engine's list before the loading had ended."""
    async with three("a") as world:
        await world.owner.request("poet")
        world.others[0].loader.set_loaded("a", "poet", False)
        await world.others[0].request("poet")
        assert world.engines.did(LOAD) == ["poet"]


async def test_a_query_to_another_than_the_owner_is_passed_on() -> None:
    async with three("a") as world:
        first, second = world.others
        world.network.members[first.run].send_to(second.run, AdapterWanted("poet"))
        reply = second.run, first.run, AdapterLoadEnded("poet", "a")
        await eventually(lambda: reply in world.network.sent)
        assert [post[0] for post in world.engines.posted] == [world.owner.run]
