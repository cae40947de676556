"""One worker of a host watches each source of instances, and the others apply its lists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from router.backends.discovery.discovery import DiscoveredInstance
from router.config.schema import InstanceConfig
from router.control.duty import Duty
from router.control.peers.instances import SharedInstances
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.router.control.peers.memory_network import MemoryNetwork


def listed(*names: str) -> list[DiscoveredInstance]:
    """Instances of the Kubernetes API."""
    configs = [InstanceConfig(name=name, url=f"http://{name}:8000", revision="r7") for name in names]
    return [DiscoveredInstance(config, config.name or "", f"uid {config.name}", accepting=True) for config in configs]


class Process:
    def __init__(self, run: str, host: str, duty: str | None, network: MemoryNetwork, tasks: Tasks) -> None:
        self.lists: dict[str, Sequence[DiscoveredInstance]] = {}
        self.duty = Duty(run, held=run == duty)
        self.duty.follow(duty)
        peers = network.join(run, host)
        self.shared = SharedInstances(self.update, self.duty, peers, tasks)
        peers.parts.append(self.shared)
        network.meet(run)

    async def update(self, source: str, instances: Sequence[DiscoveredInstance]) -> None:
        self.lists[source] = instances


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[MemoryNetwork, Tasks, list[Process]]]:
    """Workers a, b and c of a host, of which a is on duty, and d of another one."""
    network, tasks = MemoryNetwork(), Tasks("test")
    made = [Process(run, host, duty, network, tasks) for run, host, duty in zip("abcd", "xxxy", "aaad", strict=True)]
    yield network, tasks, made
    await tasks.close()


async def test_the_lists_of_the_worker_on_duty_are_those_of_all_workers_of_its_host() -> None:
    async with two_hosts() as (network, tasks, (a, b, c, d)):
        a.shared.publish("kubernetes", listed("one", "two"))
        a.shared.publish("dns", listed("three"))
        a.shared.publish("kubernetes", listed("two"))
        await eventually(lambda: len(b.lists) == len(c.lists) == 2)
        late = Process("e", "x", "a", network, tasks)
        far = Process("f", "y", "d", network, tasks)
        await eventually(lambda: len(late.lists) == 2)
        for worker in (b, c, late):
            assert worker.lists == {"kubernetes": listed("two"), "dns": listed("three")}
        assert a.lists == d.lists == far.lists == {}


async def test_lists_stay_when_the_worker_that_read_them_ends_and_the_next_one_reads_its_own() -> None:
    async with two_hosts() as (network, _, (a, b, c, _)):
        a.shared.publish("kubernetes", listed("one"))
        await eventually(lambda: b.lists and c.lists)
        network.end("a")
        b.duty.follow("b")
        assert c.lists == {"kubernetes": listed("one")}
        b.shared.publish("kubernetes", listed("two"))  # before the third one knows who has the duties
        await eventually(lambda: c.lists == {"kubernetes": listed("two")})
        c.shared.publish("kubernetes", listed("of-one-that-is-not-on-duty"))
        assert b.lists == {"kubernetes": listed("one")}
