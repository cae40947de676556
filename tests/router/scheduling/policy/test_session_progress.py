"""The progress of sessions."""

from __future__ import annotations

from router.scheduling.policy.session_progress import Progress, SessionProgress


def test_answers_are_counted_and_the_last_one_is_kept() -> None:
    sessions = SessionProgress(10)
    assert sessions.get(("m", "s")) is None
    sessions.on_answer(("m", "s"), 5.0, True)
    sessions.on_answer(("m", "s"), 9.0, None)
    sessions.on_answer(("other", "s"), 9.5, False)
    assert sessions.get(("m", "s")) == Progress(2, 9.0, None)
    assert sessions.get(("other", "s")) == Progress(1, 9.5, False)


def test_the_session_that_was_answered_longest_ago_is_forgotten() -> None:
    sessions = SessionProgress(2)
    for name in ("a", "b", "a", "c"):
        sessions.on_answer(("m", name), 1.0, False)
    assert [key for key, _ in sessions.items()] == [("m", "a"), ("m", "c")]
    assert len(sessions) == 2
