"""ThunderAgent's thresholds with the arithmetic beside them: one target of 10,000 tokens, 100 more per program."""

from __future__ import annotations

from scorers.admission.contract import Admission, AgentProgram, FleetMemory, Queue, QueueName, TargetMemory
from scorers.admission.thunderagent import Thunderagent

FLEET = FleetMemory(10_000, (TargetMemory("a/0", 10_000),))


class Line(list[Admission]):
    @property
    def first(self) -> Admission | None:
        return self[0] if self else None


class Scene:
    def __init__(self) -> None:
        self.rule = Thunderagent()
        self.rule.adopt((), 0.0, idle_s=300.0, pooled=False)
        self.queues: dict[QueueName, Queue] = {"live": Line(), "parked": Line(), "again": Line(), "new": Line()}

    def asks(self, program: AgentProgram, tokens: int, now: float) -> Admission | None:
        """Return the admission if it begins, else None: it waits."""
        queue: QueueName = "new" if program.prompt_tokens is None else "parked"
        admission = Admission(program, tokens, None, queue, now)
        self.rule.advance(FLEET, now)
        self.rule.arrived(program, now)
        program.silent_since_s = None
        if self.rule.begins(admission, self.queues, FLEET, now):
            self.begins(admission, now)
            return admission
        self.queues[queue].append(admission)  # type: ignore[attr-defined]
        program.waiting += 1
        return None

    def begins(self, admission: Admission, now: float) -> None:
        admission.state, program = "running", admission.program
        program.running, program.context_tokens, program.target = 1, admission.prompt_tokens, "a/0"
        self.rule.began(admission, now)
        self.rule.placed(admission, now)

    def ends(self, admission: Admission, now: float) -> None:
        program = admission.program
        program.running, program.prompt_tokens = 0, admission.prompt_tokens
        self.rule.ended(admission, None, now)
        program.silent_since_s = now
        self.rule.idle(program, now)

    def resumed(self, now: float) -> list[bytes | None]:
        self.rule.advance(FLEET, now)
        found = []
        while (admission := self.rule.next_to_begin(self.queues, FLEET, now)) is not None:
            self.queues[admission.queue].remove(admission)  # type: ignore[attr-defined]
            admission.program.waiting -= 1
            self.begins(admission, now)
            found.append(admission.program.name)
        return found


def test_a_new_program_begins_while_85_percent_hold_it() -> None:
    """4,000 + 100 used leave 8,500 - 4,100 = 4,400 for another one and its 100."""
    for tokens, begins in [(4300, True), (4301, False)]:
        scene = Scene()
        assert scene.asks(AgentProgram(b"a"), 4000, 0.0)
        assert (scene.asks(AgentProgram(b"b"), tokens, 0.0) is not None) == begins


def test_above_95_percent_the_smallest_silent_ones_are_paused_until_80_are_left() -> None:
    """Silent ones of 1,000, 2,000 and 2,500 and a running one of 4,200: 9,700 and 400. Without the first one it is
    9,000, without the second 6,900.
    """
    scene = Scene()
    programs = [AgentProgram(b"1000"), AgentProgram(b"2000"), AgentProgram(b"2500"), AgentProgram(b"4200")]
    turns = [scene.asks(program, 100, 0.0) for program in programs]
    for program, turn in zip(programs, turns, strict=True):
        assert turn is not None
        turn.prompt_tokens = program.context_tokens = int(program.name or 0)
        scene.rule.began(turn, 0.0)
    for turn in turns[:3]:
        assert turn is not None
        scene.ends(turn, 4.0)
    assert scene.rule.expected_load() == (4, 10_100)
    scene.rule.advance(FLEET, 5.0)
    assert scene.rule.expected_load() == (2, 6900)
    assert scene.asks(programs[0], 1000, 5.5) is None, "paused"
    assert scene.asks(programs[2], 2500, 5.5), "not paused"


def test_a_running_one_is_only_marked_and_paused_when_its_request_ends() -> None:
    scene = Scene()
    program = AgentProgram(b"a")
    turn = scene.asks(program, 9800, 0.0)
    assert turn is not None
    scene.rule.advance(FLEET, 5.0)
    assert scene.rule.expected_load() == (1, 9900)
    scene.ends(turn, 6.0)
    assert scene.rule.expected_load() == (0, 0)


def test_the_largest_is_resumed_first_and_answered_ones_before_new_ones() -> None:
    """8,000 are used until 10 s; then 8,500 are free: 4,100 and 3,100 leave 1,300, too little for 2,100, and the new
    one's 600 fit.
    """
    scene = Scene()
    turn = scene.asks(AgentProgram(b"first"), 7900, 0.0)
    assert turn is not None
    small, middle, large = AgentProgram(b"small"), AgentProgram(b"middle"), AgentProgram(b"large")
    for program in (small, middle, large):
        program.prompt_tokens = 1
    assert not scene.asks(AgentProgram(b"new"), 500, 0.0)
    for program, tokens in [(small, 2000), (large, 4000), (middle, 3000)]:
        assert not scene.asks(program, tokens, 1.0)
    scene.ends(turn, 2.0)
    scene.rule.forgotten(turn.program)
    scene.begins(Admission(AgentProgram(b"other"), 100, None, "new", 3.0), 3.0)
    assert scene.resumed(4.0) == [], "every 5 s"
    assert scene.resumed(5.0) == [b"large", b"middle", b"new"]


def test_after_half_an_hour_it_is_resumed_anyway() -> None:
    scene = Scene()
    assert scene.asks(AgentProgram(b"a"), 8000, 0.0)
    assert not scene.asks(AgentProgram(b"b"), 8000, 0.0)
    assert scene.resumed(1799.0) == []
    assert scene.resumed(1805.0) == [b"b"]
