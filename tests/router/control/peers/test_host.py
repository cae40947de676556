"""Workers of one host and of two hosts on real sockets: what one publishes reaches all others once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import pytest
import uvloop
import zmq

from router.control.peers import state_transfer
from router.control.peers.frames import encode_frame
from router.control.peers.messages import LoadMessage
from router.control.peers.network import PeerNetwork
from router.control.peers.parts import Message
from router.control.peers.peer_runs import SILENT_S
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.lab.local_stack.preflight import free_ports
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S
from tests.router.control.peers.replica import A, Host, Replica, address


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class Counted(Message, frozen=True):
    """A message that is sent once."""

    number: int


class Kept(Message, frozen=True):
    """The latest number of the sender."""

    number: int


class Counter:
    """A part that notes what it applies, as run and number, and publishes `kept` to those that have missed it."""

    messages: ClassVar[Sequence[type[Message]]] = (Counted, Kept)

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []
        self.known: dict[str, int] = {}
        self.applied: list[int] = []  # of what is kept
        self.kept = 0
        self.forgotten: list[str] = []

    def start(self, tasks: Tasks) -> None:
        """It has no tasks."""

    def state(self) -> Iterator[Message]:
        yield Kept(self.kept)

    def apply(self, message: Counted | Kept, run: str) -> None:
        if isinstance(message, Kept):
            self.known[run] = message.number
            self.applied.append(message.number)
        else:
            self.received.append((run, message.number))

    def forget(self, run: str) -> None:
        self.forgotten.append(run)
        self.known.pop(run, None)


class Worker:
    """A worker with a `Counter`."""

    def __init__(self, host: Host, run: str, number: int) -> None:
        self.run = run
        self.host = host
        self.counter = Counter()
        self.replica: Replica = host.add(run, number, [self.counter])
        self.exchange = self.replica.exchange

    def keep(self, number: int) -> None:
        """Publish a number, which is part of the state."""
        self.counter.kept = number
        self.exchange.share(Kept(number))

    def knows(self, *workers: Worker) -> bool:
        """Return whether these, and no others, can be reached, and whether it has what they keep."""
        found = {run: number for run, number in self.counter.known.items() if run in self.exchange.runs()}
        return found == {other.run: other.counter.kept for other in workers}

    async def end(self) -> None:
        """End without a word, as a process that is killed; its host notices."""
        await self.vanish()
        self.host.end(self.replica)

    async def vanish(self) -> None:
        for network in self.exchange._networks:
            network.started = False
            network.leave()  # sends nothing now
        await self.replica.close()


def all_know(*workers: Worker) -> bool:
    return all(one.knows(*(other for other in workers if other is not one)) for one in workers)


@asynccontextmanager
async def started(*workers: Worker) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.push_async_callback(worker.replica.close)
        await asyncio.gather(*(worker.replica.start() for worker in workers))
        yield


@asynccontextmanager
async def one_host(count: int) -> AsyncIterator[tuple[Host, list[Worker]]]:
    """The workers of a host, which reach each other."""
    host = Host("host", count)
    workers = [Worker(host, f"w{number}", number) for number in range(count)]
    async with started(*workers):
        await eventually(lambda: all_know(*workers))
        yield host, workers


@asynccontextmanager
async def two_hosts() -> AsyncIterator[list[Worker]]:
    """Two workers of each of two hosts. The configuration of both has both addresses."""
    ports = free_ports(2)
    hosts = [Host(name, 2, port, [address(port) for port in ports]) for name, port in zip("AB", ports, strict=True)]
    workers = [Worker(host, f"{host.name}{number}", number) for host in hosts for number in range(2)]
    async with started(*workers):
        await eventually(lambda: all_know(*workers))
        yield workers


async def share_all(workers: Sequence[Worker]) -> None:
    """Let each publish a message to all others."""
    for number, worker in enumerate(workers):
        worker.exchange.share(Counted(number))
    for worker in workers:
        await eventually(lambda w=worker: len(w.counter.received) >= len(workers) - 1)  # type: ignore[misc]


def expect_from_all(workers: Sequence[Worker]) -> None:
    """All others' messages have come, each once."""
    for worker in workers:
        expected = [(other.run, number) for number, other in enumerate(workers) if other is not worker]
        assert sorted(worker.counter.received) == sorted(expected)


# one host


@pytest.mark.parametrize("count", [2, 3])
async def test_workers_of_a_host_share_loads_sessions_and_drains(count: int) -> None:
    async with one_host(count) as (_, workers):
        replicas = [worker.replica for worker in workers]
        first, last = replicas[0], replicas[-1]
        bookings = [(replica, replica.book()) for replica in replicas]
        first.core.drain("a", True)
        await eventually(lambda: [replica.requests for replica in replicas] == [count] * count)
        await eventually(lambda: all(replica.drained for replica in replicas))
        last.core.remember_response("resp_1", A)
        await eventually(lambda: all(replica.core.response_target("resp_1") == A for replica in replicas))
        for replica, booking in bookings:
            replica.release(booking)
        await eventually(lambda: [replica.requests for replica in replicas] == [0] * count)
        await share_all(workers)
        expect_from_all(workers)
        assert all(worker.exchange.near_runs() == worker.exchange.runs() for worker in workers)
        assert all(worker.exchange.describe() == [] for worker in workers), "they are no routers of other hosts"


async def test_a_message_to_one_worker_reaches_that_one_alone() -> None:
    async with one_host(3) as (_, (one, two, three)):
        one.exchange.send_to("w1", Counted(7))
        one.exchange.send_to("nobody", Counted(8))
        two.exchange.send_to("w2", Counted(9))
        await eventually(lambda: two.counter.received and three.counter.received)
        assert (two.counter.received, three.counter.received) == ([("w0", 7)], [("w1", 9)])
        assert one.counter.received == []


async def test_news_arrive_before_what_is_sent_to_one_afterwards() -> None:
    async with one_host(2) as (_, (one, two)):
        for number in range(0, 40, 2):
            one.exchange.share(Counted(number))
            one.exchange.send_to("w1", Counted(number + 1))
            await asyncio.sleep(0)
        await eventually(lambda: len(two.counter.received) == 40)
        numbers = [number for _, number in two.counter.received]
        assert [n for n in numbers if n % 2 == 0] == [*range(0, 40, 2)]
        assert all(numbers.index(n) < numbers.index(n + 1) for n in range(0, 40, 2))
        assert two.exchange._peer_runs.gaps == 0


async def test_a_busy_worker_sends_the_latest_load_in_few_frames() -> None:
    """300 bookings in about 30 ms are a handful of loads, and the last one is how it stands."""
    async with one_host(2) as (_, (one, two)):
        frames = one.exchange._near._number  # type: ignore[union-attr]
        for _ in range(300):
            one.replica.book()
            await asyncio.sleep(0.0001)
        await eventually(lambda: two.replica.requests == 300)
        assert one.exchange._near._number - frames < 100  # type: ignore[union-attr]


async def test_a_worker_that_has_ended_is_forgotten_as_soon_as_its_host_knows_and_its_late_frames_are_ignored() -> None:
    async with one_host(3) as (_, (one, two, three)):
        two.replica.book()
        await eventually(lambda: one.replica.requests == three.replica.requests == 1)
        await two.vanish()
        assert one.replica.requests == 1
        two.host.end(two.replica)
        for other in (one, three):
            assert other.replica.requests == 0, "without waiting for its silence"
            assert other.counter.forgotten == ["w1"]
            assert "w1" not in other.exchange.runs()
            load = LoadMessage(A, WorkerShare(requests=5))
            late = encode_frame("news", two.exchange._networks[0]._sender, 9, 0.0, [load, Counted(1)])
            other.exchange._on_near_frame(None, [b"", late])  # type: ignore[arg-type]
            other.exchange._loads.apply()
            assert (other.replica.requests, other.counter.received) == (0, [])
            assert other.exchange._peer_runs.find("w1") is None


async def test_the_next_worker_of_a_number_takes_over_what_the_others_have_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_transfer, "FIRST_ANSWER_S", PATIENCE_S)
    async with one_host(3) as (host, (one, two, three)):
        for donor in (one, three):  # whichever answers first
            donor.replica.core.selector.sessions.put((False, "m", "agent"), A)
            donor.replica.core.remember_response("resp_1", A)
        one.replica.core.drain("a", True)
        one.replica.book()
        three.keep(3)
        await two.end()
        again = Worker(host, "w1 again", 1)
        try:
            await again.replica.start(learn=True)
            assert again.replica.core.selector.sessions.get((False, "m", "agent")) == A
            await eventually(lambda: all_know(one, again, three))
            await eventually(lambda: again.replica.requests == 1 and again.replica.drained)
            assert again.replica.core.response_target("resp_1") == A
            again.exchange.share(Counted(1))
            await eventually(lambda: ("w1 again", 1) in one.counter.received)
        finally:
            await again.replica.close()


async def test_news_that_overtake_what_a_worker_takes_over_at_its_start_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "FIRST_ANSWER_S", PATIENCE_S)
    async with one_host(2) as (host, (one, two)):
        await two.end()
        one.keep(1)
        again, donor = Worker(host, "w1 again", 1), one.exchange._donor
        answer = donor._history

        async def answer_late(network: PeerNetwork, size: int) -> AsyncIterator[bytes]:
            pages = [page async for page in answer(network, size)]
            await eventually(lambda: again.knows(one))
            one.keep(2)
            await eventually(lambda: again.knows(one))
            for page in pages:
                yield page

        donor._history = answer_late
        try:
            starting = asyncio.create_task(again.replica.start(learn=True))
            await eventually(lambda: again.counter.known == {"w0": 2})
            await starting
            await eventually(lambda: again.counter.known == {"w0": 2})
            assert again.counter.applied[-2:] == [1, 2], "an older one came last but one"
        finally:
            await again.replica.close()


async def test_a_worker_that_stops_says_so() -> None:
    async with one_host(2) as (_, (one, two)):
        two.replica.book()
        await eventually(lambda: one.replica.requests == 1)
        await two.replica.close()
        await eventually(lambda: one.replica.requests == 0, SILENT_S / 2)
        assert one.counter.forgotten == ["w1"]


async def test_a_gap_is_made_up_for_by_state() -> None:
    async with one_host(2) as (_, (one, two)):
        near = one.exchange._near
        assert near is not None
        near._number += 1  # news that nobody got
        one.counter.kept = 5
        await eventually(lambda: two.counter.known == {"w0": 5})
        assert two.exchange._peer_runs.gaps == 1
        assert two.counter.forgotten == []
        await eventually(lambda: all_know(one, two))


# two hosts


async def test_what_a_worker_publishes_reaches_the_workers_of_all_hosts_once() -> None:
    async with two_hosts() as workers:
        await share_all(workers)
        expect_from_all(workers)
        bookings = [worker.replica.book() for worker in workers]
        await eventually(lambda: [worker.replica.requests for worker in workers] == [4] * 4)
        for worker in workers:
            near = [other.run for other in workers if other.host is worker.host and other is not worker]
            assert worker.exchange.near_runs() == near
            assert worker.exchange.share_of_far(A).requests == 2
        for worker, booking in zip(workers, bookings, strict=True):
            worker.replica.release(booking)
        await eventually(lambda: [worker.replica.requests for worker in workers] == [0] * 4)
        assert all(worker.exchange.share_of_far(A) == NO_SHARE for worker in workers)
        expect_from_all(workers)
        assert [worker.exchange.is_first_host() for worker in workers] == [True, True, False, False]


async def test_what_is_for_one_host_stays_there() -> None:
    async with two_hosts() as workers:
        for worker in workers:
            worker.exchange.share_near(Counted(1))
        await eventually(lambda: all(worker.counter.received for worker in workers))
        await share_all(workers)
        near = [next(run for run, number in worker.counter.received if number == 1) for worker in workers]
        assert near == ["A1", "A0", "B1", "B0"]


async def test_a_message_to_one_worker_of_another_host_reaches_that_one_alone() -> None:
    async with two_hosts() as workers:
        for sender in workers:
            for number, receiver in enumerate(workers):
                sender.exchange.send_to(receiver.run, Counted(number))
        await eventually(lambda: all(len(worker.counter.received) >= 3 for worker in workers))
        for number, worker in enumerate(workers):
            others = [other.run for other in workers if other is not worker]
            assert sorted(worker.counter.received) == [(run, number) for run in others]


async def test_a_host_is_shown_once_and_is_up() -> None:
    async with two_hosts() as workers:
        for worker in workers:
            own, other = sorted(worker.exchange.describe(), key=lambda report: not report.own)
            assert (own.own, own.up) == (True, False)
            assert (other.own, other.up) == (False, True)
            assert other.run == ("B0" if worker.host.name == "A" else "A0"), "the one that receives"


async def test_when_the_worker_that_receives_has_ended_the_next_one_does_and_gaps_are_made_up_for() -> None:
    async with two_hosts() as (a0, a1, b0, b1):
        a1.keep(1)
        b1.keep(2)
        await eventually(lambda: all_know(a0, a1, b0, b1))
        a0.replica.book()
        await eventually(lambda: b0.replica.requests == b1.replica.requests == 1)
        await a0.end()
        b0.keep(3)  # while nobody receives there
        b1.keep(4)
        a1.keep(5)
        a0.host.take_duties(a1.replica)
        await a1.exchange.listen()
        await eventually(lambda: all_know(a1, b0, b1))
        await eventually(lambda: b0.replica.requests == b1.replica.requests == 0)
        for worker in (a1, b0, b1):
            worker.counter.received.clear()
        for sender in (a1, b0, b1):
            for number, receiver in enumerate((a1, b0, b1)):
                sender.exchange.send_to(receiver.run, Counted(number))
        await share_all([a1, b0, b1])
        await eventually(lambda: all(len(worker.counter.received) == 4 for worker in (a1, b0, b1)))


async def test_the_port_is_taken_as_soon_as_it_is_free() -> None:
    async with two_hosts() as (a0, a1, b0, b1):
        listening = asyncio.create_task(a1.exchange.listen())
        await eventually(lambda: b0.knows(a0, a1, b1))
        assert not listening.done()
        await a0.end()
        a0.host.take_duties(a1.replica)
        await listening
        await eventually(lambda: all_know(a1, b0, b1))


async def test_a_host_that_leaves_frees_its_port_and_is_forgotten_by_the_others_at_once() -> None:
    async with two_hosts() as (a0, a1, b0, b1):
        port = a0.exchange._fleet_settings.config.port  # type: ignore[union-attr]
        for worker in (a0, a1):
            worker.replica.book()
        await eventually(lambda: b1.replica.requests == 2)
        for worker in (a0, a1):
            await worker.exchange.leave()
        await eventually(lambda: b0.replica.requests == b1.replica.requests == 0, SILENT_S / 2)
        await eventually(lambda: a0.knows(a1) and a1.knows(a0) and b0.knows(b1) and b1.knows(b0))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.ROUTER) as socket:
            socket.bind(f"tcp://127.0.0.1:{port}")
        context.term()
