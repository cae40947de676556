"""From what is asked to cells, or to everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.errors import ConfigError
from router.lab.simulator.scenario import EventLags, ReplicaLink, Trouble
from router.lab.sweep.cells import FleetOption, LoadLevel, SweepCell
from router.lab.sweep.spec import SweepSpec, make_cells

HEARD: list[str] = []


def asked(**more: Any) -> list[SweepCell]:
    plain: dict[str, Any] = {"policies": ["warm", "random"], "workload": "tools", "requests": 20}
    return make_cells(SweepSpec(**plain | more), HEARD.append)


def refusal(**more: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        asked(**more)
    return str(refused.value)


def test_every_combination_is_a_cell_policies_side_by_side() -> None:
    made = asked(instances="4,8", pool="off,40000", rho="0.6,0.9", seeds=2)
    assert len(made) == len({cell.name for cell in made}) == 2 * 2 * 2 * 2 * 2
    assert [cell.policy for cell in made[:4]] == ["warm", "random", "warm", "random"]
    assert [cell.seed for cell in made] == [1] * 16 + [2] * 16


def test_what_a_fleet_has_beside_its_gpus_and_what_it_suffers_multiply() -> None:
    made = asked(policies=["warm"], pool="off,40000", host_memory="off,90000", trouble="off,slow,dies")
    assert len({cell.fleet for cell in made}) == len(made) == 2 * 2 * 3
    assert [cell.fleet.trouble for cell in made[:3]] == ["off", "slow", "dies"]
    for cell in made:
        kinds = [failure.kind for failure in cell.scenario.trouble.failures]
        assert kinds == {"off": [], "slow": ["slow"], "dies": ["down"]}[cell.fleet.trouble]
        assert (cell.scenario.host is None) == (cell.fleet.host_memory == "off")


def test_one_router_has_nobody_to_tell() -> None:
    made = asked(policies=["warm"], routers="1,2", exchange="off,1")
    assert [(cell.scenario.routers, cell.scenario.exchange) for cell in made] == [
        (1, None),
        (2, None),
        (2, ReplicaLink(0.001)),
    ]


def test_what_is_not_said_is_as_stated() -> None:
    (cell,) = make_cells(SweepSpec(policies=["warm"], sessions=1), HEARD.append)
    assert cell.source.name == "codex"
    assert cell.load == LoadLevel("sessions", 8)
    assert cell.scenario.profile.name == "qwen3-32b-2xh100"
    assert cell.scenario.instances == 8
    assert cell.fleet == FleetOption(8)
    assert cell.scenario.store is cell.scenario.host is cell.scenario.admission is None
    assert cell.scenario.trouble == Trouble()
    assert cell.scenario.lags == EventLags(0.05, 0.25)
    assert asked()[0].load == LoadLevel("rho", 0.9)


def test_a_trace_is_played_as_recorded_at_any_fleet_unless_a_load_is_given(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    lines = [{"timestamp": 500 * n, "input_length": 9, "output_length": 5, "hash_ids": [n]} for n in range(5)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    of_trace: dict[str, Any] = {"policies": ["warm"], "workload": str(trace), "requests": None}
    assert [cell.load for cell in asked(**of_trace, instances="2,4")] == [LoadLevel("recorded", 2.0)] * 2
    assert [cell.load for cell in asked(**of_trace, rho="0.5")] == [LoadLevel("rho", 0.5)]


def test_the_rest_arrives(tmp_path: Path) -> None:
    (cell,) = asked(
        policies=["warm"], rate="2", admission=True, routers="2", sticky=True, prefills=3, lags="10:50", warmup_s=5.0,
        until_s=60.0, ttft_limit_s=30.0, tpot_limit_s=0.2, first_seed=7, staggered=False,
    )  # fmt: skip
    assert cell.load == LoadLevel("rate", 2.0)
    assert cell.scenario.admission is not None
    assert cell.scenario.admission.enabled
    assert (cell.scenario.routers, cell.scenario.prefills, cell.scenario.lags) == (2, 3, EventLags(0.01, 0.05))
    assert (cell.since_s, cell.until_s, cell.seed, cell.staggered) == (5.0, 60.0, 7, False)
    assert cell.limits == (30.0, 0.2)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    told = refusal(policies=["worm"], workload="tool", profile="qwen", until_s=1.0, warmup_s=2.0)
    assert 'unknown policy "worm": did you mean "warm"?' in told
    assert 'unknown workload "tool": did you mean "tools"?' in told
    assert 'unknown profile "qwen"' in told
    assert "--until: 1 s is not after --warmup, 2 s" in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prefills": 4, "instances": "8,4"}, "--prefills: 4 of 4 instances leave none to decode; give at most 3"),
        ({"routers": "1,9"}, "--routers: 9 routers for 8 instances"),
        ({"routers": "0"}, "--routers: found '0'"),
        ({"exchange": "on"}, "--exchange: found 'on'"),
        ({"routers": "1,2", "admission": True}, "give --sticky"),
        ({"rate": "1", "rho": "0.9"}, "--rate and --rho both set"),
        ({"sessions_per_instance": "8"}, "tools is an open workload"),
        ({"workload": "codex", "requests": None, "sessions": 1, "rho": "0.9"}, "codex is a closed loop"),
        ({"workload": "codex"}, "requests"),
        ({"rho": "0"}, "--rho: found '0'"),
        ({"instances": "four"}, "--instances: found 'four'"),
        ({"pool": "fast"}, "--pool: found 'fast'"),
        ({"lags": "50"}, "--lags: found '50'"),
        ({"host_memory": "fast"}, "--host-memory: found 'fast'"),
        ({"trouble": "slwo"}, '--trouble: unknown trouble "slwo": did you mean "slow"?'),
        ({"trouble": "bad-day", "instances": "8,2"}, "--trouble: bad-day: there is no instance 3 among 2"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], said: str) -> None:
    assert said in refusal(**more)
