"""Every alert that a fault can raise is raised and resolved on a real Prometheus, and no other one fires meanwhile.

Two deployments, each a job: `north` has two routers, an emulated fleet under load, and engines with models of their own
for faults that would disturb the others; `south` has one router and no fault, so nothing of it may fire. The faults of
the game days are among them (`GAMEDAY`). The rows of a round are played side by side. The rules are the shipped ones
with shorter durations (`write_faster_rules`); what they do on other series is in `test_alerts.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from router.config.sections.gameday import FaultKind
from router.lab.local_stack.guard import ProcessGuard
from tests.gateway.alerts import read_rules, write_faster_rules
from tests.gateway.conftest import need
from tests.gateway.deployments import FIRES_S, North, run_north, run_south
from tests.gateway.prometheus import Prometheus
from tests.gateway.provocations import GAMEDAY, NEVER, ROUNDS, Row

NORTH, SOUTH = "north", "south"
CALM_SCRAPES = 12


class Played(NamedTuple):
    """What fired while the rows of a round were played: names of alerts by job."""

    fired: Mapping[str, set[str]]
    took_s: float


LINGER = {rule.alert for rule in read_rules() if any(f"[{long}]" in rule.expr for long in ("15m", "30m", "1h"))}
"""They look back for so long that the next round does not wait until they are resolved."""
MACHINE = {"WarmrouteRouterSlow", "WarmrouteEngineSlow"}
"""They fire where the machine is busy with something else, too."""


async def play_round(rows: Mapping[str, Row], north: North, prometheus: Prometheus) -> Played:
    """Play the rows until all alerts fire that they are to raise, and wait until these are resolved."""
    begun, expected = time.time(), expect(rows)
    before = names(await prometheus.firing())
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(one.begin(north)) for one in rows.values()))
        end = time.time() + FIRES_S
        while time.time() < end and not expected <= names(await prometheus.firing(begun)):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    await resolved(prometheus, LINGER | MACHINE)
    fired: dict[str, set[str]] = {}
    for one in await prometheus.firing(begun):
        if one["alertname"] in expected or one["alertname"] not in before:
            fired.setdefault(one.get("job", NORTH), set()).add(one["alertname"])
    return Played(fired, time.time() - begun)


async def resolved(prometheus: Prometheus, others: set[str]) -> set[str]:
    """Wait until no alert fires but `others`; return those that still do."""
    end = time.time() + FIRES_S
    while (left := names(await prometheus.firing()) - others) and time.time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return left


def expect(rows: Mapping[str, Row]) -> set[str]:
    return set[str]().union(*(one.fires for one in rows.values()))


def names(alerts: Sequence[Mapping[str, str]]) -> set[str]:
    return {one["alertname"] for one in alerts}


class Whole(NamedTuple):
    calm: set[str]  # what fired before any fault
    rounds: list[Played]
    left: set[str]  # what fires a while after the last one


@pytest.fixture(scope="module")
def whole(guard: ProcessGuard, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    need("prometheus")
    return asyncio.run(play_all(tmp_path_factory.mktemp("alerts"), guard))


async def play_all(folder: Path, guard: ProcessGuard) -> Whole:
    write_faster_rules(folder / "rules.yaml")
    async with AsyncExitStack() as stack:
        for job in (NORTH, SOUTH):
            (folder / job).mkdir()
        north = await stack.enter_async_context(run_north(folder / NORTH))
        south = await stack.enter_async_context(run_south(folder / SOUTH))
        urls = {NORTH: north.urls, SOUTH: [router.url for router in south.routers]}
        jobs = {job: [url.removeprefix("http://") for url in each] for job, each in urls.items()}
        running = Prometheus.run(jobs, folder, guard, rules=folder / "rules.yaml")
        prometheus = await stack.enter_async_context(running)
        while await prometheus.scrapes() < CALM_SCRAPES:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        calm = names(await prometheus.firing(time.time() - CALM_SCRAPES))
        rounds = [await play_round(rows, north, prometheus) for rows in ROUNDS]
        return Whole(calm, rounds, await resolved(prometheus, MACHINE))


@pytest.mark.long
def test_nothing_fires_without_a_fault(whole: Whole) -> None:
    assert whole.calm - MACHINE == set()


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(ROUNDS)))
def test_faults_raise_their_alerts_and_no_others(whole: Whole, number: int) -> None:
    may = set[str]().union(*(one.may for one in ROUNDS[number].values()))
    fired = whole.rounds[number].fired.get(NORTH, set())
    assert expect(ROUNDS[number]) <= fired <= expect(ROUNDS[number]) | may | MACHINE


@pytest.mark.long
def test_no_alert_is_of_the_other_deployment(whole: Whole) -> None:
    assert [one.fired.get(SOUTH, set()) - MACHINE for one in whole.rounds] == [set()] * len(ROUNDS)


@pytest.mark.long
def test_everything_is_resolved(whole: Whole) -> None:
    assert whole.left == set()


def test_every_alert_is_provoked_or_has_a_reason() -> None:
    provoked = set[str]().union(*map(expect, ROUNDS))
    assert provoked & NEVER.keys() == set()
    assert provoked | NEVER.keys() == {rule.alert for rule in read_rules()}


def test_every_fault_of_the_game_days_is_a_row() -> None:
    assert set(GAMEDAY) == set(get_args(FaultKind))
    assert {name for name in GAMEDAY.values() if name is not None} <= {name for rows in ROUNDS for name in rows}
