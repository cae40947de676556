"""Three processes that report what they charged, over links that delay, lose and break."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.features.tenants.ledger import DAY_S, Ledger, Refusal, Reservation
from router.features.tenants.tenant_totals import TenantTotals
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from tests.router.features.tenants.reservations import reserve

LIMIT = 10
LIMITS = TenantLimits(requests_per_minute=LIMIT, tokens_per_minute=LIMIT * 10, concurrent=LIMIT)
STEP_S = 0.1


@dataclass
class Process:
    """One process, and for each other one when the newest message that came from it was sent."""

    name: str
    ledger: Ledger
    admitted: list[float] = field(default_factory=list)
    running: list[Reservation] = field(default_factory=list)
    reported_s: dict[str, float] = field(default_factory=dict)
    began_s: dict[Reservation, float] = field(default_factory=dict)


class Group:
    """Processes `a`, `b` and `c`. Each reports its totals at every step; `delays` are in steps, None: lost."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0, 20_000 * DAY_S)
        self.all = [Process(name, Ledger(PricesConfig(), self.clock, name)) for name in "abc"]
        self.on_the_way: list[tuple[float, Process, Process, float, TenantTotals]] = []
        self.cut: set[str] = set()  # the process that reaches no other one, nor they it

    def admit(self, process: Process) -> bool:
        reserved = reserve(process.ledger, "t", LIMITS, TokenCounts(5, 0, 5))
        if isinstance(reserved, Refusal):
            return False
        process.admitted.append(self.clock.now())
        process.running.append(reserved)
        process.began_s[reserved] = self.clock.now()
        return True

    def report(self, delays: list[int | None]) -> None:
        links = [(one, other) for one in self.all for other in self.all if one is not other]
        for (one, other), delay in zip(links, delays, strict=True):
            if delay is not None and not self.cut & {one.name, other.name}:
                due_s = self.clock.now() + delay * STEP_S
                self.on_the_way.append((due_s, one, other, self.clock.now(), one.ledger.totals("t")))

    def deliver(self) -> None:
        due = [entry for entry in self.on_the_way if entry[0] <= self.clock.now() and not self.lost(entry)]
        self.on_the_way = [entry for entry in self.on_the_way if entry[0] > self.clock.now()]
        for _, one, other, sent_s, totals in due:
            if sent_s >= other.reported_s.get(one.name, -1.0):  # a link keeps the order
                other.ledger.apply_report(one.name, "t", totals)
                other.reported_s[one.name] = sent_s

    def lost(self, entry: tuple[float, Process, Process, float, TenantTotals]) -> bool:
        return bool(self.cut & {entry[1].name, entry[2].name})

    def recent(self, *processes: Process) -> int:
        return sum(self.clock.now() - at < 60 for one in processes for at in one.admitted)

    def unreported(self, process: Process) -> int:
        """What the others admitted, and this one cannot know: the stated overshoot."""
        others = [one for one in self.all if one is not process]
        return sum(at >= process.reported_s.get(one.name, -1.0) for one in others for at in one.admitted)


DELAYS = st.lists(st.sampled_from([0, 1, 3, 20, None]), min_size=6, max_size=6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 12),  # requests that arrive there
        st.integers(0, 4),  # that end there
        st.sampled_from([0.0, STEP_S, 1.0, 20.0, 59.0]),
        DELAYS,
        st.sampled_from(["together"] * 6 + ["cut a", "cut b"]),
    ),
    max_size=25,
)


@given(STEPS)
def test_the_overshoot_is_what_was_not_reported_yet_and_never_more_than_the_limit_of_each(steps) -> None:
    group = Group()
    by_name = {one.name: one for one in group.all}
    for name, arrivals, ends, pause_s, delays, links in steps:
        group.clock.advance(pause_s)
        group.cut = {links[-1]} if links.startswith("cut") else set()
        group.deliver()
        process = by_name[name]
        for _ in range(arrivals):
            if group.admit(process):
                assert group.recent(*group.all) <= LIMIT + group.unreported(process)
                others = [one for one in group.all if one is not process]
                known = [
                    r
                    for o in others
                    for r in o.running
                    if o.admitted and o.began_s[r] < process.reported_s.get(o.name, -1)
                ]
                assert len(process.running) + len(known) <= LIMIT
        for one in group.all:
            assert group.recent(one) <= LIMIT
        for _ in range(min(ends, len(process.running))):
            process.running.pop(0).settle(TokenCounts(1, 4, 3))
        group.report(delays)
    for one in group.all:
        for reservation in one.running:
            reservation.settle(NO_TOKENS)
    group.cut = set()
    group.report([0] * 6)
    group.deliver()
    assert [one.ledger.in_progress("t") for one in group.all] == [0, 0, 0]


@given(st.lists(st.sampled_from("abc"), min_size=60, max_size=60))
def test_with_links_that_deliver_at_once_three_are_as_exact_as_one(arrivals) -> None:
    group = Group()
    by_name = {one.name: one for one in group.all}
    admitted = 0
    for name in arrivals:
        admitted += group.admit(by_name[name])
        group.clock.advance(0.001)
        group.report([0] * 6)
        group.deliver()
    assert admitted == LIMIT


def test_under_a_partition_each_side_grants_the_limit_once() -> None:
    group = Group()
    a, b, c = group.all
    group.cut = {"a"}
    for _ in range(30):
        for one in group.all:
            group.admit(one)
            group.report([0] * 6)
            group.deliver()
    assert group.recent(a) == LIMIT
    assert group.recent(b, c) == LIMIT
    for one in group.all:
        for reservation in one.running:
            reservation.settle(TokenCounts(5, 0, 5))
    group.cut = set()
    group.report([0] * 6)
    group.deliver()
    assert not any(group.admit(one) for one in group.all), "they know of each other again"
    group.clock.advance(60.1)
    assert [group.admit(one) for one in group.all] == [True] * 3


def test_after_a_long_partition_only_the_last_minute_counts() -> None:
    group = Group()
    a, b, _ = group.all
    group.report([0] * 6)
    group.deliver()
    group.cut = {"a"}
    for _ in range(5):
        while group.admit(a):
            a.running.pop().settle(TokenCounts(5, 0, 5))
        group.clock.advance(61)
    group.admit(a)
    group.cut = set()
    group.report([0] * 6)
    group.deliver()
    assert sum(group.admit(b) for _ in range(20)) == LIMIT - 1


def test_tokens_that_were_reserved_too_many_are_given_back_everywhere() -> None:
    group = Group()
    a, b, _ = group.all
    reserved = reserve(a.ledger, "t", LIMITS, TokenCounts(90, 0, 0))
    assert isinstance(reserved, Reservation)
    group.report([0] * 6)
    group.deliver()
    assert isinstance(reserve(b.ledger, "t", LIMITS, TokenCounts(20, 0, 0)), Refusal)
    reserved.settle(TokenCounts(10, 80, 0))
    group.report([0] * 6)
    group.deliver()
    assert isinstance(reserve(b.ledger, "t", LIMITS, TokenCounts(90, 0, 0)), Reservation)
    assert isinstance(reserve(b.ledger, "t", LIMITS, TokenCounts(1, 0, 0)), Refusal)


def test_prompts_found_in_caches_do_not_pile_up_at_others() -> None:
    """Each estimate is corrected a moment after it was reported, for more than a minute."""
    clock = ManualClock(0.0, 20_000 * DAY_S)
    limits = TenantLimits(tokens_per_minute=1_000_000)
    here, there = (Ledger(PricesConfig(), clock, name) for name in ("here", "there"))
    for _ in range(1_000):
        reserved = reserve(there, "t", limits, TokenCounts(100, 0, 0))
        assert isinstance(reserved, Reservation)
        here.apply_report("1", "t", there.totals("t"))
        clock.advance(0.05)
        reserved.settle(TokenCounts(20, 80, 0))
        here.apply_report("1", "t", there.totals("t"))
        clock.advance(0.05)
        used = [ledger.use("t", limits)["tokens_per_minute"].used for ledger in (here, there)]
        assert 0 <= used[0] - used[1] <= 100
    assert used[1] == 600 * 20


def test_a_process_that_is_gone_holds_no_requests_but_what_it_spent_is_spent() -> None:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    limits = TenantLimits(concurrent=1, budget_per_day=100)
    here, there = (Ledger(PricesConfig(), clock, name) for name in ("here", "there"))
    ended = reserve(there, "t", limits, TokenCounts(50, 0, 0))
    assert isinstance(ended, Reservation)
    ended.settle(TokenCounts(50, 0, 0))
    reserve(there, "t", limits, TokenCounts(30, 0, 0))
    here.apply_report("1", "t", there.totals("t"))
    assert (here.in_progress("t"), here.used_today("t")) == (1, 80)
    here.forget("1")
    assert (here.in_progress("t"), here.used_today("t")) == (0, 50)
    assert here.take_changed() == set(), "it reports its own charges only"
    assert here.totals("t").spent == NO_TOKENS


def test_of_a_process_that_is_gone_nothing_is_kept_when_its_minute_is_over() -> None:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    here, gone = (Ledger(PricesConfig(), clock, name) for name in ("here", "gone"))
    reserved = reserve(gone, "t", LIMITS, TokenCounts(9, 0, 0))
    assert isinstance(reserved, Reservation)
    reserved.settle(TokenCounts(4, 5, 0))
    here.apply_report("1", "t", gone.totals("t"))
    here.forget("1")
    assert {name: limit.used for name, limit in here.use("t", LIMITS).items()} == {
        "requests_per_minute": 1,
        "tokens_per_minute": 4,
        "concurrent": 0,
    }
    clock.advance(61)
    here.totals("t")
    assert here._open("t").reported == {}


def test_a_process_that_goes_on_from_the_file_of_another_one_does_not_count_twice_for_others() -> None:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    before, other, after = (Ledger(PricesConfig(), clock, name) for name in ("file", "other", "run2"))
    before.restore("t", TokenCounts(40, 0, 0))
    other.apply_report("run1", "t", before.totals("t"))
    after.apply_report("run1", "t", before.totals("t"))
    other.forget("run1")
    after.forget("run1")
    spend(after, 5)
    other.apply_report("run2", "t", after.totals("t"))
    assert (other.used_today("t"), after.used_today("t")) == (45, 45)
    after.adopt("file", {"t": TokenCounts(40, 0, 0), "only in the file": TokenCounts(7, 0, 0)})
    assert after.take_changed() >= {"t", "only in the file"}
    other.apply_report("run2", "t", after.totals("t"))
    assert (other.used_today("t"), after.used_today("t")) == (45, 45)
    assert other.use("t", LIMITS)["requests_per_minute"].used == 1, "charged once, whatever it is called"
    assert after.used_today("only in the file") == 7
    after.apply_report("run1", "t", before.totals("t"))  # it stops, and has not ended yet
    assert after.used_today("t") == 45


def test_what_is_handed_over_is_reported_by_the_other_one() -> None:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    here, there = (Ledger(PricesConfig(), clock, name) for name in ("here", "there"))
    spend(here, 5)
    there.apply_report("1", "t", here.totals("t"))
    here.take_changed()
    there.restore("t", TokenCounts(5, 0, 0))
    here.hand_over("t", TokenCounts(5, 0, 0))
    assert here.take_changed() == {"t"}
    here.apply_report("2", "t", there.totals("t"))
    there.apply_report("1", "t", here.totals("t"))
    assert (here.used_today("t"), there.used_today("t")) == (5, 5)
    here.hand_over("unknown", TokenCounts(5, 0, 0))
    assert here.tenants() == ["t"]


def spend(ledger: Ledger, tokens: int) -> None:
    """A request that has ended, in the requests per minute too."""
    reserved = reserve(ledger, "t", LIMITS, TokenCounts(tokens, 0, 0))
    assert isinstance(reserved, Reservation)
    reserved.settle(TokenCounts(tokens, 0, 0))


def test_a_report_that_comes_twice_is_counted_once() -> None:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    here, there = (Ledger(PricesConfig(), clock, name) for name in ("here", "there"))
    spend(there, 5)
    here.apply_report("1", "t", there.totals("t"))
    used = here.use("t", LIMITS)
    here.apply_report("1", "t", there.totals("t"))
    assert here.use("t", LIMITS) == used
