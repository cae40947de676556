"""The admission controller, case by case with the arithmetic beside it, and the invariants of every sequence."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.features.admission.controller import AdmissionController
from router.features.admission.shared_prefixes import PromptPrefix
from router.features.admission.verdicts import Admitted, Arrival, ComputedPrompt, Queued, Released
from scorers.admission.contract import Admission, FleetMemory, TargetMemory
from scorers.admission.fit import Fit
from tests.suites.properties import examples

MAX_WAIT_S = 100.0


def a_controller(
    capacity_tokens: int | None = 1000, *, pooled: bool = False, idle_s: float = 300.0
) -> AdmissionController:
    controller = AdmissionController(Fit(), MAX_WAIT_S, idle_s, pooled=pooled)
    has(controller, capacity_tokens)
    return controller


def has(
    controller: AdmissionController, capacity_tokens: int | None, busy: float | None = None, targets: int = 1
) -> None:
    """The fleet has so much memory, on so many targets."""
    each = None if capacity_tokens is None else capacity_tokens // targets
    memories = tuple(TargetMemory(f"{number}/0", each) for number in range(targets))
    controller.set_fleet(FleetMemory(capacity_tokens, memories, busy))


def name(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def asks(
    controller: AdmissionController, session: str | None, tokens: int, now: float = 0.0, local: int | None = None
) -> Admitted | Queued:
    return controller.arrive(Arrival(name(session), tokens, local), now)


def passes(
    controller: AdmissionController, session: str | None, tokens: int, now: float = 0.0, local: int | None = None
) -> Admission:
    verdict = asks(controller, session, tokens, now, local)
    assert isinstance(verdict, Admitted), verdict
    return verdict.admission


def waits(
    controller: AdmissionController, session: str | None, tokens: int, now: float = 0.0, local: int | None = None
) -> Queued:
    verdict = asks(controller, session, tokens, now, local)
    assert isinstance(verdict, Queued), verdict
    return verdict


def a_turn(
    controller: AdmissionController, session: str | None, tokens: int, now: float = 0.0, local: int | None = None
) -> None:
    """Asked, let in and answered."""
    controller.on_answer(passes(controller, session, tokens, now, local), ComputedPrompt(tokens, tokens), now)


def called(controller: AdmissionController, now: float = 0.0) -> list[str]:
    return [(turn.program.name or b"?").decode() for turn in controller.release_waiting(now).admitted]


def contexts(controller: AdmissionController, now: float = 0.0) -> float:
    return controller.state(now).live.context_tokens


# who fits


def test_what_sessions_share_at_a_target_is_charged_once() -> None:
    """Three of 3,000 begin with the same 1,024 tokens. At one target they are 3000 + 2 x 1976 = 6952, with one of them
    elsewhere 7976; when the first two are forgotten the last one is charged whole.
    """
    controller = a_controller(20_000)
    prefixes = [PromptPrefix(array("Q", [1, 2, 10 + number]).tobytes(), 512) for number in range(3)]
    running = []
    for session, prefix in zip("abc", prefixes, strict=True):
        running.append(passes(controller, session, 3000))
        controller.on_placed(running[-1], "a/0", 0.0, None, prefix)
    assert contexts(controller) == 6952
    controller.on_placed(running[2], "b/0", 0.0, None, prefixes[2])
    assert contexts(controller) == 7976
    controller.on_placed(running[2], "a/0", 0.0, None, None)
    assert contexts(controller) == 7976, "what it shares there is unknown"
    controller.on_placed(running[2], "a/0", 0.0, None, prefixes[2])
    for admission in running[:2]:
        controller.on_answer(admission, ComputedPrompt(3000, 3000), 0.0)
    assert contexts(controller) == 6952, "silent ones count alike while all return"
    assert contexts(controller, 301.0) == 3000


def test_sessions_begin_while_all_of_them_fit() -> None:
    """Capacity 1000, contexts of 300: three are 900, and a fourth would make 1200."""
    controller = a_controller()
    for session in "abc":
        a_turn(controller, session, 300)
    held = waits(controller, "d", 300)
    assert (held.position, held.expected_s) == (1, None)
    assert contexts(controller) == 900


def test_a_new_session_needs_at_least_the_mean_context_for_it_will_grow_to_that() -> None:
    """One of 600 is live, so the mean is 600: a prompt of 100 needs 600, and 1200 do not fit. Beside one of 400 it
    needs 400, and 800 do; both together then hold 500, the mean is 250, and the next one needs no more than that.
    """
    controller = a_controller()
    a_turn(controller, "a", 600)
    waits(controller, "b", 100)
    controller = a_controller()
    a_turn(controller, "a", 400)
    a_turn(controller, "b", 100)
    assert contexts(controller) == 500
    assert controller.state(0.0).live.mean_tokens == 250
    passes(controller, "c", 100)


def test_later_turns_pass_however_full_it_is() -> None:
    controller = a_controller()
    for session in "abc":
        a_turn(controller, session, 300)
    a_turn(controller, "a", 500, local=300)
    assert contexts(controller) == 1100
    a_turn(controller, "a", 600), "what is held is not known"
    waits(controller, "d", 100)


def test_an_unknown_capacity_admits_everything() -> None:
    controller = a_controller(None)
    for number in range(50):
        passes(controller, str(number), 10**6)
    assert controller.state(0.0).capacity_tokens is None


def test_a_request_larger_than_the_capacity_starts_when_no_other_session_is_live() -> None:
    controller = a_controller()
    first = passes(controller, "a", 5000)
    waits(controller, "b", 5000)
    assert called(controller) == []
    controller.on_leave(first, 1.0)
    assert called(controller, 1.0) == ["b"]


def test_a_request_without_a_session_counts_while_it_runs() -> None:
    controller = a_controller()
    turn = passes(controller, None, 900)
    waits(controller, "a", 200)
    controller.on_answer(turn, ComputedPrompt(900, 950), 1.0)
    assert contexts(controller, 1.0) == 0
    assert called(controller, 1.0) == ["a"]
    assert controller.state(1.0).known == 1


# who waits, and in which order


def test_parked_ones_go_first_then_new_ones_each_in_their_order() -> None:
    """a, b and c of 300 are live. d and e come, then a turn of a and one of b whose contexts are gone (100 of 300 are
    held, less than half). Two have gone out of the count: 300 live. a and b need 300 each and pass, d would make 1200.
    """
    controller = a_controller()
    for session in "abc":
        a_turn(controller, session, 300)
    waits(controller, "d", 300)
    waits(controller, "e", 300)
    assert contexts(controller) == 900
    has(controller, 600)
    waits(controller, "a", 300, local=100)
    assert waits(controller, "b", 300, local=100).position == 2
    assert [hold.admission.program.name for hold in controller.state(0.0).waiting] == [b"a", b"b", b"d", b"e"]
    assert called(controller) == ["a"], "c and a are 600"
    has(controller, 1000)
    assert called(controller) == ["b"]
    has(controller, 1200)
    assert called(controller) == ["d"]


def test_a_context_that_is_gone_waits_only_where_there_is_no_room() -> None:
    controller = a_controller()
    a_turn(controller, "a", 300)
    a_turn(controller, "a", 300, local=0)
    assert not controller.needs_overlap(b"a", 300, 0.0), "so nobody needs to look"
    a_turn(controller, "b", 300)
    a_turn(controller, "c", 300)
    assert controller.needs_overlap(b"a", 300, 0.0)
    assert not controller.needs_overlap(b"d", 300, 0.0), "a new one has nothing to lose"
    a_turn(controller, "a", 300, local=149), "without it 600 are live"
    has(controller, 899)
    waits(controller, "a", 300, local=149)


def test_half_of_what_was_asked_last_is_not_gone_nor_is_a_prompt_that_was_cut_down() -> None:
    for now_asked, local, parked in [(400, 150, False), (400, 149, True), (80, 40, False), (80, 39, True)]:
        controller = a_controller()
        a_turn(controller, "a", 300)
        passes(controller, "b", 500)
        has(controller, 0)
        assert isinstance(asks(controller, "a", now_asked, local=local), Queued) == parked, (now_asked, local)


def test_a_parked_session_does_not_count_and_takes_its_new_size_when_it_begins() -> None:
    controller = a_controller(600)
    a_turn(controller, "a", 300)
    a_turn(controller, "b", 300)
    running = passes(controller, "b", 400, local=300)
    held = waits(controller, "a", 350, local=0)
    assert contexts(controller) == 400
    controller.on_leave(running, 1.0)
    assert contexts(controller, 1.0) == 300, "b is what it was"
    assert controller.release_waiting(1.0).admitted == (), "300 + 350 > 600"
    has(controller, 650)
    assert controller.release_waiting(1.0).admitted == (held.admission,)
    assert contexts(controller, 1.0) == 650


def test_two_requests_of_one_session_are_one_session() -> None:
    controller = a_controller(500)
    first, second = passes(controller, "a", 300), passes(controller, "a", 400)
    assert contexts(controller) == 400
    controller.on_answer(second, ComputedPrompt(400, 400), 1.0)
    controller.on_answer(first, ComputedPrompt(300, 320), 1.0)
    assert controller.state(1.0).live.programs == 1
    full = a_controller(0)
    passes(full, "x", 100)
    waits(full, "a", 300)
    waits(full, "a", 300)
    has(full, 700)
    assert called(full) == ["a", "a"], "the second one passes with the first"


# time


def test_a_request_that_waited_too_long_is_refused_with_its_position() -> None:
    """Two are let in at 10 and 20 s, so a slot takes 10 s; at 100 s the pause since 20 s counts, too: 45 s a slot."""
    controller = a_controller(300)
    turns = [passes(controller, "z", 300), *[waits(controller, session, 300).admission for session in "abcd"]]
    for number, now in enumerate([10.0, 20.0]):
        controller.on_leave(turns[number], now)
        assert called(controller, now) == ["ab"[number]]
    assert controller.next_s == MAX_WAIT_S
    refused = controller.release_waiting(MAX_WAIT_S).refused
    assert [(hold.admission.program.name, hold.position, hold.expected_s) for hold in refused] == [
        (b"c", 1, 90.0),
        (b"d", 2, 180.0),
    ]
    assert controller.next_s is None
    controller.on_leave(refused[0].admission, 101.0), "and has nothing to give back"
    assert controller.release_waiting(101.0) == Released((), ())


def test_waits_that_end_together_are_released_in_portions() -> None:
    controller = a_controller(300)
    first = passes(controller, "z", 300)
    for session in "abcde":
        waits(controller, session, 50)
    state = controller.state(0.0, listed=2)
    assert (state.queued, len(state.waiting)) == ({"live": 0, "parked": 0, "again": 0, "new": 5}, 2)
    controller.on_leave(first, 1.0)
    some = controller.release_waiting(1.0, at_most=3)
    assert (len(some.admitted), some.more) == (3, True)
    rest = controller.release_waiting(1.0, at_most=3)
    assert (len(rest.admitted), rest.more) == (2, False)
    for session in "fghi":
        waits(controller, session, 300, 2.0)
    late = controller.release_waiting(2.0 + MAX_WAIT_S, at_most=3)
    assert (len(late.refused), late.more) == (3, True)
    assert controller.next_s is not None
    assert controller.next_s <= 2.0 + MAX_WAIT_S, "the last one is due"
    assert len(controller.release_waiting(2.0 + MAX_WAIT_S).refused) == 1


def test_a_new_session_that_was_refused_stands_ahead_when_it_comes_again() -> None:
    controller = a_controller(300)
    passes(controller, "z", 300)
    waits(controller, "a", 300, 0.0)
    waits(controller, "b", 300, 50.0)
    assert len(controller.release_waiting(100.0).refused) == 1
    assert waits(controller, "a", 300, 110.0).position == 1
    assert [hold.admission.queue for hold in controller.state(110.0).waiting] == ["again", "new"]


def accustomed(controller: AdmissionController, pause_s: float) -> None:
    """A hundred sessions have come back after that long; a thousand seconds later they are forgotten."""
    has(controller, None)
    for now in (0.0, pause_s):
        for number in range(100):
            a_turn(controller, f"before-{number}", 1, now)
    assert contexts(controller, 1000.0) == 0


def test_a_silent_session_counts_as_long_as_it_may_come_back_and_then_is_forgotten() -> None:
    controller = a_controller(500)
    accustomed(controller, 200.0)
    has(controller, 500)
    a_turn(controller, "a", 300, 1000.0)
    waits(controller, "b", 300, 1250.0)
    assert contexts(controller, 1299.0) > 250, "nearly all came back from a silence like this"
    assert called(controller, 1299.0) == []
    assert called(controller, 1300.0) == ["b"]
    assert controller.state(1300.0).known == 1


def test_a_session_silent_for_longer_than_anybody_was_makes_room_before_it_is_forgotten() -> None:
    """Everybody came back after 5 s, from the stage that ends at 9.4 s, and one has never been longer away."""
    controller = a_controller(500)
    accustomed(controller, 5.0)
    has(controller, 500)
    a_turn(controller, "a", 300, 1000.0)
    waits(controller, "b", 300, 1001.0)
    assert called(controller, 1009.0) == []
    assert called(controller, 1160.0) == ["b"]


def test_next_s_names_the_moment_at_which_somebody_may_go() -> None:
    controller = a_controller(500)
    accustomed(controller, 200.0)
    has(controller, 500)
    a_turn(controller, "a", 300, 1000.0)
    waits(controller, "b", 300, 1250.0)
    now, looks = 1250.0, 0
    while not called(controller, now):
        assert controller.next_s is not None
        assert controller.next_s > now
        now, looks = controller.next_s, looks + 1
    assert now == 1300.0
    assert looks < 12


def test_prompts_sent_once_take_capacity_only_until_that_is_learned() -> None:
    """A new name every second, 100 tokens each, into 3,000: 30 at a time would fill it if each stayed for 300 s."""
    controller, now = a_controller(3000), 0.0
    held = 0
    for number in range(2000):
        now = float(number)
        verdict = asks(controller, f"once-{number}", 100, now)
        held += isinstance(verdict, Queued)
        for turn in [verdict.admission] if isinstance(verdict, Admitted) else controller.release_waiting(now).admitted:
            controller.on_answer(turn, ComputedPrompt(100, 110), now)
    assert held <= 100
    assert contexts(controller, now) < 1000
    assert not controller.state(now).waiting


# with a shared pool


def crowded(controller: AdmissionController, redone: int) -> None:
    """b fills the fleet, and of 400 prompt tokens computed that many had been computed before."""
    has(controller, 1000, busy=0.95, targets=2)
    a_turn(controller, "b", 900)
    turn = passes(controller, "b", 900 + 400 - redone, local=0)
    controller.on_answer(turn, ComputedPrompt(900 + 400 - redone, 1000, local_tokens=900 - redone), 0.0)


def test_with_a_pool_only_a_fleet_that_computes_everything_twice_holds_new_sessions() -> None:
    for busy, redone, holds in [(0.95, 300, True), (0.95, 100, False), (0.8, 300, False), (None, 300, False)]:
        controller = a_controller(pooled=True)
        crowded(controller, redone)
        has(controller, 1000, busy=busy, targets=2)
        assert isinstance(asks(controller, "n", 300), Queued) == holds, (busy, redone)


def test_with_a_pool_a_lost_context_waits_only_while_the_pool_does_not_keep_up() -> None:
    for busy, waits_for in [(0.95, True), (0.8, False)]:
        controller = a_controller(pooled=True)
        has(controller, 2000)
        a_turn(controller, "a", 300)
        crowded(controller, 300)
        has(controller, 1000, busy=busy, targets=2)
        assert controller.needs_overlap(b"a", 300, 0.0) == waits_for
        assert isinstance(asks(controller, "a", 300, local=100), Queued) == waits_for


def test_with_a_pool_those_that_waited_exceed_the_capacity_one_per_target_until_their_first_token() -> None:
    controller = a_controller(pooled=True)
    crowded(controller, 300)
    for session in "cdefg":
        waits(controller, session, 300)
    has(controller, 1000, busy=0.5, targets=2)
    begun = controller.release_waiting(1.0).admitted
    assert [turn.program.name for turn in begun] == [b"c", b"d"]
    controller.on_first_token(begun[0], 2.0)
    assert called(controller, 2.0) == ["e"]
    controller.on_answer(begun[0], ComputedPrompt(300, 300), 2.5)
    assert called(controller, 2.5) == []
    controller.on_leave(begun[1], 3.0)
    assert called(controller, 3.0) == ["f"]
    has(controller, 5000, busy=0.5, targets=2)
    assert called(controller, 4.0) == ["g"], "there is room for it"


# beyond the capacity


def test_beyond_the_capacity_one_begins_at_a_time_while_hardly_any_target_prefills() -> None:
    for busy, begins in [(0.1, True), (0.15, False), (None, False)]:
        controller = a_controller()
        a_turn(controller, "a", 900)
        has(controller, 1000, busy=busy, targets=2)
        assert isinstance(asks(controller, "b", 300), Admitted) == begins, busy
    controller = a_controller()
    a_turn(controller, "a", 900)
    has(controller, 1000, busy=0.1, targets=2)
    first = passes(controller, "b", 300)
    waits(controller, "c", 300)
    controller.on_first_token(first, 1.0)
    assert called(controller, 1.0) == ["c"]


def test_never_beyond_what_running_requests_leave() -> None:
    """700 run: 300 more may push out the 900 of a silent session, 301 may not."""
    for tokens, begins in [(300, True), (301, False)]:
        controller = a_controller(2000)
        a_turn(controller, "a", 900)
        controller.on_first_token(passes(controller, "b", 700), 0.0)
        has(controller, 1000, busy=0.0)
        assert isinstance(asks(controller, "c", tokens), Admitted) == begins, tokens


# whatever happens

SESSIONS = st.sampled_from(["a", "b", "c", "d", "e", None])
STEP = st.one_of(
    st.tuples(st.just("asks"), SESSIONS, st.integers(1, 600), st.one_of(st.none(), st.integers(0, 600))),
    st.tuples(st.just("answered"), st.integers(0, 99), st.integers(1, 600), st.just(0)),
    st.tuples(st.just("left"), st.integers(0, 99), st.just(0), st.just(0)),
    st.tuples(st.just("time"), st.integers(0, 120), st.just(0), st.just(0)),
)


@examples(300)
@given(st.lists(STEP, max_size=60))
def test_nothing_starts_beyond_the_capacity_nothing_is_lost_and_everything_is_given_back(steps: list[tuple]) -> None:
    controller, now, under_way, waiting = a_controller(1000), 0.0, [], []

    def see() -> None:
        """Whoever has been called is inside, in the order of the lines; the rest stand as they came."""
        before = contexts(controller, now)
        heard = controller.release_waiting(now)
        for turn in heard.admitted:
            waiting.remove(turn)
            under_way.append(turn)
        for hold in heard.refused:
            assert now - hold.admission.since_s >= MAX_WAIT_S
            waiting.remove(hold.admission)
        after = contexts(controller, now)
        larger = len(heard.admitted) == 1  # one alone may be larger than all there is
        grown = any(turn.program.running > 1 for turn in heard.admitted)  # as may be one that runs already
        assert after <= 1000 or after <= before or larger or grown
        stand = [hold.admission for hold in controller.state(now).waiting]
        assert sorted(map(id, stand)) == sorted(map(id, waiting))
        for line in ("parked", "again", "new"):
            times = [turn.since_s for turn in stand if turn.queue == line]
            assert times == sorted(times)
        slots = [hold.position for hold in controller.state(now).waiting]
        assert slots == list(range(1, len(slots) + 1))

    for what, about, tokens, local in steps:
        if what == "asks":
            before = controller.state(now)
            verdict = asks(controller, about, tokens, now, local)
            if isinstance(verdict, Admitted):
                under_way.append(verdict.admission)
                if verdict.admission.queue == "new" and verdict.admission.program.running == 1:
                    assert before.live.context_tokens < 1 or contexts(controller, now) <= 1000
                    assert not before.waiting, "no new one overtakes"
            else:
                waiting.append(verdict.admission)
        elif what == "time":
            now += about
        elif (turns := under_way if what == "answered" else [*under_way, *waiting]) and about < len(turns):
            turn = turns[about]
            (under_way if turn in under_way else waiting).remove(turn)
            if what == "answered":
                controller.on_answer(turn, ComputedPrompt(tokens, tokens + 10), now)
            else:
                controller.on_leave(turn, now)
            controller.on_leave(turn, now)  # a second time does nothing
        see()

    for turn in [*under_way, *waiting]:
        controller.on_leave(turn, now)
    assert not controller.release_waiting(now).admitted
    now += 10_000
    assert controller.state(now).live == (0, 0)
    assert controller.state(now).known == 0
