"""Who is next: tenants by weight, sessions, priorities and deadlines. The bounds hold whatever comes."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from router.request.admission.fair_order import OVERTAKING_TOKENS, FairOrder
from router.request.admission.tenant_lane import PATIENCE
from scorers.admission.contract import Admission, AgentProgram, Claim

NUMBERS = count()


class Line:
    """A fair order, and the sessions by name."""

    def __init__(self) -> None:
        self.order = FairOrder()
        self.programs: dict[str, AgentProgram] = {}

    def join(
        self, tenant: str, session: str = "s", home: str | None = None, weight: float = 1.0, **claim: float
    ) -> Admission:
        name = f"{tenant}/{session}"
        program = self.programs.setdefault(name, AgentProgram(name.encode()))
        asked = Claim(tenant, weight, int(claim.get("priority", 0)), claim.get("deadline_s"))
        admission = Admission(program, 100, None, "live", next(NUMBERS), asked)
        self.order.open(admission)
        self.order.join(admission, home)
        return admission

    def serve(self, tokens: float = 100.0, rooms: frozenset[str] | None = None) -> Admission:
        first = self.order.first(rooms)
        assert first is not None
        self.order.begin(first, tokens, 0.0)
        return first

    def serve_all(self, tokens: float = 100.0) -> list[Admission]:
        served = []
        while self.order.first(None) is not None:
            served.append(self.serve(tokens))
        return served


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.5, 8), st.lists(st.integers(1, 1000), min_size=5, max_size=5)), min_size=2, max_size=4
    )
)
def test_waiting_tenants_differ_by_no_more_than_their_largest_requests(tenants: list[tuple[float, list[int]]]) -> None:
    """|W_i / w_i - W_j / w_j| <= c_i / w_i + c_j / w_j, as in start-time fair queueing."""
    line, got = Line(), [0.0] * len(tenants)
    for number, (weight, _) in enumerate(tenants):
        for _ in range(60):
            line.join(f"{number}", weight=weight)
    sizes = [0] * len(tenants)
    for _ in range(60):
        first = line.order.first(None)
        assert first is not None
        number = int(first.claim.tenant or "")
        tokens = tenants[number][1][sizes[number] % 5]
        sizes[number] += 1
        line.order.begin(first, tokens, 0.0)
        got[number] += tokens / tenants[number][0]
        bounds = [max(sizes) / weight for weight, sizes in tenants]
        for one in range(len(tenants)):
            for other in range(one):
                assert abs(got[one] - got[other]) <= bounds[one] + bounds[other] + 1e-6


def test_an_idle_tenant_earns_no_credit_and_keeps_its_debt() -> None:
    line = Line()
    for _ in range(16):
        line.join("busy")
    for _ in range(5):
        line.serve(1000.0)
    late = [line.join("late") for _ in range(4)]
    served = [line.serve(1000.0).claim.tenant for _ in range(6)]
    assert (served.count("late"), served.count("busy")) == (3, 3)
    while line.order.first(None) is not late[3]:
        line.serve(1000.0)
    line.serve(5000.0)
    for admission in late:
        line.order.end(admission, None)
    line.join("late")
    assert [line.serve(1000.0).claim.tenant for _ in range(3)] == ["busy"] * 3, "pausing does not shed a debt"


def test_a_correction_gives_back_what_a_hit_spared() -> None:
    """Both begin one request of 1,000 tokens by estimate; that of `hits` computed 100. So it has 9 more before."""
    line = Line()
    firsts = {}
    for tenant in ("hits", "misses"):
        firsts[tenant] = line.join(tenant)
        for _ in range(12):
            line.join(tenant)
    for _ in range(2):
        line.serve(1000.0)
    line.order.end(firsts["hits"], 100.0)
    line.order.end(firsts["misses"], 1000.0)
    served = [line.serve(100.0).claim.tenant for _ in range(9)]
    assert served == ["hits"] * 9


def test_a_tenants_requests_by_priority_then_deadline_then_session() -> None:
    line = Line()
    plain, late = line.join("a", "1"), line.join("a", "2", deadline_s=9.0)
    soon, urgent = line.join("a", "3", deadline_s=5.0), line.join("a", "4", priority=-1)
    assert line.serve_all() == [urgent, soon, late, plain]


def test_sessions_of_a_tenant_take_turns_however_many_requests_one_sends() -> None:
    line = Line()
    for _ in range(6):
        line.join("a", "greedy")
    modest = [line.join("a", "modest") for _ in range(2)]
    served = line.serve_all()
    assert max(served.index(one) for one in modest) <= 4


@given(st.integers(0, 12))
def test_no_priority_is_starved(older: int) -> None:
    """One with k older ones before it begins within PATIENCE x (k + 1) begins of its tenant."""
    line = Line()
    for _ in range(older):
        line.join("a", priority=5)
    held = line.join("a", priority=5)
    for _ in range(5):
        line.join("a", "urgent", priority=-5)
    begun = []
    for _ in range(PATIENCE * (older + 1)):
        line.join("a", "urgent", priority=-5)
        begun.append(line.serve())
    assert held in begun


def test_where_its_engine_has_no_room_others_go_first_within_the_bound() -> None:
    line = Line()
    held = line.join("a", home="busy")
    ahead = [line.join("b", home="free") for _ in range(9)]
    step = OVERTAKING_TOKENS / 4
    served = [line.serve(step, frozenset({"free"})) for _ in range(7)]
    assert held in served, "after the bound it begins, wherever that is"
    assert served.index(held) == 5, "b is ahead by 4 steps, the bound, when its sixth would begin"
    assert served[:5] == ahead[:5]


def test_a_request_with_a_deadline_and_a_more_urgent_one_are_not_overtaken() -> None:
    for claim in ({"deadline_s": 1.0}, {"priority": -1}):
        line = Line()
        held = line.join("a", home="busy", **claim)
        line.join("a", "other", home="free")
        assert line.serve(rooms=frozenset({"free"})) is held


STEP = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("abc"), st.integers(-2, 2), st.sampled_from([None, "x", "y"])),
    st.tuples(st.just("serve"), st.sampled_from([None, "x", "y"]), st.integers(0, 5000), st.none()),
    st.tuples(st.just("end"), st.integers(0, 50), st.none() | st.integers(0, 5000), st.none()),
)


@settings(max_examples=100)
@given(st.lists(STEP, max_size=80))
def test_books_return_to_zero_whatever_happens(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    line, alive = Line(), list[Admission]()
    for what, who, number, home in steps:
        if what == "join":
            timed = {"deadline_s": 5.0} if number == 2 else {}
            alive.append(line.join(who, str(number), home, 1.0 + abs(number), priority=number, **timed))
        elif what == "serve":
            first = line.order.first(None if who is None else frozenset({who}))
            if first is not None:
                line.order.begin(first, number, 0.0)
        elif who < len(alive):
            line.order.end(alive.pop(who), number)
            line.order.end(Admission(AgentProgram(None), 0, None, "live", 0.0), 5.0)  # of another rule's time
    waiting = sum(share.waiting for share in line.order.shares())
    assert waiting + sum(share.running for share in line.order.shares()) == len(alive) == len(line.order)
    for admission in alive:
        line.order.end(admission, None)
    assert (len(line.order), line.order.tenants_known, line.order.first(None)) == (0, 0, None)


def test_ten_thousand_waiting_requests_cost_an_operation_what_a_hundred_do() -> None:
    """Heap entries are bounded, and each begin looks at few of them."""
    line = Line()
    for number in range(10_000):
        line.join(f"{number % 50}", f"{number % 500}", priority=number % 7)
    assert len(line.serve_all()) == 10_000
