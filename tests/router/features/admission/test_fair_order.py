"""Who is next: tenants by weight, sessions, priorities and deadlines. The bounds hold whatever comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.features.admission.fair_order import FairOrder, WaitOf
from router.features.admission.tenant_lane import PATIENCE
from router.features.admission.virtual_time import CREDIT_S, VirtualClock
from scorers.admission.contract import Admission, AgentProgram, Claim
from tests.suites.properties import examples


def wait_of(waits: dict[str, float] | None) -> WaitOf:
    return lambda homes, _: min((waits or {}).get(home, 0.0) for home in homes)


class Line:
    """A fair order, and the sessions by name."""

    def __init__(self) -> None:
        self.order = FairOrder()
        self.programs: dict[str, AgentProgram] = {}

    def join(
        self,
        tenant: str,
        session: str = "s",
        home: str | None = None,
        weight: float = 1.0,
        saves_s: float = 1.0,
        now: float = 0.0,
        **claim: float,
    ) -> Admission:
        name = f"{tenant}/{session}"
        program = self.programs.setdefault(name, AgentProgram(name.encode()))
        asked = Claim(tenant, weight, int(claim.get("priority", 0)), claim.get("deadline_s"))
        admission = Admission(program, 100, None, "live", now, asked)
        self.order.open(admission)
        self.order.join(admission, () if home is None else (home,), saves_s)
        return admission

    def serve(self, tokens: float = 100.0, waits: dict[str, float] | None = None, now: float = 0.0) -> Admission:
        """Begin the next request; engines that `waits` does not name have room."""
        first = self.order.first(wait_of(waits), now)
        assert first is not None
        self.order.begin(first, tokens, now)
        return first

    def serve_all(self, tokens: float = 100.0) -> list[Admission]:
        served = []
        while self.order.first(wait_of(None), 0.0) is not None:
            served.append(self.serve(tokens))
        return served


@examples(60)
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
        first = line.order.first(wait_of(None), 0.0)
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


def test_who_asked_for_less_than_its_share_catches_up_and_no_more() -> None:
    """`busy` begins 1,000 tokens a second; `late` comes after a minute, and may catch up on `CREDIT_S` of that."""
    line = Line()
    line.join("late", "first")
    for _ in range(100):
        line.join("busy")
    for now in range(60):
        line.serve(1000.0, now=now)
    for _ in range(30):
        line.join("late", now=60.0)
    served = [line.serve(1000.0, now=60.0).claim.tenant for _ in range(40)]
    ahead = served.index("busy")
    assert CREDIT_S - 2 <= ahead <= CREDIT_S + 2
    assert served[ahead:].count("late") <= served[ahead:].count("busy") + 1, "then they take turns"


def test_a_tenant_that_always_waits_leaves_no_marks_behind() -> None:
    clock: VirtualClock[str] = VirtualClock()
    flow = clock.open("busy")
    for now in range(10_000):
        clock.begin(flow, 1.0, float(now))
    assert len(clock._marks) < 50
    late = clock.open("late")
    clock.lift(late, 10_000.0)
    assert clock.now - CREDIT_S - 2 <= late.time <= clock.now


def test_pausing_does_not_shed_a_debt() -> None:
    line = Line()
    for _ in range(9):
        line.join("busy")
    debtor = line.join("debtor")
    while line.serve(1000.0) is not debtor:
        pass
    line.order.end(debtor, 5000.0)
    line.join("debtor")
    assert [line.serve(1000.0).claim.tenant for _ in range(3)] == ["busy"] * 3


def test_a_better_estimate_counts_at_once() -> None:
    line = Line()
    for tenant in "ab":
        for _ in range(3):
            line.join(tenant)
    first = line.serve(1000.0)
    assert line.serve(500.0).claim.tenant != first.claim.tenant
    line.order.charge(first, 100.0)
    assert line.serve().claim.tenant == first.claim.tenant


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


def test_a_request_waits_for_the_engine_that_holds_its_prompt_while_that_pays() -> None:
    """0.4 s until it has room; another engine would take 1 s longer for what it holds."""
    line = Line()
    held, other = line.join("a", home="busy"), line.join("b", home="free")
    line.join("b", home="free")
    assert line.serve(waits={"busy": 0.4}) is other
    assert line.serve(waits={"busy": 1.2}) is held, "not longer than that"


def test_it_waits_no_longer_than_it_saves_however_soon_there_always_seems_to_be_room() -> None:
    line = Line()
    held = line.join("a", home="busy")
    for now in (0.0, 0.3, 0.5):
        assert line.order.first(wait_of({"busy": 0.4}), now) is None
    assert line.serve(waits={"busy": 0.4}, now=0.7) is held


def test_when_its_engine_has_room_it_is_next() -> None:
    line = Line()
    held = line.join("a", home="busy")
    for _ in range(3):
        line.join("b")
    line.serve(waits={"busy": 0.4})
    assert line.serve(waits={}) is held


def test_nobody_begins_while_all_wait_for_their_engines() -> None:
    line = Line()
    line.join("a", home="busy")
    assert line.order.first(wait_of({"busy": 0.4}), 0.0) is None


def test_within_a_tenant_what_would_leave_its_engine_goes_last() -> None:
    line = Line()
    leaves, hits = line.join("a", "1", home="busy"), line.join("a", "2", home="free")
    assert line.serve(waits={"busy": 9.0}) is hits
    assert line.serve(waits={"busy": 9.0}) is leaves


STEP = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("abc"), st.integers(-2, 2), st.sampled_from([None, "x", "y"])),
    st.tuples(st.just("serve"), st.sampled_from([None, "x", "y"]), st.integers(0, 5000), st.none()),
    st.tuples(st.just("end"), st.integers(0, 50), st.none() | st.integers(0, 5000), st.none()),
)


@examples(100)
@given(st.lists(STEP, max_size=80))
def test_books_return_to_zero_whatever_happens(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    line, alive = Line(), list[Admission]()
    for what, who, number, home in steps:
        if what == "join":
            timed = {"deadline_s": 5.0} if number == 2 else {}
            alive.append(line.join(who, str(number), home, 1.0 + abs(number), priority=number, **timed))
        elif what == "serve":
            first = line.order.first(wait_of(None if who is None else {who: 0.5}), 0.0)
            if first is not None:
                line.order.begin(first, number, 0.0)
        elif who < len(alive):
            line.order.end(alive.pop(who), number)
            line.order.end(Admission(AgentProgram(None), 0, None, "live", 0.0), 5.0)  # of another rule's time
    waiting = sum(share.waiting for share in line.order.shares())
    assert waiting + sum(share.running for share in line.order.shares()) == len(alive) == len(line.order)
    for admission in alive:
        line.order.end(admission, None)
    assert (len(line.order), line.order.tenants_known, line.order.first(wait_of(None), 0.0)) == (0, 0, None)


def test_ten_thousand_waiting_requests_cost_an_operation_what_a_hundred_do() -> None:
    """Heap entries are bounded, and each begin looks at few of them."""
    line = Line()
    for number in range(10_000):
        line.join(f"{number % 50}", f"{number % 500}", priority=number % 7)
    assert len(line.serve_all()) == 10_000
