"""Routers of several hosts on real sockets, each with its scheduler, and with a relay between them that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import uvloop
import zmq

from router.backends.discovery.discovery import DiscoveredInstance
from router.config import schema
from router.control.peers import exchange, network
from router.control.peers.experiments import COUNTS_S
from router.control.peers.facts import LOOK_S
from router.control.peers.frames import PROTOCOL
from router.control.peers.messages import BreakerMoved, SessionAnswered, SessionMoved
from router.control.peers.partitioned_experiment import PartitionedExperiment
from router.control.peers.peer_runs import SILENT_S
from router.control.peers.sockets import LINK_OPTIONS, PeerSockets, derive_curve_keys
from router.errors import ConfigError
from router.lab.gameday.relay import TcpRelay
from router.lab.local_stack.preflight import free_ports
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from tests.fakes.engines import eventually
from tests.router.control.peers.replica import SECRET, A, Replica, address, running
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
            await eventually(lambda: all(len(one.exchange.runs()) == 2 for one in (a, b, c)))
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
            a.core.fleet.target(A).breaker.on_opened_elsewhere("ann", True, a.clock.now())  # type: ignore[union-attr]
            await a.control.activate("other", "ann")
            assert (a.requests, b.requests, b.drained, b.active) == (3, 1, False, "warm")
            await to_a.heal()
            await to_b.heal()
            await eventually(lambda: a.requests == b.requests == 4 and b.drained, AGREED_WITHIN_S)
            await eventually(lambda: b.active == "other" and b.core._open_breakers() == [failed], AGREED_WITHIN_S)
            assert b.control.audit.latest(1)[0].replica == "a"
            for booking in kept:
                a.release(booking)
            b.release(b_booking)
            await eventually(lambda: a.requests == b.requests == 0)


async def test_decisions_of_a_replica_that_ended_reach_those_that_did_not_receive_them() -> None:
    """`z` reaches only `b`, and ends; `c` decides about the same instance without knowing."""
    ports = dict(zip("zbc", free_ports(3), strict=True))
    z, b, c = (Replica(run, ports[run], [address(ports[one]) for one in known]) for run, known in
               (("z", "zb"), ("b", "zbc"), ("c", "bc")))  # fmt: skip
    async with running(b, c):
        await eventually(lambda: b.hears("c") and c.hears("b"))
        async with running(z):
            await eventually(lambda: b.hears("z"))
            z.core.drain("a", True)
            await z.control.activate("other", "zoe")
            await eventually(lambda: b.drained and b.active == "other")
        assert (c.drained, c.active) == (False, "warm")
        c.core.drain("a", False)
        await eventually(lambda: c.drained and c.active == "other", 3 * LOOK_S + AGREED_WITHIN_S)
        assert (b.drained, b.active) == (True, "other")


async def test_without_the_secret_nothing_is_sent_or_received(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "UNANSWERED_BEATS", 4)
    ports = free_ports(2)
    peers = [address(port) for port in ports]
    a, stranger = Replica("a", ports[0], peers), Replica("x", ports[1], peers, secret=b"fedcba9876543210")
    async with running(a, stranger):
        stranger.book()
        await eventually(lambda: a.report("a") and stranger.report("x"))  # both have met themselves
        refused = lambda one: max(report.unsent for report in one.exchange.describe()) >= 4  # noqa: E731  a second
        await eventually(lambda: refused(a) and refused(stranger))
        assert (len(a.exchange._peer_runs), a.requests) == (0, 0)
        assert sum(report.bytes_sent for report in a.exchange.describe() if not report.own) == 0
    warned = [one.getMessage() for one in caplog.records if "no router has answered" in one.getMessage()]
    assert [sum(f"at {peer} " in text for text in warned) for peer in peers] == [1, 1], "each other, not themselves"


async def test_a_client_that_knows_only_the_public_key_is_refused() -> None:
    """It would get through if the server did not check the clients' key."""
    (port,) = free_ports(1)
    a = Replica("a", port, [address(port)])
    async with running(a):
        thief = PeerSockets(b"another secret, not the right one")
        socket = thief._make(zmq.DEALER, {zmq.CURVE_SERVERKEY: derive_curve_keys(SECRET).public} | LINK_OPTIONS)
        socket.connect(f"tcp://{address(port)}")
        socket.setsockopt(zmq.SNDTIMEO, 500)
        with pytest.raises(zmq.Again):  # no connection is ever made, so that nothing can be sent
            await asyncio.to_thread(socket.send, b"x")
        socket.close()
        thief.close()


async def test_a_port_that_is_taken_is_named() -> None:
    (port,) = free_ports(1)
    async with running(Replica("a", port, [address(port)])):
        second = Replica("b", port, [address(port)])
        with pytest.raises(ConfigError, match=f"listen on 127.0.0.1:{port}: .* needs a port of its own"):
            await second.start()
        await second.close()


async def test_an_experiment_is_counted_once_and_reported_by_all() -> None:
    ports = free_ports(2)
    a, b = (Replica(run, port, [address(p) for p in ports]) for run, port in zip("ab", ports, strict=True))
    async with running(a, b):
        await a.control.start_experiment("{arms: {warm: 50, other: 50}}", "ann")
        await eventually(lambda: (counting(a), counting(b)) == (["b"], ["a"]))
        for number in range(60):  # each session sends a request to either router
            for one in (a, b):
                assert one.core.experiment is not None
                record = a_record(number, one.clock.now())
                one.core.experiment.begin_request("warm", number.to_bytes(8), record)
                one.core.experiment.end_request(finish(record))
        for one in (a, b):
            trial = one.core.experiment
            assert trial is not None
            await eventually(lambda trial=trial: arms(trial) == (120, 60), 4 * COUNTS_S)  # type: ignore[misc]
            assert 10 < trial.open_units < 50
        description = a.control.describe_experiment()
        assert description["report"]["arms"][0]["requests"] == 120


def counting(replica: Replica) -> list[str] | None:
    """Return the other processes that count its experiment; None: there is none."""
    running = replica.core.experiment
    return [*running._others] if isinstance(running, PartitionedExperiment) else None


def arms(trial: RunningExperiment) -> tuple[int, int]:
    """Requests and open units of the first arm."""
    (arm, _) = trial.report().arms
    return arm.requests, arm.units_open


class ListedReplicas:
    """A source that lists these addresses, and later others."""

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
        await eventually(lambda: a.requests == 1)  # received from, though its address is not known here
        found.list(here, there)
        await eventually(lambda: a.hears("b") and b.hears("a"))
        assert [report.address for report in a.exchange.describe()] == [here, there]
        own = a.book()
        await eventually(lambda: b.requests == 2)
        found.list(here)
        await eventually(lambda: a.exchange.describe()[-1].address is None)  # received from still, but not listed
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
        a.core.swap(PolicySet(a.control.policy_set.policies, "other"))  # by no operator, so it is published to nobody
        await eventually(lambda: agreement(a, "b") == (False, True, 3) and agreement(b, "a") == (False, True, 3))


def agreement(replica: Replica, run: str) -> tuple[bool | None, bool | None, int | None] | None:
    report = replica.report(run)
    return None if report is None else (report.same_policies, report.same_instances, report.instances)


async def test_a_frame_of_the_first_version_is_named_once_shown_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    a = Replica("a", port, [])
    old = PeerSockets(SECRET)
    async with running(a):
        link = old.connect(f"tcp://{address(port)}")
        load = ["LoadMessage", A, [7, 7, 300, 45000.5, 900, 1000]]
        frames: list[list[object]] = [
            *(["beat", "old-run", 0, 0.5, []], ["news", "old-run", 1, 0.6, [load]]),
            *(["ask", "old-run", 1, 0.7, [[1, "outline", ""]]], ["beat", "old-run", 1, 0.75]),
        ]
        await eventually(lambda: link.send(msgspec.msgpack.encode(frames[0])))
        for frame in frames[1:]:
            assert link.send(msgspec.msgpack.encode(frame))
        booking = a.book()
        await eventually(lambda: a.report("old-run"))
        link.send(b"no frame at all")
        await eventually(lambda: a.exchange.malformed == 1)  # so all before it have been read
        a.release(booking)
        report = a.report("old-run")
        assert report is not None
        assert (report.address, report.own, report.up) == (None, False, False)
        assert (a.requests, a.exchange.runs(), len(a.exchange._peer_runs)) == (0, [], 0)
        assert link.receive_now() is None, "it gets no acknowledgement and no answer"
        named = [record.getMessage() for record in caplog.records if "old-run" in record.getMessage()]
        assert len(named) == 1
        assert f"version 1 of the peers' protocol, this router version {PROTOCOL}" in named[0]
        link.close(linger=0)
    old.close()


async def test_a_router_of_another_version_that_is_gone_is_shown_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SILENT_S", 0.1)
    (port,) = free_ports(1)
    a = Replica("a", port, [])
    old = PeerSockets(SECRET)
    async with running(a):
        link = old.connect(f"tcp://{address(port)}")
        await eventually(lambda: link.send(msgspec.msgpack.encode(["beat", "old-run", 0, 0.5, []])))
        await eventually(lambda: a.report("old-run"))
        await eventually(lambda: a.report("old-run") is None)
        link.close(linger=0)
    old.close()


async def test_times_of_another_host_are_by_the_clock_of_this_one() -> None:
    a = Replica("a")
    a.exchange._apply(SessionAnswered("m", "agent", 2, 100.0, None), "b", 5.0)
    a.exchange._apply(SessionMoved(False, "m", "agent", A, 100.5), "b", 5.0)
    progress = a.core.selector.progress.get(("m", "agent"))
    assert progress is not None
    assert progress.answered_s == 105.0
    assert a.core.moved_at((False, "m", "agent")) == 105.5
    await a.close()
