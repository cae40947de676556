"""A grid on small cells: it simulates, keeps, goes on where it was, and says what failed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from router.lab.simulator.outcome import RequestEnd, SimulationOutcome
from router.lab.simulator.scenario import EventLags
from tests.agreement import grid, measured, trace
from tests.agreement.cells import Cell
from tests.agreement.grid import Grid, begun_per_s, first_pass, measure, tasks
from tests.agreement.ground import Effort
from tests.agreement.ground import ground as made_ground
from tests.agreement.served import policy
from tests.agreement.windows import Window

TINY = Effort("tiny", 40, 20.0)
CELL = Cell("codex", 2, 2, 0)
ARMS = {name: policy(name) for name in ("random", "warm")}


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_a_cell_becomes_a_scenario() -> None:
    made = made_ground(Cell("codex", 2, 3, 40_000, "all"), 1, TINY)
    assert made.at_once == 6
    assert made.scenario.instances == 3
    assert made.scenario.profile.kv_tokens == 1_000_000
    assert made.scenario.store is not None
    assert made.scenario.store.link.tokens_per_s == 40_000
    assert made.scenario.lags == EventLags(events_s=0.2, metrics_s=0.5)
    assert made.scenario.trouble.events_lost == 0.05
    assert [failure.kind for failure in made.scenario.trouble.failures] == ["slow"]
    assert 0 < made.scenario.trouble.router_starts_s < made.window.since_s


def test_open_cells_of_shared_prompts_have_the_memory_of_the_profile() -> None:
    assert made_ground(Cell("few", 0.9, 2, 0), 1, TINY).scenario.profile.kv_tokens == 307_328


def test_a_fleet_of_two_speeds_is_loaded_by_the_speed_of_each() -> None:
    even, mixed = (made_ground(Cell("tools", 0.6, 4, 0, fleet=fleet), 1, TINY) for fleet in ("", "speeds"))
    new, old = (mixed.scenario.profile_of(number) for number in (0, 1))
    assert old.us_per_token == pytest.approx(3.17 * new.us_per_token, rel=0.01)
    assert old.kv_tokens == new.kv_tokens
    rates = [len(made.workload.sessions) / made.window.until_s for made in (even, mixed)]
    assert 0.5 < rates[1] / rates[0] < 0.8


def test_instances_join_and_leave_within_the_window() -> None:
    made = {
        fleet: made_ground(Cell("tools", 0.6, 7, 0, fleet=fleet), 1, TINY) for fleet in ("cold", "grows", "shrinks")
    }
    (cold,) = made["cold"].scenario.presences
    assert (cold.instance, cold.joins_s) == (6, made["cold"].window.since_s)
    for fleet in ("grows", "shrinks"):
        window, presences = made[fleet].window, made[fleet].scenario.presences
        assert [one.instance for one in presences] == [5, 6]  # a quarter of 7
        assert all(window.since_s < (one.joins_s or one.leaves_s) < window.until_s for one in presences)


def test_bursts_come_in_4_of_every_20_s() -> None:
    served = made_ground(Cell("tools", 0.6, 2, 0, rate="bursts"), 1, TINY).workload
    inside = [session.start_s % 20 < 4 for session in served.sessions]
    assert sum(inside) / len(inside) == pytest.approx(0.6, abs=0.1)


def test_tenants_are_no_closed_loop() -> None:
    made = made_ground(Cell("mixed", 2, 2, 0), 1, TINY)
    assert made.at_once is None
    assert sum(len(session.turns) > 1 for session in made.workload.sessions) >= 4


def test_an_open_cell_has_its_warm_up_and_its_window() -> None:
    made = made_ground(Cell("tools", 0.6, 2, 0), 1, TINY)
    assert made.at_once is None
    assert made.window.until_s - made.window.since_s >= 0.7 * TINY.window_s
    assert made.workload.sessions[-1].start_s == made.window.until_s


def test_a_window_has_once_to_twice_its_requests_and_is_longer_for_long_answers() -> None:
    effort = Effort("some", 100, 60.0)
    assert effort.lasts_s(per_s=1.0) == 100.0  # for 100 requests
    assert effort.lasts_s(per_s=2.0) == 60.0  # the window: 120 requests
    assert effort.lasts_s(per_s=10.0) == 20.0  # for 200 requests
    assert effort.lasts_s(per_s=10.0, least_s=80.0) == 80.0


def outcome_of(*requests: tuple[float, float], end: RequestEnd = RequestEnd.OK) -> SimulationOutcome:
    """`requests`: when each was sent and how long it waited for its first token, seconds."""
    made = SimulationOutcome(1)
    for sent_s, ttft_s in requests:
        made.arrived_s.append(sent_s)
        made.ttft_s.append(ttft_s)
        made.end.append(end)
    return made


def test_an_open_workload_is_served_as_fast_as_its_answers_begin() -> None:
    window = Window(10.0, 20.0)
    assert begun_per_s(outcome_of((11.0, 1.0), (12.0, 9.0), (15.0, 1.0)), window) == 0.2  # one began after the window
    assert begun_per_s(outcome_of((11.0, 1.0), end=RequestEnd.SHED), window) == 0.0


def test_nobody_serves_an_open_workload_faster_than_it_comes() -> None:
    backlog = [(5.0, 6.0), (6.0, 7.0), (11.0, 1.0)]  # two from before the window began in it
    assert begun_per_s(outcome_of(*backlog), Window(10.0, 20.0)) == 0.1


def test_a_closed_loop_has_the_throughput_of_its_ends() -> None:
    ours, agents = (
        measure(task).figures for task in tasks([Cell("tools", 0.6, 2, 0), CELL], {"warm": ARMS["warm"]}, [1], TINY)
    )
    assert ours is not None
    assert agents is not None
    window = made_ground(Cell("tools", 0.6, 2, 0), 1, TINY).window
    assert ours.requests_per_s == pytest.approx(ours.requests / (window.until_s - window.since_s), rel=0.05)
    assert agents.requests_per_s > 0


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, wanted = tmp_path / "grid.jsonl", tasks([CELL], ARMS, [1], TINY)
    first = Grid(file, console(), 1).run(wanted, "grid")
    assert [one.key.arm for one in first] == ["random", "warm"]
    assert all(one.figures is not None and one.figures.requests > 10 for one in first)
    monkeypatch.setattr(grid, "measure", lambda task: pytest.fail("it was measured before"))
    assert Grid(file, console(), 1).run(wanted, "grid") == first


def test_results_of_other_code_count_only_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, wanted = tmp_path / "grid.jsonl", tasks([CELL], {"warm": ARMS["warm"]}, [1], TINY)
    Grid(file, console(), 1).run(wanted, "grid")
    monkeypatch.setattr(measured, "code_digest", lambda: "other")
    assert not Grid(file, console(), 1).results
    assert len(Grid(file, console(), 1, accept_old=True).results) == 1


def test_a_task_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "BESIDE", Path("/nowhere"))
    monkeypatch.setenv(trace.VARIABLE, "/nowhere/trace.jsonl.gz")
    (task,) = tasks([Cell("conversation", 0.6, 2, 0)], {"warm": ARMS["warm"]}, [1], TINY)
    found = measure(task)
    assert found.figures is None
    assert found.failed is not None
    assert "NoTrace" in found.failed


def test_a_first_pass_leaves_the_winners_and_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "FIRST_PASS", (CELL,))
    monkeypatch.setattr(grid, "KEPT", 1)
    stay = first_pass(Grid(tmp_path / "grid.jsonl", console(), 1), ARMS, 1, TINY)
    assert "warm" in stay
