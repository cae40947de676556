"""A starting replica takes over what another one has learned: index, speeds, accuracy; on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvloop

from router.control.peers import state_transfer
from router.control.peers.frames import StateAsk
from router.control.peers.network import PeerNetwork
from router.lab.local_stack.preflight import free_ports
from tests.fakes.caches import Cache, prompt_of
from tests.router.control.peers.replica import A, Replica

IDS = list(range(100, 118))  # 4 full blocks and a bit


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two replicas waits for the other one in vain."""
    monkeypatch.setattr(state_transfer, "FIRST_ANSWER_S", 0.3)


class Pair:
    """A replica `donor` that knows the engine `a`, and `starting`, which has not met it."""

    def __init__(self, key_secret: int = 5) -> None:
        ports = free_ports(2)
        peers = [f"127.0.0.1:{port}" for port in ports]
        self.cache = Cache()
        self.donor = Replica("a", ports[0], peers, engines="")
        self.starting = Replica("b", ports[1], peers, engines="", key_secret=key_secret)
        self.donor.join("a", streamed=True)
        self.batch = self.cache.batch(self.cache.stored(IDS))
        self.donor.core.indexer.on_connected(A)
        self.donor.core.indexer.on_replayed(A, self.batch)
        self.donor.core.indexer.on_replay_end(A, True)
        target = self.donor.core.fleet.target(A)
        assert target is not None
        for n in range(20):
            target.latency_model.observe_prefill(1000 + 100 * n, 0, 500.0 + 50 * n, self.donor.clock.now())
        for _ in range(3):
            target.overlap_accuracy.observe(64, 0, 16)

    async def __aenter__(self) -> Pair:
        await self.donor.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.gather(self.donor.close(), self.starting.close())

    async def start(self) -> None:
        """Start the other one."""
        await self.starting.start()


def network_of(pair: Pair) -> PeerNetwork:
    (network,) = pair.donor.exchange._networks
    return network


def held_tokens(replica: Replica) -> int:
    """Leading tokens of the prompt that the engine holds by its events, as this replica knows it."""
    (estimate,) = replica.core.indexer.estimate_overlaps(prompt_of(IDS), {A: 4}, frozenset()).values()
    assert estimate.overlap is not None
    return estimate.overlap.gpu_tokens if estimate.overlap.source == "events" else 0


async def test_an_engine_that_joins_after_the_start_is_known_as_well_as_elsewhere() -> None:
    async with Pair() as pair:
        await pair.start()
        pair.starting.join("a", streamed=True)
        core = pair.starting.core
        assert core.indexer.on_connected(A) == pair.batch.seq  # nothing but what has happened since is replayed
        core.indexer.on_replayed(A, pair.batch)
        core.indexer.on_replay_end(A, True)
        assert held_tokens(pair.starting) == held_tokens(pair.donor) == 16
        here, there = core.fleet.target(A), pair.donor.core.fleet.target(A)
        assert here is not None
        assert there is not None
        speed, elsewhere = here.latency_model.speed(pair.starting.clock.now()), there.latency_model.speed(0.0)
        assert speed[:4] == elsewhere[:4]
        assert speed.samples == 20
        assert speed.age_s is not None
        assert 0 <= speed.age_s < 5
        assert not here.overlap_accuracy.trusted
        assert here.overlap_accuracy.overestimated == 0  # counted elsewhere


async def test_what_was_taken_over_of_an_engine_that_restarted_meanwhile_is_forgotten() -> None:
    async with Pair() as pair:
        await pair.start()
        pair.starting.join("a", streamed=True)
        indexer = pair.starting.core.indexer
        indexer.on_connected(A)
        indexer.on_replay_end(A, True)  # it does not know the last batch
        assert held_tokens(pair.starting) == 0


async def test_block_keys_with_another_secret_are_not_taken_over_but_speeds_are() -> None:
    async with Pair(key_secret=6) as pair:
        await pair.start()
        pair.starting.join("a", streamed=True)
        target = pair.starting.core.fleet.target(A)
        assert target is not None
        assert target.latency_model.samples == 20
        assert pair.starting.core.indexer.on_connected(A) == 0


async def test_speeds_that_cannot_be_read_are_logged_and_the_index_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As from a build in which instances have other fields."""
    async with Pair() as pair:
        monkeypatch.setattr(pair.donor.exchange._learned, "encode_instances", lambda: b"\x91\x91\xa2a\xff")
        await pair.start()
        pair.starting.join("a", streamed=True)
        assert pair.starting.core.indexer.on_connected(A) == pair.batch.seq
    assert "speeds and accuracy of instances were not taken over" in caplog.text


async def test_a_replica_that_stops_answering_holds_no_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "STALLED_S", 1.5)
    async with Pair() as pair:
        answer = pair.donor.exchange._donor.answer

        async def answer_some(ask: StateAsk, network: PeerNetwork, send: Callable[[Sequence[bytes]], object]) -> None:
            if ask.part in ("outline", "instances"):
                await answer(ask, network, send)

        monkeypatch.setattr(pair.donor.exchange._donor, "answer", answer_some)
        await pair.start()
        pair.starting.join("a")
        target = pair.starting.core.fleet.target(A)
        assert target is not None
        assert target.latency_model.samples == 20  # what had come is kept


async def test_a_question_of_a_newer_build_is_answered_with_nothing() -> None:
    async with Pair() as pair:
        sent: list[Sequence[bytes]] = []
        await pair.donor.exchange._donor.answer(StateAsk(7, "something new"), network_of(pair), sent.append)
        ((head, payload),) = sent
        assert payload == b""
        assert head


async def test_a_large_answer_travels_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "PART_BYTES", 10)
    async with Pair() as pair:
        sent: list[Sequence[bytes]] = []
        await pair.donor.exchange._donor.answer(StateAsk(7, "target", A), network_of(pair), sent.append)
        assert max(map(len, sent[0][1:])) == 10
        await pair.start()
        pair.starting.join("a", streamed=True)
        assert pair.starting.core.indexer.on_connected(A) == pair.batch.seq
