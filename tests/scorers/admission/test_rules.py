"""What holds for every admission rule, whatever it decides: nothing is lost, everything is given back, and the same
calls give the same verdicts, also where another rule takes over in the middle.
"""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features.admission.controller import AdmissionController
from router.features.admission.verdicts import Admitted, Arrival, ComputedPrompt
from scorers.admission.contract import Admission, AdmissionRule, AgentProgram, FleetMemory, TargetMemory
from scorers.registry import load_registry
from tests.suites.properties import examples

REGISTRY = load_registry()
NAMES = REGISTRY.names(AdmissionRule)
MAX_WAIT_S, IDLE_S = 100.0, 300.0
FLEET = FleetMemory(1000, (TargetMemory("a/0", 600), TargetMemory("b/0", 400)), 0.5)

STEP = st.one_of(
    st.tuples(
        st.just("asks"), st.sampled_from(["a", "b", "c", "d", None]), st.integers(0, 600), st.none() | st.integers(0, 9)
    ),
    st.tuples(st.just("answered"), st.integers(0, 99), st.integers(1, 600), st.integers(0, 9)),
    st.tuples(st.just("left"), st.integers(0, 99), st.just(0), st.just(0)),
    st.tuples(st.just("time"), st.integers(0, 40), st.just(0), st.just(0)),
    st.tuples(st.just("switch"), st.sampled_from(NAMES), st.just(0), st.just(0)),
    st.tuples(st.just("fleet"), st.sampled_from([0, 1, 2]), st.just(0), st.just(0)),
)


def build(name: str) -> AdmissionRule:
    return REGISTRY.build(AdmissionRule, name, {"per_target": 2} if name == "concurrency" else {})


class Story:
    """Plays steps against a controller and notes every verdict."""

    def __init__(self, name: str, *, pooled: bool = False) -> None:
        self.controller = AdmissionController(build(name), MAX_WAIT_S, IDLE_S, pooled=pooled)
        self.controller.set_fleet(FLEET)
        self.now = 0.0
        self.running: list[Admission] = []
        self.waiting: list[Admission] = []
        self.verdicts: list[Any] = []

    def play(self, what: str, about: Any, tokens: int, local: int | None) -> None:
        if what == "asks":
            session = None if about is None else about.encode()
            verdict = self.controller.arrive(Arrival(session, tokens, local), self.now)
            (self.running if isinstance(verdict, Admitted) else self.waiting).append(verdict.admission)
            if isinstance(verdict, Admitted):
                self.begin(verdict.admission)
            self.verdicts.append(type(verdict).__name__)
        elif what == "time":
            self.now += about
        elif what == "switch":
            self.controller.switch(build(about), MAX_WAIT_S, IDLE_S, self.now)
        elif what == "fleet":
            targets = FLEET.targets[:about]
            size = sum(memory.capacity_tokens or 0 for memory in targets)
            self.controller.set_fleet(FleetMemory(size if targets else None, targets))
        elif what == "answered" and about < len(self.running):
            computed = ComputedPrompt(tokens, tokens + 10, local, 1.0)
            self.controller.on_answer(self.running.pop(about), computed, self.now)
        elif what == "left" and about < len(self.running) + len(self.waiting):
            turn = [*self.running, *self.waiting][about]
            (self.running if turn in self.running else self.waiting).remove(turn)
            self.controller.on_leave(turn, self.now)
            self.controller.on_leave(turn, self.now)  # a second time does nothing
        self.release()

    def begin(self, admission: Admission) -> None:
        self.controller.on_placed(admission, "ab"[len(self.verdicts) % 2] + "/0", self.now)

    def release(self) -> None:
        released = self.controller.release_waiting(self.now)
        for admission in released.admitted:
            self.waiting.remove(admission)
            self.running.append(admission)
            self.begin(admission)
        for held in released.refused:
            assert self.now - held.admission.since_s >= MAX_WAIT_S
            self.waiting.remove(held.admission)
        self.verdicts.append((len(released.admitted), len(released.refused)))
        stand = [held.admission for held in self.controller.state(self.now).waiting]
        assert sorted(map(id, stand)) == sorted(map(id, self.waiting))
        assert (self.controller.next_s is None) == (not self.waiting)

    def end(self) -> None:
        for turn in [*self.running, *self.waiting]:
            self.controller.on_leave(turn, self.now)
        self.now += 10_000
        state = self.controller.state(self.now)
        assert (state.known, state.live) in [(0, None), (0, (0, 0))]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("name", NAMES)
@examples(60)
@given(st.lists(STEP, max_size=50))
def test_nothing_is_lost_everything_is_given_back_and_a_replay_decides_alike(
    name: str, pooled: bool, steps: list[tuple[str, Any, int, int | None]]
) -> None:
    stories = [Story(name, pooled=pooled), Story(name, pooled=pooled)]
    for story in stories:
        for step in steps:
            story.play(*step)
        story.end()
    assert stories[0].verdicts == stories[1].verdicts


@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_sessions_at_once_all_begin_in_time(name: str) -> None:
    """Each is as large as a sixth of the larger target and sends one request, which takes 5 s."""
    story = Story(name)
    for number in range(1000):
        story.play("asks", f"s{number}", 100, None)
    story.controller.switch(build(name), 1e6, 10.0, story.now)
    seen = 0
    while story.waiting or story.running:
        story.now += 5.0
        for turn in list(story.running):
            story.running.remove(turn)
            story.controller.on_answer(turn, ComputedPrompt(100, 100, 0, 1.0), story.now)
            seen += 1
        story.release()
        assert story.now < 10_000
    assert seen == 1000


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_capacity_admits_everything_but_a_number_of_requests(name: str) -> None:
    story = Story(name)
    story.play("fleet", 0, 0, None)
    for number in range(50):
        story.play("asks", str(number), 10**6, None)
    assert not story.waiting


def kept(root: object) -> list[object]:
    """Return the programs and admissions that `root` still refers to, directly or not."""
    found, seen, ahead = [], {id(root)}, [root]
    while ahead:
        for each in gc.get_referents(ahead.pop()):
            if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType):
                seen.add(id(each))
                ahead.append(each)
                if isinstance(each, Admission | AgentProgram):
                    found.append(each)
    return found


@pytest.mark.parametrize("late", [0, 8])
@pytest.mark.parametrize("name", NAMES)
def test_500_sessions_at_once_leave_nothing_behind(name: str, late: int) -> None:
    """Those that begin are answered or fail, the clients of most others leave, in the moment in which many could begin,
    and `late` wait too long. Then all are silent for longer than a session is remembered.
    """
    story = Story(name)
    for number in range(500):
        story.play("asks", None if number % 16 == 0 else f"s{number}", 30, None)
    assert len(kept(story.controller)) >= 500
    for second in range(20):
        story.now += 1.0
        for number, admission in enumerate(story.running):
            story.controller.on_first_token(admission, story.now)
            if (number + second) % 2:
                story.controller.on_answer(admission, ComputedPrompt(30, 40, 0, 1.0), story.now)
            else:
                story.controller.on_leave(admission, story.now)
        story.running = list(story.controller.release_waiting(story.now, at_most=1).admitted)
        story.waiting = [held.admission for held in story.controller.state(story.now).waiting]
    for admission in [*story.running, *story.waiting[: len(story.waiting) - late]]:
        story.controller.on_leave(admission, story.now)
    story.now += MAX_WAIT_S
    for admission in story.controller.release_waiting(story.now).admitted:
        story.controller.on_leave(admission, story.now)
    story.now += 10_000
    story.controller.release_waiting(story.now)
    assert kept(story.controller) == []
    assert not story.controller._refused
