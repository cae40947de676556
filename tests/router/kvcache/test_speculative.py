from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import Key, TargetId
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks

A, B = TargetId("a/0"), TargetId("b/0")


def keys(*numbers: int) -> list[Key]:
    return [Key(number) for number in numbers]


PROMPT = keys(1, 2, 3, 4)


def test_what_was_sent_continues_what_is_held() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)
    assert expected.leading_blocks(A, PROMPT, 1, now=0.0) == 1
    expected.add(A, keys(2, 3), now=0.0)
    assert expected.leading_blocks(A, PROMPT, 1, now=0.0) == 3
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 0  # block 1 is neither held nor expected
    assert expected.leading_blocks(A, PROMPT, 4, now=0.0) == 4
    assert expected.leading_blocks(B, PROMPT, 1, now=0.0) == 1


def test_it_ends_when_events_speak_and_does_not_come_back_by_itself() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)
    first = expected.add(A, PROMPT, now=0.0)
    expected.confirm(A, keys(1, 2))
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 0  # stored and evicted again: the index says 0
    assert expected.leading_blocks(A, PROMPT, 2, now=0.0) == 4
    expected.on_first_byte(first, now=1.0)
    assert expected.leading_blocks(A, PROMPT, 2, now=1.0) == 4


def test_it_lasts_while_the_request_waits_and_a_while_after_its_first_byte() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)
    sent = expected.add(A, PROMPT, now=0.0)
    assert expected.leading_blocks(A, PROMPT, 0, now=60.0) == 4
    expected.on_first_byte(sent, now=60.0)
    assert expected.leading_blocks(A, PROMPT, 0, now=64.9) == 4
    assert expected.leading_blocks(A, PROMPT, 0, now=65.0) == 0
    assert not expected._live
    assert not expected._expecting.table


def test_a_failed_request_takes_back_only_its_own() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)
    first = expected.add(A, PROMPT, now=0.0)
    second = expected.add(A, keys(1, 2), now=0.0)
    expected.discard(first)
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 2
    expected.discard(first)
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 2
    expected.discard(second)
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 0


def test_a_prompt_on_its_way_leaves_tails_until_it_fails_or_expires() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)

    def found(ids: list[Key] = PROMPT, now: float = 0.0) -> dict[TargetId, list[int]]:
        return expected.find_tails(ids, now)

    first = expected.add(A, PROMPT, now=0.0, tails=keys(2, 4))
    second = expected.add(A, (), now=0.0, tails=keys(2))
    expected.add(B, (), now=0.0, tails=keys(2))
    assert found() == {A: [2, 4], B: [2]}
    assert found(keys(1, 2, 30, 40)) == {A: [2], B: [2]}, "another prompt with this beginning"
    expected.discard(first)
    assert found() == {A: [2], B: [2]}
    expected.forget(B)
    expected.on_first_byte(second, now=1.0)
    assert found(now=5.9) == {A: [2]}
    assert found(now=6.0) == {}
    assert not expected._tails.table


def test_forgetting_a_target_leaves_the_others() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0)
    sent = expected.add(A, PROMPT, now=0.0)
    expected.add(B, PROMPT, now=0.0)
    expected.forget(A)
    assert expected.leading_blocks(A, PROMPT, 0, now=0.0) == 0
    assert expected.leading_blocks(B, PROMPT, 0, now=0.0) == 4
    expected.discard(sent)


def test_it_is_bounded_and_the_oldest_give_way() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0, max_blocks=6)
    expected.add(A, keys(1, 2, 3), now=0.0)
    expected.add(A, keys(1, 2, 4), now=0.0)
    expected.add(B, keys(7), now=0.0)
    assert expected.leading_blocks(A, keys(1, 2, 3), 0, now=0.0) == 2
    assert expected.leading_blocks(A, keys(1, 2, 4), 0, now=0.0) == 3
    assert expected.leading_blocks(B, keys(7), 0, now=0.0) == 1


def test_what_has_ended_keeps_no_keys_although_it_is_still_due() -> None:
    expected = SpeculativeBlocks(ttl_s=5.0, max_blocks=6)
    first = expected.add(A, keys(1, 2, 3, 4), now=0.0)
    expected.on_first_byte(first, now=0.0)
    expected.add(A, keys(5, 6, 7), now=0.0)
    assert not first.keys
    assert expected.leading_blocks(A, keys(5, 6, 7), 0, now=10.0) == 3


def test_approximate_remembers_what_was_sent_until_it_is_old() -> None:
    approximate = ApproximateBlocks(max_blocks=100, ttl_s=10.0)
    assert approximate.leading_blocks(A, PROMPT, now=0.0) == 0
    approximate.add(A, PROMPT, now=0.0)
    approximate.add(A, keys(1, 2, 9), now=6.0)
    assert approximate.leading_blocks(A, PROMPT, now=9.9) == 4
    assert approximate.leading_blocks(A, PROMPT, now=10.0) == 2
    assert approximate.leading_blocks(A, keys(1, 2, 9, 10), now=10.0) == 3
    assert approximate.leading_blocks(A, PROMPT, now=16.0) == 0
    assert approximate.leading_blocks(A, keys(5, 6), now=6.0) == 0
    assert approximate.leading_blocks(B, PROMPT, now=1.0) == 0
    approximate.forget(A)
    assert approximate.leading_blocks(A, PROMPT, now=6.0) == 0


def test_approximate_is_bounded_and_keeps_what_is_used() -> None:
    approximate = ApproximateBlocks(max_blocks=40, ttl_s=1000.0)
    conversation = [Key(number) for number in range(10)]
    for turn in range(50):
        approximate.add(A, conversation, now=turn)
        approximate.add(A, keys(1000 + 3 * turn, 1001 + 3 * turn, 1002 + 3 * turn), now=turn)
        assert len(approximate._young[A]) + len(approximate._old.get(A, {})) <= 40
        assert approximate.leading_blocks(A, conversation, now=turn) == 10
    assert approximate.leading_blocks(A, keys(1000, 1001, 1002), now=50) == 0


def test_approximate_counts_a_growing_prompt_once() -> None:
    approximate = ApproximateBlocks(max_blocks=40, ttl_s=1000.0)
    other = [Key(1000 + number) for number in range(10)]
    approximate.add(A, other, now=0.0)
    for length in range(1, 11):
        approximate.add(A, [Key(number) for number in range(length)], now=1.0)
    assert approximate.leading_blocks(A, other, now=1.0) == 10
    assert not approximate._old


def test_approximate_takes_the_beginning_of_a_prompt_beyond_its_bound() -> None:
    approximate = ApproximateBlocks(max_blocks=8, ttl_s=10.0)
    long = [Key(number) for number in range(100)]
    approximate.add(A, long, now=0.0)
    assert approximate.leading_blocks(A, long, now=0.0) == 4


def test_approximate_counts_each_block_once_until_the_last_prompt_is_old() -> None:
    approximate = ApproximateBlocks(max_blocks=16, ttl_s=10.0)
    assert approximate.count(A, now=0.0) == 0
    approximate.add(A, keys(1, 2, 3, 4), now=0.0)
    approximate.add(A, keys(1, 2, 9), now=4.0)
    assert approximate.count(A, now=4.0) == 5
    approximate.add(A, keys(1, 2, 3, 4, 5, 6, 7), now=5.0)  # 5 + 3 are 8, half of the bound: they still fit
    assert approximate.count(A, now=5.0) == 8
    approximate.add(A, keys(1, 2, 3, 11), now=6.0)  # a new generation: 4 keys, of which the old one has 3
    assert approximate.count(A, now=6.0) == 9
    approximate.add(A, keys(1, 2, 9), now=7.0)  # one more that both have
    assert approximate.count(A, now=7.0) == 9
    assert approximate.count(B, now=7.0) == 0
    assert approximate.count(A, now=16.9) == 9
    assert approximate.count(A, now=17.0) == 0
    approximate.forget(A)
    assert approximate.count(A, now=7.0) == 0
    approximate.add(A, keys(1), now=8.0)
    assert approximate.count(A, now=8.0) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=60))
def test_approximate_counts_what_is_in_either_generation(prompts: list[tuple[int, int]]) -> None:
    """Prompt families that share their first two blocks."""
    approximate = ApproximateBlocks(max_blocks=24, ttl_s=10.0)
    for family, length in prompts:
        approximate.add(A, [Key(i if i < 2 else 100 * family + i) for i in range(length)], now=0.0)
        assert approximate.count(A, now=0.0) == len({*approximate._young[A], *approximate._old.get(A, {})})
