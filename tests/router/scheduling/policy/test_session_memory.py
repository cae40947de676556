from router.scheduling.policy.session_memory import SessionMemory
from scorers.contract import View
from tests.suites.views import a_row, a_view


def of(session: str | None, model: str = "m") -> View:
    return a_view(a_row("a"), session=session, model=model)


def test_who_was_away_longest_is_forgotten_first() -> None:
    sessions = SessionMemory(size=2)
    for name, target in (("s", "a"), ("t", "b"), ("s", "c"), ("u", "d")):
        sessions.record(of(name), "whole", target)
    assert [sessions.last_target(of(name), "whole") for name in "stu"] == ["c", None, "d"]
    assert len(sessions) == 2


def test_prefill_halves_have_a_history_of_their_own() -> None:
    sessions = SessionMemory(size=9)
    sessions.record(of("s"), "prefill", "p")
    assert sessions.last_target(of("s"), "decode") is None
    sessions.record(of("s"), "whole", "a")
    assert (sessions.last_target(of("s"), "prefill"), sessions.last_target(of("s"), "decode")) == ("p", "a")


def test_equal_names_in_two_models_are_two_sessions() -> None:
    sessions = SessionMemory(size=9)
    sessions.record(of("s", "big"), "whole", "a")
    assert sessions.last_target(of("s", "small"), "whole") is None


def test_what_is_forgotten_is_gone_for_that_session_and_part_alone() -> None:
    sessions = SessionMemory(size=9)
    for name in "st":
        sessions.record(of(name), "whole", "a")
        sessions.record(of(name), "prefill", "p")
    sessions.forget(of("s"), "whole")
    sessions.forget(of("s"), "whole")
    assert [sessions.last_target(of(name), "whole") for name in "st"] == [None, "a"]
    assert sessions.last_target(of("s"), "prefill") == "p"


def test_no_session_no_memory() -> None:
    sessions = SessionMemory(size=9)
    sessions.record(of(None), "whole", "a")
    sessions.forget(of(None), "whole")
    assert sessions.last_target(of(None), "whole") is None
    assert len(sessions) == 0


def test_what_another_worker_told_is_remembered_like_the_rest() -> None:
    sessions = SessionMemory(2)
    sessions.put((False, "m", "s"), "a/0")
    sessions.put((False, "m", "t"), "b/0")
    assert sessions.items() == [((False, "m", "s"), "a/0"), ((False, "m", "t"), "b/0")]
    sessions.put((False, "m", "s"), "c/0")
    sessions.put((False, "m", "u"), "a/0")
    assert [key[2] for key, _ in sessions.items()] == ["s", "u"]
