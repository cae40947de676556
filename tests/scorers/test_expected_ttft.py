"""Worked arithmetic for every term, and an oracle that tries every way to fetch."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Load, Overlap, PoolHit, Row, Speed, Transfer
from scorers.expected_ttft import ExpectedTtft
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, an_overlap

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token, context costs nothing


def link(base_ms: float, us_per_token: float) -> Transfer:
    return Transfer(base_ms, us_per_token, 0, None)


def row(name: str, overlap: Overlap | None = None, load: Load | None = None, **links: Transfer | None) -> Row:
    return a_row(name, overlap, load)._replace(speed=FLAT._replace(**links))


def score(*rows: Row, scorer: ExpectedTtft | None = None, **known: Any) -> list[float]:
    return list((scorer or ExpectedTtft()).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


# computing and waiting


def test_what_is_not_held_is_computed_after_the_queue() -> None:
    # a: 50 queued + 10 + (1000 - 800) * 0.1 = 80;   b: 10 + 1000 * 0.1 = 110
    a = row("a", an_overlap(800), a_load(queued_ms=50.0))
    assert score(a, row("b", an_overlap(0))) == pytest.approx([80, 110])


def test_attention_over_the_cached_part_costs_too() -> None:
    # 10 + 100 * 0.1 + 100 * (900 + 50) * 4 / 1e6 = 20.38
    a = a_row("a", an_overlap(900))._replace(speed=FLAT._replace(ns_per_token_context=4.0))
    assert score(a) == pytest.approx([20.38])


def test_what_was_just_sent_counts_as_held() -> None:
    assert score(row("a", an_overlap(0, expected=500))) == pytest.approx([60])  # 10 + 500 * 0.1


def test_a_slow_machine_is_dearer() -> None:
    slow = a_row("a", an_overlap(0))._replace(speed=FLAT._replace(us_per_token=300.0))
    assert score(slow, row("b", an_overlap(0))) == pytest.approx([310, 110])


# fetching


def test_each_tier_is_fetched_where_that_is_cheaper() -> None:
    # GPU 100, host to 400, disk to 800.
    # host, disk, compute: 1 + 300 * 0.005 + 5 + 400 * 0.02 + 10 + 200 * 0.1 = 2.5 + 13 + 30 = 45.5
    overlap = an_overlap(100, cpu=400, disk=800)
    assert score(row("a", overlap, cpu=link(1, 5), disk=link(5, 20))) == pytest.approx([45.5])
    # a disk at 0.09 a token and 10 ms a load loses to computing (46 to 40): 2.5 + 10 + 600 * 0.1 = 72.5
    assert score(row("a", overlap, cpu=link(1, 5), disk=link(10, 90))) == pytest.approx([72.5])
    # and without a host tier that is worth it the disk cannot be reached: 10 + 900 * 0.1 = 100
    assert score(row("a", overlap, cpu=link(100, 100), disk=link(5, 20))) == pytest.approx([100])


def test_the_pool_is_fetched_beyond_what_the_target_holds() -> None:
    # a: 5 + (900 - 600) * 0.01 + 10 + 100 * 0.1 = 28;   b: 5 + 900 * 0.01 + 10 + 10 = 34
    pool = link(5, 10)
    costs = score(row("a", an_overlap(600), pool=pool), row("b", an_overlap(0), pool=pool), pool=PoolHit(900, 0.1))
    assert costs == pytest.approx([28, 34])


def test_its_disks_have_a_price_of_their_own() -> None:
    # memory to 500, disks to 900: 5 + 500 * 0.01 + 20 + 400 * 0.04 + 10 + 100 * 0.1 = 10 + 36 + 20 = 66
    a = row("a", an_overlap(0), pool=link(5, 10), pool_disk=link(20, 40))
    assert score(a, pool=PoolHit(900, 0.1, 500)) == pytest.approx([66])
    # all of it on disks: 20 + 900 * 0.04 + 10 + 10 = 76
    assert score(a, pool=PoolHit(900, 0.1, 0)) == pytest.approx([76])


def test_one_long_load_beats_a_short_one_before_it() -> None:
    # host to 100 and the pool to 900.  Both: 30 + 0.5 + 5 + 8 + 20 = 63.5;   the pool alone: 5 + 9 + 20 = 34
    a = row("a", an_overlap(0, cpu=100), cpu=link(30, 5), pool=link(5, 10))
    assert score(a, pool=PoolHit(900, 0.1)) == pytest.approx([34])


def test_a_base_is_paid_only_where_the_source_is_used() -> None:
    # the pool has 20 tokens more than the target: 5 + 0.2 > 20 * 0.1, so 10 + 100 * 0.1
    assert score(row("a", an_overlap(900), pool=link(5, 10)), pool=PoolHit(920, 0.1)) == pytest.approx([20])


def test_an_unpriced_link_is_not_used() -> None:
    assert score(row("a", an_overlap(0, cpu=500)), pool=PoolHit(900, 0.1)) == pytest.approx([110])


# the choice


def contest(pool: PoolHit | None, us_per_token: float, queued_ms: float) -> list[float]:
    """A holder of 900 tokens with a queue, against an idle one that would fetch or compute them."""
    speed = link(5, us_per_token)
    holder = row("holder", an_overlap(900), a_load(queued_ms=queued_ms), pool=speed)
    return score(holder, row("idle", an_overlap(0), pool=speed), pool=pool)


def test_a_pool_frees_a_prompt_from_its_busy_holder() -> None:
    # holder: 60 + 10 + 100 * 0.1 = 80.  idle: 10 + 1000 * 0.1 = 110 alone, 5 + 900 * 0.01 + 20 = 34 with the pool
    assert contest(None, 10, queued_ms=60) == pytest.approx([80, 110])
    assert contest(PoolHit(900, 0.1), 10, queued_ms=60) == pytest.approx([80, 34])
    # with a short queue the holder stays the better one: 10 + 20 = 30
    assert contest(PoolHit(900, 0.1), 10, queued_ms=10) == pytest.approx([30, 34])


@pytest.mark.parametrize("us_per_token", [100.0, 101.0, 1e4])
@pytest.mark.parametrize("queued_ms", [0.0, 60.0, 85.0, 95.0, 500.0])
def test_below_the_break_even_the_pool_changes_no_cost(us_per_token: float, queued_ms: float) -> None:
    """The prefill needs 100 us a token: a link that needs as much is no help, whatever it holds."""
    assert contest(PoolHit(900, 0.1), us_per_token, queued_ms) == contest(None, us_per_token, queued_ms)


def test_just_above_the_break_even_it_counts() -> None:
    # 5 + 900 * 0.094 + 20 = 109.6 < 110
    assert contest(PoolHit(900, 0.1), 94, 0)[1] == pytest.approx(109.6)


def test_the_pool_can_be_left_out_of_it() -> None:
    a = row("a", an_overlap(0), pool=link(5, 10))
    assert score(a, scorer=ExpectedTtft(pool=False), pool=PoolHit(900, 0.1)) == pytest.approx([110])


# others


def test_the_share_of_the_waiting_that_is_not_ours_waits_ahead() -> None:
    # a: 2 run and 6 wait, 4 of the 8 are not ours: 3 wait ahead, each as long as this one on average, (20 + 110) / 2
    busy = a_load(running=2, waiting=6, elsewhere=4)
    idle = a_load(running=2, waiting=0, elsewhere=2)
    assert score(row("a", an_overlap(900), busy), row("b", an_overlap(0), idle)) == pytest.approx([20 + 3 * 65, 110])


@pytest.mark.parametrize("silent", [a_load(), a_load(running=0, waiting=0, elsewhere=0, metrics_age_s=16.0)])
def test_silence_is_taken_for_an_average_queue(silent: Load) -> None:
    # the others: 4 wait, and none: on average 2
    costs = score(
        row("a", an_overlap(0), a_load(running=0, waiting=4, elsewhere=4)),
        row("b", an_overlap(0), a_load(running=0, waiting=0, elsewhere=0)),
        row("c", an_overlap(0), silent),
    )
    assert costs == pytest.approx([110 + 4 * 110, 110, 110 + 2 * 110])


# missing


def test_unknown_overlap_costs_what_is_usual() -> None:
    # known: 800 and 0, so 400: 10 + 600 * 0.1
    rows = row("a", an_overlap(800)), row("b"), row("c", an_overlap(0))
    assert score(*rows) == pytest.approx([30, 70, 110])


def test_the_pool_counts_where_overlap_is_unknown() -> None:
    rows = [row(name, pool=link(5, 10)) for name in "ab"]
    assert score(*rows, pool=PoolHit(900, 0.1)) == pytest.approx([34, 34])


def test_of_a_prompt_of_unknown_length_the_longest_run_is_the_whole() -> None:
    # a's 600: 10, and 10 + 60 * 0.1
    rows = row("a", an_overlap(600)), row("b", an_overlap(540))
    assert score(*rows, prompt_tokens=None) == pytest.approx([10, 16])
    # the pool's 700: 10 + 100 * 0.1 and 10 + 160 * 0.1
    assert score(*rows, prompt_tokens=None, pool=PoolHit(700, 0.1)) == pytest.approx([20, 26])


def test_nothing_known_prefers_nobody() -> None:
    assert score(row("a"), row("b"), prompt_tokens=None) == [10, 10]


def test_a_stale_age_must_be_one() -> None:
    with pytest.raises(ValueError, match="stale_s"):
        ExpectedTtft(stale_s=0)


# the least of all ways

links = st.builds(link, st.floats(0, 50), st.floats(0, 300))


@examples(200)
@given(
    st.lists(st.integers(0, 5000), min_size=4, max_size=4).map(sorted),
    st.lists(st.integers(0, 6000), min_size=2, max_size=2).map(sorted),
    st.tuples(links, links, links, links),
    st.floats(0, 20),
)
def test_no_other_way_is_cheaper(
    held: list[int], pooled: list[int], fetch: tuple[Transfer, Transfer, Transfer, Transfer], context_ns: float
) -> None:
    """Against every subset of the sources, in the order of their ends: the ways that there are."""
    gpu, expected, cpu, disk = held
    speed = FLAT._replace(ns_per_token_context=context_ns)
    cpu_link, disk_link, pool_link, pool_disk_link = fetch
    ends = [
        (cpu, 0, cpu_link),
        (disk, cpu, disk_link),
        (pooled[0], 0, pool_link),
        (pooled[1], pooled[0], pool_disk_link),
    ]
    ends.sort(key=lambda source: source[0])
    costs = []
    for way in chain.from_iterable(combinations(ends, count) for count in range(5)):
        at, ms = expected, 0.0
        for end, start, source in way:
            if not start <= at < end:
                break  # out of reach, or nothing new there
            ms += source.base_ms + source.us_per_token * (end - at) / 1000
            at = end
        else:
            costs.append(ms + speed.prefill_ms(8000 - at, at))
    one = a_row("a", Overlap(gpu, cpu, disk, expected, "events", 0.1))._replace(
        speed=speed._replace(cpu=cpu_link, disk=disk_link, pool=pool_link, pool_disk=pool_disk_link)
    )
    told = score(one, prompt_tokens=8000, pool=PoolHit(pooled[1], 0.1, pooled[0]))
    assert told == pytest.approx([min(costs)])
