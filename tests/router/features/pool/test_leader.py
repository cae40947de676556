"""Whom to ask: with one master, with several, and when they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from router.backends.fetch import HttpAnswer
from router.clock import ManualClock
from router.features.pool.leader import MasterLeader
from router.lab.emulator.mooncake_master import MasterFaults, MasterOptions, MooncakeMaster
from router.tasks import Tasks
from tests.router.features.pool.scene import BLOCK, prompt, scene, until

LEADS = b'{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null}'
STANDS_BY = b'{"status":"ok","role":"standby","ha_state":"standby","service_ready":false}'


class Masters:
    """A fetcher that answers /health from a table; None: silence."""

    def __init__(self, **answers: HttpAnswer | None) -> None:
        self.answers = answers

    async def __call__(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        assert (path, body) == ("/health", None)
        return self.answers[instance]


def leader_of(masters: Masters, changes: list[str]) -> MasterLeader:
    names = list(masters.answers)
    return MasterLeader(names, 1.0, masters, Tasks("test"), ManualClock(5.0), lambda: changes.append("changed"))


@pytest.mark.parametrize(
    ("answer", "leads", "trouble"),
    [
        (HttpAnswer(200, LEADS), True, None),
        (HttpAnswer(200, b"OK\n"), True, None),
        (HttpAnswer(200, STANDS_BY), False, None),
        (HttpAnswer(200, LEADS.replace(b"true", b"false")), False, "leads, but does not serve yet"),
        (HttpAnswer(503, LEADS), False, "GET /health: 503"),
        (None, False, "GET /health: no answer"),
    ],
)
async def test_what_a_master_says_of_itself(answer: HttpAnswer | None, leads: bool, trouble: str | None) -> None:
    leader = leader_of(Masters(a=answer), [])
    await leader.poll()
    assert leader.current == ("a" if leads else None)
    assert leader.masters[0] == ("a", leads, trouble, 5.0)


async def test_nonsense_does_not_lead() -> None:
    leader = leader_of(Masters(a=HttpAnswer(200, b"<html>")), [])
    await leader.poll()
    assert leader.current is None
    assert str(leader.masters[0].trouble).startswith("GET /health: ")


async def test_the_one_we_follow_is_followed_while_it_leads() -> None:
    changes: list[str] = []
    masters = Masters(a=HttpAnswer(200, STANDS_BY), b=HttpAnswer(200, LEADS))
    leader = leader_of(masters, changes)
    await leader.poll()
    assert (leader.current, len(changes)) == ("b", 1)
    masters.answers["a"] = HttpAnswer(200, LEADS)  # two claim it
    await leader.poll()
    assert (leader.current, len(changes)) == ("b", 1)
    masters.answers["b"] = None
    await leader.poll()
    assert (leader.current, len(changes)) == ("a", 2)


async def test_a_lost_one_is_nobody_until_the_next_look() -> None:
    changes: list[str] = []
    leader = leader_of(Masters(a=HttpAnswer(200, LEADS)), changes)
    await leader.poll()
    leader.on_lost("b")
    assert leader.current == "a"
    leader.on_lost("a")
    assert leader.current is None
    await leader.poll()
    assert (leader.current, len(changes)) == ("a", 2)


async def test_the_successor_is_asked_as_soon_as_the_leader_says_that_it_is_not() -> None:
    known = prompt(3)
    async with scene(masters=2, health_interval_s=30) as its:
        assert its.leader == "master 0"  # both claim it: the first
        its.master.faults = MasterFaults(standby=True)
        for key in its.keys(known, range(2)):
            its.masters[1].keys[key] = {"memory"}
        assert await its.tokens(known) is None
        assert its.unknown == {"standby": 1}
        await until("the successor leads", lambda: its.leader == "master 1")  # 30 s before the next ordinary look
        assert await its.tokens(known) == 2 * BLOCK


async def test_a_master_that_dies_is_unknown_at_once_and_one_that_comes_back_is_noticed() -> None:
    known = prompt(3)
    async with scene() as its:
        its.put(known, range(3))
        assert await its.tokens(known) == 3 * BLOCK
        await its.master.__aexit__(None, None, None)
        assert await within(0.5, its.tokens(prompt(3, begins=1))) is None
        assert await within(0.5, its.tokens(known)) is None  # its last word is not believed either
        async with MooncakeMaster(MasterOptions(port=its.master.port)):
            await until("it leads again", lambda: its.leader is not None)
            assert await its.tokens(known) == 0  # it has started with nothing


async def within(seconds: float, work: Awaitable[int | None]) -> int | None:
    async with asyncio.timeout(seconds):
        return await work
