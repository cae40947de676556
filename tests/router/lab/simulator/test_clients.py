"""Clients against a server that answers, or turns away, half a second after it was asked."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from router.lab.rng import Rng
from router.lab.simulator.clients import ClientTurn, SimulatedClients
from router.lab.simulator.event_queue import EventQueue
from router.lab.workloads.model import Session, Span, Turn

TOOK_S = 0.5
FIRST = Turn(0, (Span(1, 40),), 10, 1.0)
SECOND = Turn(50, (Span(2, 20),), 5, 3.0)  # keeps prompt and answer
TALK = Session(0, 0.0, (FIRST, SECOND))


class Sent(NamedTuple):
    at_s: float
    said: ClientTurn

    @property
    def turn(self) -> tuple[int, int]:
        return self.said.session.number, self.said.number


def sent_by(
    *sessions: Session,
    at_once: int | None = None,
    staggered: bool = False,
    until_s: float = float("inf"),
    ok: Callable[[int], bool] = lambda _: True,
) -> list[Sent]:
    """All that is sent. `ok`: by how many were sent before, is it answered?"""
    event_queue, sent = EventQueue(), list[Sent]()

    def send(said: ClientTurn) -> None:
        event_queue.at(event_queue.now_s + TOOK_S, clients.on_end, said, ok(len(sent)))
        sent.append(Sent(event_queue.now_s, said))

    clients = SimulatedClients(sessions, 10, event_queue, send, until_s)
    clients.begin(at_once, staggered, Rng(1))
    while clients.at_work:
        assert event_queue.step(), "sessions are at work, and nothing more will happen"
    assert not event_queue.step()
    return sent


def short(number: int, start_s: float) -> Session:
    return Session(number, start_s, (Turn(0, (Span(number, 40),), 10, 0.0),))


def test_a_turn_comes_a_pause_after_the_answer_before_it_and_begins_with_what_was_said() -> None:
    first, second = sent_by(TALK, at_once=1)
    assert [first.at_s, second.at_s] == [1.0, 1.0 + TOOK_S + 3.0]
    assert (first.said.prompt_tokens, first.said.output_tokens) == (40, 10)
    assert (second.said.prompt_tokens, second.said.output_tokens) == (70, 5)
    assert len(first.said.names) == 5  # of ten tokens: its own copy, the context has seven
    assert len(second.said.names) == 7
    assert second.said.names[:5] == first.said.names


def test_in_a_closed_loop_the_next_session_begins_when_one_ends() -> None:
    sent = sent_by(TALK, short(1, 0.0), short(2, 0.0), at_once=2)
    # 0: 1.0 to 1.5 and 4.5 to 5.0; 1: 0 to 0.5; 2 when that has ended
    assert [(one.turn, one.at_s) for one in sent] == [((1, 0), 0.0), ((2, 0), 0.5), ((0, 0), 1.0), ((0, 1), 4.5)]


def test_in_an_open_loop_sessions_begin_at_their_time_whatever_became_of_the_others() -> None:
    sent = sent_by(*(short(number, 0.2 * number) for number in range(4)), ok=lambda before: before != 1)
    assert [one.turn[0] for one in sent] == [0, 1, 2, 3]
    assert [one.at_s for one in sent] == pytest.approx([0.0, 0.2, 0.4, 0.6])


def test_who_is_turned_away_in_a_closed_loop_comes_again_a_second_later_with_the_same() -> None:
    first, again, second = sent_by(TALK, at_once=1, ok=lambda before: before > 0)
    assert again.at_s == first.at_s + TOOK_S + 1.0
    assert again.said is first.said
    assert second.at_s == again.at_s + TOOK_S + 3.0


def test_staggered_sessions_begin_somewhere_in_their_course_with_what_was_said_before() -> None:
    long = Session(0, 0.0, (FIRST, *(Turn(40, (Span(number, 20),), 5, 0.0) for number in range(2, 40))))
    sent = sent_by(long, at_once=1, staggered=True)
    assert 0 < sent[0].said.number < 39
    assert [one.said.number for one in sent] == list(range(sent[0].said.number, 39))
    assert {one.said.prompt_tokens for one in sent} == {60}


@pytest.mark.parametrize("at_once", [None, 2])
def test_from_the_end_on_nothing_is_sent(at_once: int | None) -> None:
    sessions = [short(number, 0.3 * number) for number in range(20)]
    sent = sent_by(*sessions, at_once=at_once, until_s=1.5)
    # open: at 0, 0.3, 0.6, 0.9 and 1.2; closed: two each at 0, 0.5 and 1.0
    assert len(sent) == (5 if at_once is None else 6)
    assert max(one.at_s for one in sent) < 1.5


def test_who_would_come_again_after_the_end_does_not() -> None:
    assert len(sent_by(TALK, at_once=1, until_s=2.5, ok=lambda _: False)) == 1  # at 1.0; again it would be at 2.5


def test_sub_agents_begin_with_an_answer_and_the_next_turn_waits_for_all_of_them() -> None:
    long = Session(2, 0.0, (Turn(0, (Span(9, 40),), 10, 0.25), Turn(50, (Span(8, 20),), 5, 2.0)))
    below = short(3, 0.0)._replace(after_turn=1)
    family = TALK._replace(sub_agents=(short(1, 0.0), long._replace(sub_agents=(below,))))
    sent = sent_by(family, short(7, 0.0), at_once=1)
    assert [(one.turn, one.at_s) for one in sent] == [
        ((0, 0), 1.0),
        ((1, 0), 1.5),  # with the answer
        ((2, 0), 1.75),
        ((2, 1), 1.75 + TOOK_S + 2.0),
        ((3, 0), 4.75),  # of the sub-agent's sub-agent
        ((0, 1), 4.75 + TOOK_S + 3.0),
        ((7, 0), 8.75),  # the next session of the closed loop
    ]
    started_by = {one.said.session.number: one.said.started_by and one.said.started_by.number for one in sent}
    assert started_by == {0: None, 1: 0, 2: 0, 3: 2, 7: None}


def test_a_session_whose_last_answer_starts_sub_agents_ends_with_them() -> None:
    family = short(0, 0.0)._replace(sub_agents=(TALK._replace(number=1),))
    sent = sent_by(family, short(2, 0.0), at_once=1)
    assert [(one.turn, one.at_s) for one in sent] == [((0, 0), 0.0), ((1, 0), 1.5), ((1, 1), 5.0), ((2, 0), 5.5)]


@pytest.mark.parametrize("until_s", [1.2, 1.6, 2.0, 4.6, 5.0])
def test_families_stop_at_the_end_whoever_waits_for_whom(until_s: float) -> None:
    """`sent_by` fails if somebody stays at work."""
    below = short(3, 0.0)
    children = (TALK._replace(number=1, sub_agents=(below,)), short(2, 0.0))
    sent = sent_by(TALK._replace(sub_agents=children), short(4, 0.0), at_once=2, until_s=until_s)
    assert sent
    assert all(one.at_s < until_s for one in sent)


def test_sub_agents_that_are_turned_away_come_again_and_are_waited_for() -> None:
    family = TALK._replace(sub_agents=(short(1, 0.0),))
    sent = sent_by(family, at_once=1, ok=lambda before: before != 1)
    assert [(one.turn, one.at_s) for one in sent] == [
        ((0, 0), 1.0),
        ((1, 0), 1.5),
        ((1, 0), 1.5 + TOOK_S + 1.0),
        ((0, 1), 3.0 + TOOK_S + 3.0),
    ]


def test_a_staggered_session_begins_without_the_sub_agents_of_earlier_turns() -> None:
    family = TALK._replace(sub_agents=(short(1, 0.0),))
    sent = sent_by(family, at_once=1, staggered=True)
    assert [one.turn for one in sent] in ([(0, 0), (1, 0), (0, 1)], [(0, 1)])
