"""Requests that wait for a model count at all processes, and one of a host starts instances for all of its workers."""

from __future__ import annotations

from router.clock import ManualClock
from router.control.duty import Duty
from router.features.autoscaling.peers import InstanceWanted, SharedWaits
from router.features.autoscaling.waiting_models import WaitingModels
from tests.router.control.peers.memory_network import MemoryNetwork


class Process:
    def __init__(self, run: str, host: str, duty: str, network: MemoryNetwork) -> None:
        self.waiting = WaitingModels(ManualClock(10.0))
        self.calls: list[tuple[str, int]] = []
        self.ends: list[tuple[str, bool]] = []
        self.duty = Duty(run, held=run == duty)
        self.duty.follow(duty)
        peers = network.join(run, host)
        self.shared = SharedWaits(self.waiting, self.duty, peers)
        self.shared.call = lambda model, waiting: self.calls.append((model, waiting))
        self.shared.on_call_end = lambda model, failed: self.ends.append((model, failed))
        peers.parts.append(self.shared)


def two_hosts() -> tuple[MemoryNetwork, list[Process]]:
    """Workers a and b of a host, of which a is on duty, and d of another host."""
    network = MemoryNetwork()
    return network, [Process(run, host, duty, network) for run, host, duty in zip("abd", "xxy", "aad", strict=True)]


def test_the_worker_on_duty_calls_for_the_workers_of_its_host() -> None:
    network, (a, b, d) = two_hosts()
    b.waiting.report("m", 3)
    assert (a.calls, b.calls, d.calls) == ([("m", 3)], [], []), "the other host calls for its own"
    assert [process.waiting.waits("m") for process in (a, d)] == [True, True]
    d.waiting.report("m", 2)
    assert a.calls == [("m", 3)]
    network.end("a")
    b.duty.follow("b")
    late = Process("c", "x", "b", network)
    late.waiting.report("m", 1)
    assert b.calls == [("m", 1)]
    assert len(network.messages(InstanceWanted)) == 6


def test_how_a_call_ended_is_known_to_the_workers_of_the_host() -> None:
    _, (a, b, d) = two_hosts()
    a.shared.publish_end("m", True)
    assert (a.ends, b.ends, d.ends) == ([], [("m", True)], [])
