"""Replicas on real sockets, each with its leader and scheduler, and with a relay between them that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop
import zmq

from router.backends.discovery.discovery import DiscoveredInstance
from router.config import schema
from router.control.replicas.experiments import COUNTS_S
from router.control.replicas.peers import SILENT_S
from router.control.replicas.sockets import LINK_OPTIONS, ReplicaSockets, derive_curve_keys
from router.control.workers.messages import BreakerMoved
from router.errors import ConfigError
from router.lab.gameday.relay import TcpRelay
from router.lab.local_stack.preflight import free_ports
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from tests.fakes.engines import eventually
from tests.router.control.replicas.replica import SECRET, A, Replica, address, running
from tests.router.scheduling.experiments.traffic import a_record, finish

AGREED_WITHIN_S = 2.0


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


async def test_three_replicas_book_together_and_one_that_stops_is_forgotten_at_once() -> None:
    ports = free_ports(3)
    peers = [address(port) for port in ports]  # the same list for all
    a, b, c = (Replica(run, port, peers) for run, port in zip(("a", "b", "c"), ports, strict=True))
    async with running(a, b):
        early = a.book()
        async with running(c):
            await eventually(lambda: all(sum(map(one.hears, "abc")) == 2 for one in (a, b, c)))
            (itself,) = [report for report in a.exchange.describe() if report.own]
            assert (itself.address, itself.run, itself.up, itself.bytes_received) == (peers[0], "a", False, 0)
            bookings = [(one, one.book()) for one in (a, b, c) for _ in range(2)]
            await eventually(lambda: {one.requests for one in (a, b, c)} == {7})
            for one, booking in bookings[:4]:
                one.release(booking)
            a.release(early)
            await eventually(lambda: {one.requests for one in (a, b, c)} == {2})
        await eventually(lambda: a.requests == b.requests == 0, SILENT_S / 2)  # without waiting for its silence
        report = a.report("b")
        assert report is not None
        assert report.lag_s is not None
        assert report.bytes_sent > 0 < report.bytes_received


async def test_a_starting_replica_gets_bookings_sessions_responses_and_drains() -> None:
    ports = free_ports(2)
    a, b = (Replica(run, port, [address(p) for p in ports]) for run, port in zip("ab", ports, strict=True))
    async with running(a):
        a.book()
        a.core.drain("a", True)
        a.core.selector.sessions.put((False, "m", "agent"), "a/0")
        a.core.remember_response("resp_1", A, "acme")
        async with running(b):
            await eventually(lambda: b.core.responses() == [("resp_1", A, "acme")])
            assert b.core.selector.sessions.get((False, "m", "agent")) == "a/0"
            assert b.drained
            await eventually(lambda: b.requests == 1)


async def test_after_a_partition_all_agree() -> None:
    """Both ways cut for longer than `SILENT_S`; bookings end and begin, an engine is drained, its breaker opens and a
    policy is switched meanwhile.
    """
    failed = BreakerMoved(A, True, "ann", True)
    port_a, port_b = free_ports(2)
    async with TcpRelay("127.0.0.1", port_a) as to_a, TcpRelay("127.0.0.1", port_b) as to_b:
        a, b = Replica("a", port_a, [address(to_b.port)]), Replica("b", port_b, [address(to_a.port)])
        async with running(a, b):
            await eventually(lambda: a.hears("b") and b.hears("a"))
            ended, b_booking = a.book(), b.book()
            await eventually(lambda: a.requests == b.requests == 2)
            to_a.stall()
            to_b.stall()
            await eventually(lambda: a.requests == b.requests == 1, SILENT_S + 1.5)  # each knows its own
            a.release(ended)
            kept = [a.book() for _ in range(3)]
            a.core.drain("a", True)
            a.core.apply_breaker(failed)
            await a.control.activate("other", "ann")
            assert (a.requests, b.requests, b.drained, b.active) == (3, 1, False, "warm")
            await to_a.heal()
            await to_b.heal()
            await eventually(lambda: a.requests == b.requests == 4 and b.drained, AGREED_WITHIN_S)
            await eventually(lambda: b.active == "other" and b.core.open_breakers() == [failed], AGREED_WITHIN_S)
            assert b.control.audit.latest(1)[0].replica == "a"
            for booking in kept:
                a.release(booking)
            b.release(b_booking)
            await eventually(lambda: a.requests == b.requests == 0)


async def test_nobody_without_the_secret_is_heard_or_hears() -> None:
    ports = free_ports(2)
    peers = [address(port) for port in ports]
    a, stranger = Replica("a", ports[0], peers), Replica("x", ports[1], peers, secret=b"fedcba9876543210")
    async with running(a, stranger):
        stranger.book()
        await eventually(lambda: a.report("a") and stranger.report("x"))  # both have met themselves
        refused = lambda one: max(report.unsent for report in one.exchange.describe()) >= 4  # noqa: E731  a second
        await eventually(lambda: refused(a) and refused(stranger))
        assert (len(a.exchange._heard), a.requests) == (0, 0)
        assert sum(report.bytes_sent for report in a.exchange.describe() if not report.own) == 0


async def test_a_client_that_knows_only_the_public_key_is_refused() -> None:
    """It would be heard if the server did not check the clients' key."""
    (port,) = free_ports(1)
    a = Replica("a", port, [address(port)])
    async with running(a):
        thief = ReplicaSockets(b"another secret, not the right one")
        socket = thief._make(zmq.DEALER, {zmq.CURVE_SERVERKEY: derive_curve_keys(SECRET).public} | LINK_OPTIONS)
        socket.connect(f"tcp://{address(port)}")
        socket.setsockopt(zmq.SNDTIMEO, 500)
        with pytest.raises(zmq.Again):  # no connection is ever made, so that nothing can be sent
            await asyncio.to_thread(socket.send, b"x")
        socket.close()
        thief.close()


async def test_a_port_that_is_taken_is_said() -> None:
    (port,) = free_ports(1)
    async with running(Replica("a", port, [address(port)])):
        with pytest.raises(ConfigError, match=f"listen on 127.0.0.1:{port}: .* needs a port of its own"):
            await Replica("b", port, [address(port)]).exchange.start()


async def test_an_experiment_is_counted_once_and_reported_by_all() -> None:
    ports = free_ports(2)
    a, b = (Replica(run, port, [address(p) for p in ports]) for run, port in zip("ab", ports, strict=True))
    async with running(a, b):
        await eventually(lambda: (a.experiments._others, b.experiments._others) == (["b"], ["a"]))
        await a.control.start_experiment("{arms: {warm: 50, other: 50}}", "ann")
        await eventually(lambda: b.core.experiment is not None)
        for number in range(60):  # each session sends a request to either router
            for one in (a, b):
                assert one.core.experiment is not None
                record = a_record(number, one.core._clock.now())
                one.core.experiment.begin_request("warm", number.to_bytes(8), record)
                one.core.experiment.end_request(finish(record))
        for one in (a, b):
            trial = one.core.experiment
            assert trial is not None
            await eventually(lambda trial=trial: arms(trial) == (120, 60), 4 * COUNTS_S)  # type: ignore[misc]
            assert 10 < trial.open_units < 50
        description = a.control.describe_experiment()
        assert description["report"]["arms"][0]["requests"] == 120


def arms(trial: RunningExperiment) -> tuple[int, int]:
    """Requests and open units of the first arm."""
    (arm, _) = trial.report().arms
    return arm.requests, arm.units_open


class ListedReplicas:
    """A source that lists these addresses, and others when it is told to."""

    trouble: str | None = None
    confirmed_at: float | None = None

    def __init__(self, *addresses: str) -> None:
        self._lists: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self._lists.put_nowait(addresses)

    def list(self, *addresses: str) -> None:
        self._lists.put_nowait(addresses)

    async def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        while True:
            found = await self._lists.get()
            yield [DiscoveredInstance(schema.InstanceConfig(url=f"http://{one}"), "test") for one in found]


async def test_replicas_that_are_found_come_and_go() -> None:
    ports = free_ports(3)
    here, there, gone = map(address, ports)
    found = ListedReplicas(here, gone)
    a = Replica("a", ports[0], [], discovery=found)
    b = Replica("b", ports[1], [here, there])
    async with running(a, b):
        booking = b.book()
        await eventually(lambda: a.requests == 1)  # heard, though its address is not known here
        found.list(here, there)
        await eventually(lambda: a.hears("b") and b.hears("a"))
        assert [report.address for report in a.exchange.describe()] == [here, there]
        own = a.book()
        await eventually(lambda: b.requests == 2)
        found.list(here)
        await eventually(lambda: a.exchange.describe()[-1].address is None)  # heard still, but not listed
        a.release(own)
        b.release(booking)
        await eventually(lambda: a.requests == 0)


async def test_routers_see_whether_they_agree() -> None:
    ports = free_ports(2)
    peers = [address(port) for port in ports]
    a, b = Replica("a", ports[0], peers), Replica("b", ports[1], peers, engines="abc")
    async with running(a, b):
        await eventually(lambda: agreement(a, "b") == (True, False, 3) and agreement(b, "a") == (True, False, 1))
        a.join("b")
        a.join("c")
        a.core.swap(PolicySet(a.control.policy_set.policies, "other"))  # by no operator, so it is told to nobody
        await eventually(lambda: agreement(a, "b") == (False, True, 3) and agreement(b, "a") == (False, True, 3))


def agreement(replica: Replica, run: str) -> tuple[bool | None, bool | None, int | None] | None:
    report = replica.report(run)
    return None if report is None else (report.same_policies, report.same_instances, report.instances)
