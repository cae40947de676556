"""The benchmark's clients against its own backend: what they send is seen, and what they time is what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from router.lab.local_stack.preflight import free_ports
from tests.bench import load, routers, streams
from tests.bench.answers import MODEL
from tests.bench.asking import TimedClient
from tests.bench.data_path import in_turns
from tests.bench.load import Shape
from tests.bench.probing import probe
from tests.bench.results import Effort
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured
from tests.bench.streams import Crowd

SHAPE = Shape("a request", "us", requests=20, connections=4, body_bytes=200)


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    with routers.engines(2, spacing_ms=20) as listening:
        yield listening


def test_the_prober_asks_all_ports_equally_often(ports: list[int], tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(SHAPE.body(MODEL))
    seen = probe(ports, body, rate=100, seconds=0.2)
    assert {port: len(took) for port, took in seen.items()} == dict.fromkeys(ports, 20)  # 100/s for 0.2 s
    assert all(took_ms > 0 for took in seen.values() for took_ms in took)


def test_a_port_that_nobody_listens_on_is_no_measurement(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(b"{}")
    with pytest.raises(NotMeasured, match="without figures"):
        probe(free_ports(1), body, rate=100, seconds=0.1)


def test_a_request_is_seen_after_it_was_sent_and_before_it_was_answered(ports: list[int]) -> None:
    with TimedClient(ports[0]) as asker:
        for size in (100, 320_000):
            asked = asker.ask(SHAPE.body(MODEL) + b" " * size)
            assert 0 < asked.seen_ms < asked.done_ms


def test_streams_arrive_whole_and_each_chunk_tells_how_long_it_took(ports: list[int]) -> None:
    began = time.monotonic()
    arrived = uvloop.run(streams.read_all(ports[0], Crowd(5, 50, 0.1), chunks=10))
    assert arrived.chunks == 50
    assert 5 <= len(arrived.late_ms) <= 50
    assert all(0 <= late < (time.monotonic() - began) * 1e3 for late in arrived.late_ms)


def test_every_answer_of_a_load_is_checked(ports: list[int]) -> None:
    uvloop.run(load.send(SHAPE, ports[0], MODEL))
    chunks = Shape("a chunk", "us", requests=4, connections=2, body_bytes=200, chunks=3)
    uvloop.run(load.send(chunks, ports[0], MODEL))
    with pytest.raises(load.LoadFailed, match="1 of 3 pieces"):  # its body does not ask for a stream
        uvloop.run(load.send(chunks, ports[0], MODEL, SHAPE.body(MODEL)))


def test_a_peer_that_does_not_answer_is_left_out_and_we_are_not(ports: list[int], tmp_path: Path) -> None:
    with routers.child(["sleep", "60"]) as process:
        ours = Running("warmroute", ports[0], process.pid)
        broken = Running("peer", ports[1], process.pid)
        notes: list[str] = []
        run = BenchRun(Effort(repetitions=2), tmp_path, lambda _: None, notes)
        assert set(in_turns(run, [ours, broken], SHAPE)) == {"warmroute", "peer"}
        assert notes == []
        with routers.engines(1) as gone:
            missing = Running("peer", gone[0], process.pid)
        seen = in_turns(run, [ours, missing], SHAPE)
    assert set(seen) == {"warmroute"}
    assert len(seen["warmroute"]) == 2
    assert len(notes) == 1
