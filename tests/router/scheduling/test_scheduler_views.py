"""What a decision of the core may look at, what answers teach it, and that asking what it would do leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.kvcache.events import TargetId
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.explanation import explain
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from scorers.contract import Ask, View
from tests.fakes.caches import RING
from tests.router.scheduling.test_scheduler import IDS, KNOWN, House
from tests.router.scheduling.test_scheduler_experiments import HALVES, Trying, experiment, policy, units_of
from tests.suites.properties import examples

# what the view holds


def view_of(house: House, prompt: Prompt, record: Record) -> View:
    ticket = house.core.admit(SchedulingRequest(record, prompt, house.core.fleet.resolve("m"), KNOWN))
    assert ticket is not None
    house.core.settle(ticket)  # it was only looked at
    return ticket.attempt.decision.view


def a_prompt(**known: Any) -> Prompt:
    return Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, **known)


def core_with(secret: int) -> Scheduler:
    policy_set = PolicySet({"calm": policy("calm")}, "calm")
    return build_scheduler(schema.Config(seed=1), policy_set, RING, ManualClock(1000.0, wall=1000.0), secret=secret)


class Keyed(House):
    """A house of a deployment with this secret."""

    def __init__(self, secret: int) -> None:
        super().__init__(count=0)
        self.core = core_with(secret)
        self.join("a")


def test_sessions_are_seen_under_a_pseudonym_that_hangs_on_the_secret() -> None:
    def seen(secret: int, session: str | None) -> str | None:
        house = Keyed(secret)
        return view_of(house, a_prompt(session=session), house.record()).session

    name = "maria.muster@example.org"
    assert seen(1, name) == seen(1, name)
    assert seen(1, name) != seen(2, name)
    assert seen(1, name) != seen(1, "somebody else")
    assert seen(1, None) is None
    assert seen(1, "\ud800") not in (None, seen(1, "")), "names may be no valid text"
    told = seen(1, name)
    assert told is not None
    assert (len(told), int(told, 16) >= 0) == (16, True)


def test_the_raw_session_is_nowhere_in_the_record() -> None:
    house = Trying(experiment())
    record = house.open(units_of("warm", 1)[0])
    family = {"parent": "maria.muster@example.org/1", "program": "maria.muster@example.org/2"}
    view_of(house, a_prompt(session="maria.muster@example.org", **family), record)
    assert "maria" not in repr(record)


def test_a_family_is_seen_under_pseudonyms_that_belong_together() -> None:
    house = House("session_affinity")
    root = view_of(house, a_prompt(session="r", program="r"), house.record())
    child = view_of(house, a_prompt(session="c", parent="r", program="r"), house.record())
    below = view_of(house, a_prompt(session="d", parent="c", program="r"), house.record())
    assert (root.parent, root.program) == (None, root.session)
    assert (child.parent, child.program) == (root.session, root.session)
    assert (below.parent, below.program) == (child.session, root.session)
    assert len({root.session, child.session, below.session}) == 3
    assert view_of(house, a_prompt(session="c", parent="r"), house.record()).program == child.session


def test_a_sub_agent_sees_where_its_parent_is() -> None:
    house = House("session_affinity")
    assert house.admit(session="r", only="b/0").target.id == "b/0"
    child = view_of(house, a_prompt(session="c", parent="r"), house.record())
    assert (child.last_target, child.parent_target) == (None, "b/0")
    assert view_of(house, a_prompt(session="c", parent="unknown"), house.record()).parent_target is None


def test_the_progress_of_a_session_is_in_the_view() -> None:
    house = House("session_affinity")

    def progress(session: str | None) -> tuple[int | None, float | None, bool | None]:
        view = view_of(house, a_prompt(session=session), house.record())
        return view.session_turn, view.idle_s, view.after_tool_call

    assert progress(None) == (None, None, None)
    assert progress("s") == (0, None, None), "an attempt without an answer is none"
    ticket = house.admit(session="s")
    ticket.record.tool_call = True
    house.answer(ticket)
    house.clock.advance(2.5)
    assert progress("s") == (1, 2.5, True)
    assert progress("t") == (0, None, None)
    house.answer(house.admit(session="s"))
    assert progress("s") == (2, 0.0, None)


def test_progress_is_kept_only_where_a_policy_reads_sessions() -> None:
    house = House()
    house.answer(house.admit(session="s"))
    view = view_of(house, a_prompt(session="s"), house.record())
    assert view.session is not None
    assert (view.session_turn, view.idle_s, view.after_tool_call) == (None, None, None)
    assert not len(house.core.selector.progress)


def test_a_conversation_without_a_name_is_its_beginning_where_a_policy_reads_sessions() -> None:
    def seen(house: House, body: bytes) -> View:
        prompt = Prompt(Endpoint.CHAT, "/v1/chat/completions", "m", body, Text("", True), True)
        return view_of(house, prompt, house.record())

    first = b'{"messages": [{"role": "user", "content": "hi"}]}'
    later = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}'
    other = b'{"messages": [{"role": "user", "content": "hi there"}]}'
    house = House("session_affinity")
    view = seen(house, first)
    assert view.session is not None
    assert (view.program, view.parent) == (view.session, None)
    assert seen(house, later).session == view.session != seen(house, other).session
    assert seen(house, b"no json").session is None
    assert seen(House(), first).session is None


def test_what_the_request_asks_for_is_in_the_view() -> None:
    house = House()
    prompt = a_prompt(priority=-2, ttft_ms=250.0, tpot_ms=20.0, output_tokens=64)
    assert view_of(house, prompt, house.record()).ask == Ask(None, -2, 250.0, 20.0, 64)
    assert view_of(house, a_prompt(), house.record()).ask == Ask()


def test_whoever_holds_the_key_is_seen_under_a_pseudonym_too() -> None:
    def seen(secret: int, client: str) -> str | None:
        house = Keyed(secret)
        record = house.record()
        record.client = client
        return view_of(house, a_prompt(), record).ask.tenant

    assert seen(1, "team") == seen(1, "team") != "team"
    assert len({seen(1, "team"), seen(2, "team"), seen(1, "other")}) == 3


def test_the_typical_instances_speed_is_in_the_view() -> None:
    house = House(count=3)
    view = view_of(house, a_prompt(), house.record())
    assert view.nominal is not None
    assert view.nominal.us_per_token == view.rows[0].speed.us_per_token == 100.0  # the prior: nobody has shown any
    house.answer(house.admit(only="b/0"), cached=0, after_s=0.5)
    house.clock.advance(10.0)
    view = view_of(house, a_prompt(), house.record())
    assert view.nominal is not None
    shown = next(row.speed for row in view.rows if row.target == "b/0")
    assert (view.nominal.us_per_token, view.nominal.samples) == (shown.us_per_token, 1)


@pytest.mark.parametrize("order", [("calm", "warm"), ("warm", "calm")])
def test_how_much_targets_hold_is_in_every_view_where_one_arm_looks_at_caches(order: Sequence[str]) -> None:
    """Whoever was first: rows are kept between decisions."""
    house = Trying(experiment(), active="calm")
    house.stored("b/0", IDS[:32])
    for arm in order:
        record = house.open(units_of(arm, 1)[0])
        assert [row.held_tokens for row in view_of(house, a_prompt(), record).rows] == [0, 32, 0]


def test_shadows_that_look_at_caches_see_how_much_targets_hold() -> None:
    house = Trying(experiment(arms={"calm": 100.0}, shadows=["warm"]), active="calm")
    house.stored("b/0", IDS[:32])
    assert [row.held_tokens for row in view_of(house, a_prompt(), house.open(b"u")).rows] == [0, 32, 0]


def test_how_much_targets_hold_is_not_counted_for_nobody() -> None:
    house = Trying(active="calm")
    assert [row.held_tokens for row in view_of(house, a_prompt(), house.open(None)).rows] == [None] * 3


# what answers teach


def stream(house: House, ticket: Ticket, output_tokens: int | None, *, end: str = "ok") -> None:
    """First byte after 100 ms, the end 1 s after it."""
    house.clock.advance(0.1)
    ticket.status = 200
    house.core.on_first_byte(ticket)
    house.clock.advance(1.0)
    ticket.record.prompt_tokens, ticket.record.cached_tokens = len(IDS), 0
    ticket.record.output_tokens = output_tokens
    ticket.end = end
    house.core.settle(ticket)


def steps_seen(house: House) -> int:
    """Samples of the time between two tokens."""
    decode = house.target("a/0").latency_model.speed(house.clock.now()).decode
    assert decode is not None
    return decode.samples


@pytest.mark.parametrize(
    ("streams", "output_tokens", "end", "samples"),
    [
        (True, 101, "ok", 1),
        (False, 101, "ok", 0),  # the first byte is the last token's
        (True, None, "ok", 0),
        (True, 2, "ok", 0),
        (True, 101, "broken", 0),
    ],
)
def test_a_whole_stream_teaches_the_time_between_tokens(
    streams: bool, output_tokens: int | None, end: str, samples: int
) -> None:
    house = House(count=1)
    stream(house, house.admit(record=house.record(stream=streams)), output_tokens, end=end)
    assert steps_seen(house) == samples


# explaining


@examples(40)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["turns", "warm", "sticky", "calm"]), st.sampled_from("xyz"))),
    st.integers(0, 3),
)
def test_explaining_changes_nothing(steps: Sequence[tuple[bool, str, str]], asked: int) -> None:
    """Two houses live through the same requests; in one of them somebody asks all the time."""

    def live(questions: int) -> list[tuple[Any, ...]]:
        house = Trying(experiment(shadows=["turns"]))
        house.stored("b/0")
        served = house.core.fleet.resolve("m")
        seen: list[tuple[Any, ...]] = []
        for ends, name, session in steps:
            for _ in range(questions):
                question = SchedulingRequest(record_for(house, name), a_prompt(session=session), served, KNOWN)
                assert explain(house.core, question, house.clock.now()) is not None
            request = SchedulingRequest(record_for(house, name), a_prompt(session=session), served, KNOWN)
            ticket = house.core.admit(request)
            assert ticket is not None
            seen.append(told_of(ticket.attempt.decision))
            if ends:
                house.answer(ticket, cached=0)
                house.close(request.record, 200)
        load_book = [
            (t.load_book.requests, t.load_book.prefill_tokens) for i in house.core.fleet for t in i.targets.values()
        ]
        looked = [shadow.regret.summary() for shadow in house.core.selector.shadows]
        return [*seen, (load_book, looked, house.core.experiment and house.core.experiment.report())]

    assert live(asked) == live(0)


def record_for(house: House, name: str) -> Record:
    """Asked for by name, and all with one number: asking must not need one."""
    record = Record("r", 7, 0.0, 0.0, "/v1/completions", "m", True, "local", None, house.record().stages)
    record.policy = policy(name)
    return record


def told_of(decision: Decision) -> tuple[Any, ...]:
    return decision.target, decision.costs, decision.view._replace(now_s=0.0)


def test_what_is_explained_is_what_then_happens() -> None:
    house = Trying(experiment())
    house.stored("c/0")
    for arm in HALVES:
        record = house.open(units_of(arm, 1)[0])
        request = SchedulingRequest(record, a_prompt(session="s"), house.core.fleet.resolve("m"), KNOWN)
        told = explain(house.core, request, house.clock.now())
        ticket = house.core.admit(request)
        assert told is not None
        assert ticket is not None
        assert (told.policy, told.target) == (arm, ticket.target.id)


def test_explaining_needs_somebody_who_could_serve() -> None:
    house = Trying(count=0)
    request = SchedulingRequest(house.record(), a_prompt(), None, None)
    assert explain(house.core, request, house.clock.now()) is None
    house.join("a")
    request.served = house.core.fleet.resolve("m")
    assert explain(house.core, request, house.clock.now(), TargetId("gone/0")) is None
