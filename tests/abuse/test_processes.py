"""Processes that are killed, disks that are full, clocks that jump, engines that are listed twice: who notices what."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from router.clock import SystemClock
from router.fleet.instance import InstanceState
from router.kvcache.snapshots import load
from tests.e2e.chats import PATH, Chat, chats, crowd
from tests.e2e.conftest import Json, RouterProcess
from tests.e2e.workers import Clients, alive, all_up, nothing_under_way, say
from tests.fakes.engines import FakeEngine, engine, eventually

SLOW = {"decode_ms_per_token": 20}
LONG = {"ignore_eos": True, "max_tokens": 40}
DAY_S = 86_400.0


async def until(condition, within_s: float = 10.0) -> None:
    """`condition` is asked over HTTP: not more often than it costs."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# workers


@pytest.mark.abuse
async def test_of_a_killed_worker_only_its_own_requests_fail(router_process, fleet_config, measured) -> None:
    """A stream at each of three workers, one of which is killed; twice, and each time another comes."""
    async with engine(**SLOW) as a, engine(**SLOW) as b, router_process(fleet_config([a, b], workers=3)) as r:
        found = await all_up(r)
        before = descriptors(r.pid)
        lost = 0
        for _ in range(2):
            victim = found[1]
            async with Clients(r) as clients:
                talks = [asyncio.create_task(say(client, "go on", **LONG)) for client in clients.by_run.values()]
                await until(lambda: booked(r, 3))
                os.kill(victim["pid"], signal.SIGKILL)
                ends = await asyncio.gather(*talks, return_exceptions=True)
            ends_by_run = dict(zip(clients.by_run, ends, strict=True))
            assert isinstance(ends_by_run.pop(victim["run"]), httpx.TransportError)
            lost += sum(isinstance(end, BaseException) or not end.ok for end in ends_by_run.values())
            found = await all_up(r, but=[victim["pid"]])
        await until(lambda: nothing_under_way(r))
        left = descriptors(r.pid) - before
        measured("requests of other workers that a killed worker took along", lost, 0, "requests")
        measured("descriptors that two killed workers left in the supervisor", left, 4, "descriptors")
        await eventually(lambda: a.gauges().running + b.gauges().running == 0)


async def booked(router: RouterProcess, requests: int) -> bool:
    return await router.metric("warmroute_target_requests") == requests


@pytest.mark.abuse
async def test_a_new_router_takes_the_port_while_the_last_workers_of_the_killed_one_finish(
    router_process, fleet_config
) -> None:
    """The supervisor is killed: a service manager starts the router again, at once."""
    async with engine(**SLOW) as a:
        config = fleet_config([a], workers=2)
        async with router_process(config) as r:
            found = await all_up(r)
            port = int(r.url.rpartition(":")[2])
            async with Clients(r) as clients:
                task = asyncio.create_task(say(clients.each[0], "go on", **LONG))
                await until(lambda: booked(r, 1))
                r.process.kill()
                await eventually(lambda: r.log.count(b"the channel to the supervisor closed") == 2)
                async with router_process(config | {"listen": config["listen"] | {"port": port}}) as again:
                    assert (await Chat(again, "hello").turn()).ok
                    assert (await task).ok
                    await eventually(lambda: not any(alive(one["pid"]) for one in found))
                    assert len(await all_up(again)) == 2


@pytest.mark.abuse
async def test_supervisor_and_worker_killed_together_leave_nothing(router_process, fleet_config) -> None:
    async with engine(**SLOW) as a, router_process(fleet_config([a], workers=2)) as r:
        found = await all_up(r)
        victim = found[0]
        async with Clients(r) as clients:
            tasks = {run: asyncio.create_task(say(client, "go on", **LONG)) for run, client in clients.by_run.items()}
            await until(lambda: booked(r, 2))
            r.process.kill()
            os.kill(victim["pid"], signal.SIGKILL)
            ends = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
        assert isinstance(ends.pop(victim["run"]), httpx.TransportError)
        assert all(end.ok for end in ends.values())
        await eventually(lambda: not any(alive(one["pid"]) for one in found))
        await eventually(lambda: a.gauges().running == 0)


# SIGHUP


@pytest.mark.abuse
async def test_sighup_ends_nobody_and_applies_the_files(router_process, fleet_config, tmp_path) -> None:
    async with engine(**SLOW) as a:
        config = fleet_config([a], workers=2, watch=False)
        async with router_process(config) as r:
            found = await all_up(r)
            async with Clients(r) as clients:
                tasks = [asyncio.create_task(say(client, "go on", **LONG)) for client in clients.each]
                await until(lambda: booked(r, 2))
                changed = json.loads((tmp_path / "router.yaml").read_text())
                changed["policies"]["other"] = {"scorers": [{"name": "least_requests"}]}
                (tmp_path / "router.yaml").write_text(json.dumps(changed | {"active": "other"}))
                for pid in (r.pid, *(one["pid"] for one in found)):
                    os.kill(pid, signal.SIGHUP)
                assert all([(await task).ok for task in tasks])
            await until(lambda: in_force(r, "other"))
            assert [one["pid"] for one in await all_up(r)] == [one["pid"] for one in found]


async def in_force(router: RouterProcess, policy: str) -> bool:
    return await router.metric("warmroute_policy_in_force", policy=policy) == 1


# snapshots


def snapshotting(fleet_config: Callable[..., Json], fakes: Sequence[FakeEngine], file: Path, every_s: float) -> Json:
    named = [{"name": f"e{number}", "url": fake.url} for number, fake in enumerate(fakes)]
    return fleet_config(named, index={"snapshot_file": str(file), "snapshot_every_s": every_s})


@pytest.mark.abuse
async def test_a_router_killed_while_it_writes_leaves_the_last_snapshot(router_process, fleet_config, tmp_path) -> None:
    """Four times, under load, always writing: each start reads a whole snapshot, and removes what was begun."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    file = folder / "index"
    async with engine(blocks=20_000) as a, engine(blocks=20_000) as b:
        config = snapshotting(fleet_config, [a, b], file, 0.001)
        for n in range(4):
            async with router_process(config) as r:
                assert [path.name for path in folder.iterdir() if path != file] in ([], ["index.new"])
                assert b"index snapshot not loaded" not in r.log
                async with busy(r, f"life {n}"):
                    await eventually(file.exists)
                    for _ in range(20 + n):  # turns of an admin request long: dies at another moment each time
                        await r.admin.get("/admin/instances")
                    r.process.kill()
                    await r.process.wait()
            assert load(file) is not None
            assert list(folder.iterdir()) == [file], "reading removed what was begun"


@asynccontextmanager
async def busy(router: RouterProcess, name: str) -> AsyncIterator[None]:
    """Chats go on inside the block, whatever becomes of them."""

    async def talk(chat: Chat) -> None:
        with suppress(httpx.TransportError):
            while True:
                await chat.turn()

    tasks = [asyncio.create_task(talk(chat)) for chat in chats(router, name, 4)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def largest_file(pid: int, bytes_: int) -> Iterator[None]:
    """No file of that process can grow beyond this, as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_, hard))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_costs_neither_the_last_snapshot_nor_a_request(
    router_process, fleet_config, tmp_path
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    file = folder / "index"
    async with engine() as a, router_process(snapshotting(fleet_config, [a], file, 0.02)) as r:
        assert (await Chat(r, "before", words=600).turn()).ok
        await eventually(lambda: file.exists() and file.stat().st_size > 1000)
        with largest_file(r.pid, 500):
            await eventually(lambda: b"index snapshot not written: [Errno 27] File too large" in r.log)
            last = file.read_bytes()
            assert (await Chat(r, "meanwhile", words=600).turn()).ok
            await eventually(lambda: r.log.count(b"index snapshot not written") > 3)
            assert file.read_bytes() == last
        await eventually(lambda: file.read_bytes() != last)
        with largest_file(r.pid, 500):
            r.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(r.process.wait(), 10.0) == 0
    assert list(folder.iterdir()) == [file]
    assert load(file) is not None


# clocks


class JumpingClock(SystemClock):
    """The wall clock is set to another time; what counts seconds goes on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def wall(self) -> float:
        return SystemClock.wall() + self.ahead_s


async def test_jumps_of_the_wall_clock_change_nothing(router, tmp_path, caplog) -> None:
    """Minutes and days, both ways, under load, with all that has a deadline, an age or a date."""
    clock = JumpingClock()
    experiment = {"arms": {"warm": 50, "other": 50}, "unit": "session"}
    sections: Json = {
        "policies": {name: {"scorers": [{"name": "prefix_overlap"}]} for name in ("warm", "other")},
        "experiment": experiment,
        "admission": {"enabled": True},
        "index": {"snapshot_file": str(tmp_path / "index"), "snapshot_every_s": 0.02},
        "records": {"decision_log": {"folder": str(tmp_path / "decisions")}},
    }
    async with engine() as a, engine() as b, router([a, b], clock=clock, **sections) as r:
        talks = chats(r, "talk", 6)
        for ahead_s in (0.0, 120.0, -120.0, 10 * DAY_S, -10 * DAY_S, 0.0):
            clock.ahead_s = ahead_s
            said = await crowd(talks, 1)
            assert all(one.ok for one in said), said
            assert {i.state for i in r.core.fleet} == {InstanceState.READY}
            await r.hear()
        assert all(blocks > 0 for blocks in [await r.metric("warmroute_index_blocks", target=t) for t in targets(r)])
        assert all([(await r.record(one.record))["cached_tokens"] > 0 for one in said])
        assert await r.metric("warmroute_errors_total") == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def targets(router) -> list[str]:
    return [target.id for instance in router.core.fleet for target in instance.targets.values()]


# engines listed twice


async def test_one_engine_under_two_names_answers_as_two(router) -> None:
    """A mistake that no file shows, as by a host's name and its address: it costs accuracy of the load, no request."""
    async with engine() as a, router([{"url": a.url, "name": "x"}, {"url": a.url, "name": "y"}]) as r:
        said = await crowd(chats(r, "talk", 6), 3)
        assert all(one.ok for one in said)
        await eventually(r.idle)


async def test_two_engines_behind_one_address_cost_cache_hits_and_no_request(router) -> None:
    """A load balancer in front of two engines that share one entry: connections go to either in turn."""
    async with engine(name="a") as a, engine(name="b") as b, in_turn(a, b) as url, router([url], wait=False) as r:
        await eventually(lambda: {i.state for i in r.core.fleet} == {InstanceState.READY})
        said = await crowd(chats(r, "talk", 6), 4)
        assert all(one.ok for one in said)
        assert a.seen(PATH)
        assert b.seen(PATH)
        await eventually(r.idle)
        assert {i.state for i in r.core.fleet} == {InstanceState.READY}


@asynccontextmanager
async def in_turn(*fakes: FakeEngine) -> AsyncIterator[str]:
    """The URL of a TCP proxy that gives each connection to the next engine."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        host, port = fakes[connections % len(fakes)].address.split(":")
        theirs = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, theirs[1]), copy(theirs[0], writer))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
