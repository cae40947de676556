"""A gateway's log entries and its log streams, over several pickers: two workers of a host, and another host."""

from __future__ import annotations

import asyncio

from router.clock import ManualClock
from router.control.peers.answers import SharedAnswers
from router.picker.answer_log import UNFOLLOWED_S, AnswerLog, LoggedEnd
from router.prompt.usage import Usage
from tests.router.control.peers.memory_network import MemoryNetwork

END = LoggedEnd(200, "via_upstream", "10.0.0.1:8000", Usage(7, None, 2))
UNSURE = LoggedEnd(503, "upstream_reset", None, None)


class Picker:
    """A process with open answers."""

    def __init__(self, run: str, host: str, network: MemoryNetwork, clock: ManualClock) -> None:
        self.log = AnswerLog(clock.now)
        peers = network.join(run, host)
        peers.parts.append(SharedAnswers(self.log, peers))
        network.meet(run)


class House:
    """Two workers of one host, and one of another."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork()
        self.first, self.second, self.far = (self.start(*who) for who in (("1a", "x"), ("2b", "x"), ("3c", "y")))

    def start(self, run: str, host: str) -> Picker:
        return Picker(run, host, self.network, self.clock)


async def test_an_entry_reaches_the_process_that_has_the_answer_open() -> None:
    house = House()
    with house.second.log.open("2b-7.f00", "gw") as near, house.far.log.open("3c-7.f00", "gw") as far:
        house.first.log.take("2b-7.f00", END)
        house.first.log.take("3c-7.f00", UNSURE)
        assert [await near.wait(), await far.wait()] == [END, UNSURE]


async def test_an_entry_of_nobody_is_dropped() -> None:
    house = House()
    with house.second.log.open("2b-7.f00", "gw") as answer:
        for key in ("", "-", "1a-7.f00", "9f-7.f00", "2b-7.guessed", "2b"):
            house.first.log.take(key, END)
        assert not answer.end.done()


async def test_a_gateway_is_followed_wherever_its_log_streams_are() -> None:
    house = House()
    house.first.log.on_stream_begin("gw")
    late = house.start("4d", "y")
    pickers = house.first, house.second, house.far, late
    assert [picker.log.follows("gw") for picker in pickers] == [True] * 4
    late.log.on_stream_begin("gw")
    house.first.log.on_stream_end("gw")
    assert [picker.log.follows("gw") for picker in pickers] == [True] * 4
    late.log.on_stream_end("gw")
    assert [picker.log.follows("gw") for picker in pickers] == [False] * 4


async def test_log_streams_are_needed_while_another_worker_of_the_host_has_open_answers() -> None:
    house = House()
    near, far = house.first.log, house.far.log
    near.on_stream_begin("gw")
    far.on_stream_begin("gw")
    with house.second.log.open("2b-7.f00", "gw"):
        late = house.start("4d", "x")
        late.log.on_stream_begin("gw")
        assert [log.is_needed for log in (near, late.log, far)] == [True, True, False]
    assert [log.is_needed for log in (near, late.log, far)] == [False] * 3
    with late.log.open("4d-1.f00", "gw"):
        assert near.is_needed
        house.network.end("4d")
        assert not near.is_needed


async def test_answers_are_given_up_a_while_after_the_process_with_their_log_streams_has_ended() -> None:
    house = House()
    house.first.log.on_stream_begin("gw")
    with house.second.log.open("2b-7.f00", "gw") as answer:
        waiting = asyncio.ensure_future(answer.wait())
        await asyncio.sleep(0)
        house.clock.advance(1000)
        house.network.end("1a")
        house.clock.advance(UNFOLLOWED_S - 1)
        house.second.log.expire()
        assert not answer.end.done(), "its gateway may open another stream"
        house.clock.advance(2)
        house.second.log.expire()
        assert await waiting is None
