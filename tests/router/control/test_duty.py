"""Which process of a host has the duties, and what starts when this one takes them."""

from __future__ import annotations

from router.control.duty import Duty


def test_a_process_alone_has_the_duties_from_its_start() -> None:
    duty, started = Duty("a", held=True), list[str]()
    duty.when_taken(lambda: started.append("files"))
    assert (duty.held, duty.holder, started) == (True, "a", ["files"])


def test_a_worker_takes_them_once_when_the_one_before_has_ended() -> None:
    duty, started = Duty("b", held=False), list[str]()
    assert (duty.held, duty.holder) == (False, None)
    duty.follow("a")
    for what in ("files", "usage"):
        duty.when_taken(lambda what=what: started.append(what))  # type: ignore[misc]
    duty.follow(None)
    assert (duty.held, duty.holder, started) == (False, None, [])
    for _ in range(2):
        duty.follow("b")
        assert (duty.held, started) == (True, ["files", "usage"])
    duty.when_taken(lambda: started.append("late"))
    assert started == ["files", "usage", "late"]
