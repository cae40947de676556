"""A rollout as stories: a router that is a list of engines, a command that is a script, and a clock of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from router.clock import ManualClock
from router.errors import ConfigError, WarmrouteError
from router.operate.rollout.engine import EngineReading
from router.operate.rollout.figures import TrafficFigures
from router.operate.rollout.rollout import (
    Rollout,
    RolloutBounds,
    RolloutStep,
    RolloutStopped,
    RolloutTimes,
    find_broken,
)

FAST = {0.1: 100.0, 1.0: 100.0, float("inf"): 100.0}
CALM = TrafficFigures(100, 0, 1000, 800, FAST)
TIMES = RolloutTimes(look_s=2, drain_s=20, restart_s=60, settle_s=5)


def sight(id: str, state: str = "ready", joins: int = 1, requests: int = 0, model: str = "m") -> EngineReading:
    return EngineReading(id, f"http://{id}", state, joins, (model,), requests, {f"{id}/0": "live"}, 0, None)


class Fleet:
    """A `RolloutRouter`. `script` is called with every second that passes, and changes `engines` and `now`."""

    def __init__(self, *engines: EngineReading) -> None:
        self.clock = ManualClock(100.0)
        self.by_id = {engine.id: engine for engine in engines}
        self.now = CALM
        self.done: list[str] = []
        self.wrong: dict[str, str] = {}

    def engines(self) -> list[EngineReading]:
        return list(self.by_id.values())

    def change(self, id: str, **changes: object) -> None:
        self.by_id[id] = self.by_id[id]._replace(**changes)  # type: ignore[arg-type]

    def drain(self, engine: str, on: bool) -> None:
        self.done.append(f"{'drain' if on else 'undrain'} {engine}")
        self.change(engine, state="draining" if on else "ready")

    def figures(self) -> TrafficFigures:
        return self.now

    def prove(self, engine: str) -> dict[str, str]:
        self.done.append(f"prove {engine}")
        return dict(self.wrong)

    def restart(self, engine: EngineReading) -> Command:
        self.done.append(f"restart {engine.id}")
        return Command(self, engine.id)

    def roll(
        self, then: Callable[[RolloutStep], None] = lambda step: None, *names: str, by_others: bool = False
    ) -> list[RolloutStep]:
        starter = None if by_others else self.restart
        running = Rollout(self, starter, self.prove, self.clock, RolloutBounds(), TIMES)
        steps = []
        for step in running.run(running.choose(names)):
            steps.append(step)
            self.clock.advance(1.0)
            then(step)
        return steps


class Command:
    """It takes three looks; at the second one the engine is down, at its end it is another process."""

    def __init__(self, fleet: Fleet, id: str, code: int = 0) -> None:
        self.looks = 0
        self.fleet, self.id, self.code = fleet, id, code

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks == 2:
            self.fleet.change(self.id, state="down")
        if self.looks < 3:
            return None
        self.fleet.change(self.id, state="draining", joins=self.fleet.by_id[self.id].joins + 1)
        return self.code

    def terminate(self) -> None:
        self.fleet.done.append(f"terminate {self.id}")


def stages(steps: Sequence[RolloutStep]) -> list[tuple[str | None, str]]:
    return list(dict.fromkeys((step.engine, step.stage) for step in steps))


def test_one_engine_after_the_other_and_each_is_proved_before_it_serves() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    steps = fleet.roll()
    assert fleet.done == [
        *("prove a", "drain a", "restart a", "prove a", "undrain a"),
        *("prove b", "drain b", "restart b", "prove b", "undrain b"),
    ]
    each = ("drain", "restart", "prove", "settle")
    assert stages(steps) == [
        (None, "look"),
        *(("a", one) for one in each),
        *(("b", one) for one in each),
        (None, "done"),
    ]


def test_requests_are_waited_for_and_too_long_ones_end_it() -> None:
    fleet = Fleet(sight("a", requests=2), sight("b"))

    def finish(step: RolloutStep) -> None:
        if step.stage == "drain" and "restart a" not in fleet.done:
            fleet.change("a", requests=max(0, fleet.by_id["a"].requests - 1))

    fleet.roll(finish, "a")
    assert "undrain a" in fleet.done
    stuck = Fleet(sight("a", requests=2), sight("b"))
    with pytest.raises(RolloutStopped, match="still has 2 requests; it is undrained"):
        stuck.roll()
    assert stuck.done == ["prove a", "drain a", "undrain a"]


def test_who_gives_up_while_an_engine_drains_undrains_it() -> None:
    fleet = Fleet(sight("a", requests=1), sight("b"))
    running = Rollout(fleet, fleet.restart, fleet.prove, fleet.clock, RolloutBounds(), TIMES._replace(look_s=0))
    steps = running.run(running.choose())
    assert next(steps).stage == "drain"
    steps.close()
    assert fleet.done == ["prove a", "drain a", "undrain a"]


def test_a_failed_command_stops_it_and_the_engine_stays_drained() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    fleet.restart = lambda engine: Command(fleet, engine.id, code=3)  # type: ignore[method-assign]
    with pytest.raises(RolloutStopped, match="a: the command failed with 3; the engine stays drained"):
        fleet.roll()
    assert fleet.done == ["prove a", "drain a"]


def test_a_command_that_restarts_nothing_is_noticed() -> None:
    fleet = Fleet(sight("a"), sight("b"))

    class Idle(Command):
        def poll(self) -> int | None:
            return 0

    fleet.restart = lambda engine: Idle(fleet, engine.id)  # type: ignore[method-assign]
    with pytest.raises(RolloutStopped, match=r"did not come back in time \(no new process was seen"):
        fleet.roll()


@pytest.mark.parametrize("pod", ["ns/a-0", "ns/another"])  # of a StatefulSet, or of a Deployment
def test_a_pod_comes_back_under_another_id_and_is_drained_until_it_is_proved(pod: str) -> None:
    fleet = Fleet(sight("a.1")._replace(pod="ns/a-0"), sight("b.1")._replace(pod="ns/b-0"))

    class Replaced(Command):
        def poll(self) -> int | None:
            self.looks += 1
            if self.looks == 2:
                del fleet.by_id["a.1"]
            if self.looks == 3:
                state = "joining" if pod == "ns/a-0" else "ready"
                fleet.by_id["a.2"] = sight("a.2", state, joins=1)._replace(pod=pod, warming=True)
            return None if self.looks < 3 else 0

    def warm(step: RolloutStep) -> None:
        if step.stage == "restart" and step.note == "it is warmed":
            fleet.change("a.2", warming=False)

    fleet.restart = lambda engine: Replaced(fleet, engine.id)  # type: ignore[method-assign]
    steps = fleet.roll(warm, "a.1")
    assert fleet.done == ["prove a.1", "drain a.1", "drain a.2", "prove a.2", "undrain a.2"]
    assert stages(steps)[-3:] == [("a.2", "prove"), ("a.2", "settle"), (None, "done")]


def test_a_pod_of_another_model_does_not_take_its_place() -> None:
    fleet = Fleet(sight("a.1")._replace(pod="ns/a-0"), sight("b.1"))

    def replace(step: RolloutStep) -> None:
        if step.stage == "restart" and fleet.by_id.pop("a.1", None):
            fleet.by_id["c.1"] = sight("c.1", model="other")._replace(pod="ns/c-0")

    with pytest.raises(RolloutStopped, match="did not come back in time"):
        fleet.roll(replace, "a.1", by_others=True)
    assert "drain c.1" not in fleet.done


def test_somebody_else_restarts_it() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    looks = iter(range(100))

    def restart(step: RolloutStep) -> None:
        if step.stage == "restart" and next(looks) == 3:
            fleet.change("a", joins=2)

    steps = fleet.roll(restart, "a", by_others=True)
    assert sum(step.stage == "restart" for step in steps) == 4
    assert fleet.done == ["prove a", "drain a", "prove a", "undrain a"]


def test_an_engine_is_not_restarted_before_it_is_handed_off() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    seen: list[str] = []

    def hand_off(step: RolloutStep) -> None:
        if step.stage == "drain":
            seen.append(step.note)
            fleet.change("a", handing_off=len(seen) < 4)

    fleet.roll(hand_off, "a")
    assert seen == ["", *["it is handed off"] * 3]


def test_an_engine_is_warmed_before_it_serves() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    seen: list[str] = []

    def warm(step: RolloutStep) -> None:
        if step.stage == "restart":
            seen.append(step.note)
            ready = fleet.by_id["a"].joins == 2
            fleet.change("a", warming=not ready or len(seen) < 5)

    fleet.roll(warm, "a")
    assert "it is warmed" in seen
    assert len(seen) == 5
    assert fleet.done[-2:] == ["prove a", "undrain a"]


def test_a_router_that_does_not_answer_ends_it_and_the_drained_engine_is_named() -> None:
    fleet = Fleet(sight("a"), sight("b"))

    def fail() -> list[EngineReading]:
        raise WarmrouteError("no answer")

    running = Rollout(fleet, fleet.restart, fleet.prove, fleet.clock, RolloutBounds(), TIMES._replace(look_s=0))
    steps = running.run(running.choose())
    while next(steps).stage != "restart":
        assert running.drained == "a"
    fleet.engines = fail  # type: ignore[method-assign]
    with pytest.raises(WarmrouteError, match="no answer"):
        next(steps)
    assert running.drained == "a"
    assert fleet.done[-1] == "terminate a"  # the command ran still


def test_an_engine_that_is_not_as_it_was_stays_drained() -> None:
    fleet = Fleet(sight("a"), sight("b"))
    fleet.wrong = {"limits.keepalive": "so it was before"}

    def break_events(step: RolloutStep) -> None:
        if step.stage == "restart":
            fleet.wrong["events.on"] = "KV events are off"
            fleet.change("a", streams={}, models=("other",))

    with pytest.raises(RolloutStopped) as stopped:
        fleet.roll(break_events)
    for text in ("does not serve m", "a/0: it publishes no KV events", "KV events are off", "stays drained"):
        assert text in str(stopped.value)
    assert "so it was before" not in str(stopped.value)
    assert fleet.by_id["a"].state == "draining"


@pytest.mark.parametrize(("stage", "ends"), [("drain", "undrained"), ("restart", "no further engine was touched")])
def test_beyond_a_bound_no_further_engine_is_touched(stage: str, ends: str) -> None:
    fleet = Fleet(sight("a", requests=1), sight("b"))

    def fail(step: RolloutStep) -> None:
        if step.stage == stage:
            fleet.now = CALM._replace(requests=150, failed=1)
        if step.stage == "drain" and stage != "drain":
            fleet.change("a", requests=0)

    with pytest.raises(RolloutStopped, match=f"1 of 50 requests failed.*{ends}"):
        fleet.roll(fail)
    assert fleet.by_id["a"].state == fleet.by_id["b"].state == "ready"
    assert ("restart a" in fleet.done) == (stage == "restart")
    assert "drain b" not in fleet.done


def test_the_last_engine_of_a_model_is_not_touched() -> None:
    fleet = Fleet(sight("a"), sight("b"))

    def die(step: RolloutStep) -> None:
        if step.stage == "look":
            fleet.change("b", state="down")

    with pytest.raises(RolloutStopped, match="a is the only engine left that serves its model"):
        fleet.roll(die)
    assert "drain a" not in fleet.done


@pytest.mark.parametrize(
    ("engines", "names", "says"),
    [
        ([sight("a"), sight("b", "down")], (), "b is down"),
        ([sight("a"), sight("b", model="x")], (), "a is the only engine that serves m"),
        ([sight("a"), sight("b")], ("zz",), "unknown engine zz"),
        ([], (), "no engines"),
    ],
)
def test_what_cannot_be_rolled(engines: list[EngineReading], names: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Fleet(*engines).roll(lambda step: None, *names)


def test_bounds() -> None:
    bounds = RolloutBounds(failed_share=0.01, p90_factor=2.0, hits_factor=0.5)
    slow = {0.1: 0.0, 1.0: 100.0, float("inf"): 100.0}
    assert find_broken(CALM, CALM, bounds) is None
    assert find_broken(CALM._replace(failed=1), CALM, bounds) is None
    assert find_broken(CALM._replace(failed=2), CALM, bounds) == "2 of 100 requests failed, 1.00% may"
    assert find_broken(CALM._replace(failed=2), CALM._replace(failed=1), bounds) is None
    assert find_broken(CALM._replace(ttft_buckets=slow), CALM, bounds) == (
        "p90 of the time to first token is 0.91 s, before 0.09 s"
    )
    assert find_broken(CALM._replace(cached_tokens=399), CALM, bounds) == "40% of the prompt tokens hit, before 80%"
    assert find_broken(CALM._replace(requests=19, cached_tokens=0), CALM, bounds) is None  # too few to tell
