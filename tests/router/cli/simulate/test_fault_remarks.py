"""Troubles in words."""

from __future__ import annotations

from math import inf

from router.cli.simulate.fault_remarks import FaultRemark, describe, remarks
from router.testbed.simulator.scenario import InstanceFailure, Trouble
from tests.router.testbed.sweep.cells import a_cell, a_result

DIES = ("dies", Trouble(failures=(InstanceFailure("down", 0, 60.0),), events_lost=0.05))


def test_each_thing_is_said_with_its_time() -> None:
    trouble = Trouble(
        failures=(InstanceFailure("down", 3, 300.0, 420.0), InstanceFailure("slow", 1, 0.0, factor=1.5)),
        events_lost=0.05,
        pool_away=((200.0, 260.0), (500.0, inf)),
        router_starts_s=60.0,
    )
    assert describe(trouble) == [
        FaultRemark(300.0, "instance 3 is down from 300 s to 420 s"),
        FaultRemark(0.0, "instance 1 takes 1.5 times as long per step all the time"),
        FaultRemark(0.0, "5 % of all event batches are lost"),
        FaultRemark(200.0, "the pool is away from 200 s to 260 s"),
        FaultRemark(500.0, "the pool is away from 500 s on"),
        FaultRemark(0.0, "the router starts at 60 s, before that requests go round robin"),
    ]


def test_a_line_per_trouble_and_none_for_none() -> None:
    cells = [a_cell(policy, trouble=trouble) for trouble in (("off", Trouble()), DIES) for policy in ("a", "b")]
    assert remarks(cells, [a_result(cell) for cell in cells]) == [
        "Trouble dies: instance 0 is down from 60 s on; 5 % of all event batches are lost."
    ]


def test_what_comes_after_the_end_is_named() -> None:
    short, long = (a_result(a_cell(trouble=DIES))._replace(took_s=took_s) for took_s in (59.0, 61.0))
    told = remarks([short.cell, long.cell], [short, long])
    assert told[1:] == ["Too late for 1 of its 2 cells: instance 0 is down from 60 s on."]
