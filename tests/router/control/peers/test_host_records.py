"""The kept records of the workers of a host, as the one with the admin API finds them."""

from __future__ import annotations

import msgspec
import pytest

from router.control.peers import host_records
from router.control.peers.host_records import HostRecords, RecordsQuery, RecordsReply
from router.scheduling.policy.record import Attempt
from router.tasks import Tasks
from router.telemetry.record_query import RecordQuery
from tests.router.control.control_plane import ControlPlane, crowded_holder, idle_holder
from tests.router.control.peers.memory_network import MemoryNetwork


class Worker:
    def __init__(self, run: str, network: MemoryNetwork, host: str = "host") -> None:
        self.run = run
        self.plane = ControlPlane()
        peers = network.join(run, host)
        self.tasks = Tasks(run)
        self.records = HostRecords(self.plane.ring, self.plane.core, peers, self.tasks, self.plane.clock)
        peers.parts.append(self.records)

    def decide(self) -> list[str]:
        """Keep two records, and return their ids."""
        made = []
        for view in (crowded_holder(), idle_holder()):
            record, plane = self.plane.record(), self.plane
            record.id, record.at_wall_s = f"{self.run}-{record.number}", plane.clock.wall()
            record.policy = plane.control.policy_set.policy
            record.attempts = [Attempt(plane.core.selector.decide(view, record.policy), 0, 0)]
            plane.ring.add(record)
            made.append(record.id)
        return made


def workers() -> tuple[MemoryNetwork, list[Worker]]:
    """Workers a, b and c of a host, and d of another one."""
    network = MemoryNetwork()
    return network, [Worker(run, network, "another" if run == "d" else "host") for run in "abcd"]


async def test_a_record_is_found_at_the_worker_that_made_it() -> None:
    network, (a, b, _, d) = workers()
    (first, _), _ = b.decide(), d.decide()
    found = await a.records.find(first, "configured")
    assert found is not None
    assert (found["id"], [other["policy"] for other in found["others"]]) == (first, ["far", "other"])
    assert len(network.messages(RecordsQuery)) == 1
    for id in ("b-999", "d-0", "gone-1", "b", ""):
        assert await a.records.find(id, "configured") is None
    assert len(network.messages(RecordsQuery)) == 2, "only the worker that may have it"


async def test_records_of_all_other_workers_of_the_host_match_a_query() -> None:
    _, (a, b, c, d) = workers()
    made = [*b.decide(), *c.decide()]
    a.decide()
    d.decide()
    found = await a.records.select(RecordQuery(limit=10))
    assert sorted(msgspec.json.decode(record)["id"] for record in found) == sorted(made)
    (one, other) = await a.records.select(RecordQuery(limit=1))
    assert {msgspec.json.decode(record)["id"][0] for record in (one, other)} == {"b", "c"}, "so many of each"


async def test_sums_of_recent_requests_are_those_since_the_last_query_until_nobody_looks() -> None:
    _, (a, b, c, _) = workers()
    b.decide()

    async def placed() -> dict[str, int]:
        return {run: sum(one.placed for one in flow.buckets) for run, flow in (await a.records.update_flow()).items()}

    assert await placed() == {"b": 2, "c": 0}
    assert await placed() == {"b": 0, "c": 0}
    c.decide()
    assert await placed() == {"b": 0, "c": 2}
    await a.records.end_flow()
    assert await placed() == {"b": 2, "c": 2}


async def test_requests_of_a_target_and_shared_prefixes_come_from_all_workers() -> None:
    _, (a, b, c, d) = workers()
    for worker in (b, c, d):
        worker.decide()
    found = await a.records.list_target_requests("a/0", 1)
    assert sorted(request.id[0] for request in found) == ["b", "c"]
    assert await a.records.count_prefixes({"a/0": 16}) == [[], []]


async def test_a_worker_that_does_not_reply_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_records, "REPLY_TIMEOUT_S", 0.02)
    network, (a, b, c, _) = workers()
    b.decide()
    made = c.decide()
    network.mute.add("b")
    found = await a.records.select(RecordQuery(limit=10))
    assert sorted(msgspec.json.decode(record)["id"] for record in found) == sorted(made)
    assert await a.records.find("b-0", "configured") is None
    assert len(a.records.queries) == 0


async def test_a_query_that_cannot_be_read_gets_an_empty_reply() -> None:
    network, (_, b, *_) = workers()
    b.records.apply(RecordsQuery(7, "record", b"\xff"), "a")
    await b.tasks.finish(1.0)
    (reply,) = network.messages(RecordsReply)
    assert (reply.number, reply.payload) == (7, b"")
