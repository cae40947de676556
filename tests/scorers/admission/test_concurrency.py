"""A cap on requests, in the order in which they came."""

from __future__ import annotations

from tests.scorers.admission.test_rules import Story


def test_two_per_target_run_and_whoever_came_first_is_next_whatever_its_queue() -> None:
    story = Story("concurrency")
    story.play("asks", "a", 100, None)
    story.play("answered", 0, 100, 0)
    for session in ("w", "x", "y", "z"):
        story.play("asks", session, 100, None)
    assert len(story.running) == 4, "two at each of two targets"
    story.play("time", 1, 0, 0)
    story.play("asks", "new", 100, None)
    story.play("time", 1, 0, 0)
    story.play("asks", "a", 100, None)
    assert [turn.queue for turn in story.waiting] == ["new", "parked"]
    story.play("left", 0, 0, 0)
    assert story.running[-1].program.name == b"new"
