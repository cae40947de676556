import pytest

from scorers.blocks import Credit, block_tokens, fill_credits, pooled_tokens, whole_tokens
from scorers.contract import PoolHit, Row
from tests.suites.views import a_row, a_view, an_overlap


def of_block(tokens: int | None) -> Row:
    return a_row("a")._replace(block_tokens=tokens)


def test_the_smallest_block_is_the_unit_of_all() -> None:
    assert block_tokens([of_block(128), of_block(32), of_block(None)]) == 32


def test_sixteen_where_nobody_told() -> None:
    assert block_tokens([of_block(None), of_block(None)]) == 16


def test_a_token_is_worth_what_its_fastest_place_is() -> None:
    # GPU 100, host memory to 300, disk to 700: 1 * 100 + 0.5 * 200 + 0.25 * 400 = 300
    assert Credit(1.0, 0.5, 0.25, 0.0).tokens(an_overlap(100, cpu=300, disk=700), 0) == 300
    # 20 more sent to it just now count as held by the GPU: 120 + 0.5 * 180 + 100 = 310
    assert Credit(1.0, 0.5, 0.25, 0.0).tokens(an_overlap(100, cpu=300, disk=700, expected=120), 0) == 310


def test_what_was_just_sent_can_cover_the_slower_tiers() -> None:
    # all of them: 800.  Host memory only: 350 + 0.25 * 350
    credit = Credit(1.0, 0.5, 0.25, 0.0)
    assert credit.tokens(an_overlap(100, cpu=300, disk=700, expected=800), 0) == 800
    assert credit.tokens(an_overlap(100, cpu=300, disk=700, expected=350), 0) == 350 + 87.5


def test_the_pool_counts_beyond_the_gpu_even_where_host_memory_has_it_too() -> None:
    # 100 + 0.75 * 200 + 0.5 * (500 - 100) = 450
    assert Credit(1.0, 0.75, 0.25, 0.5).tokens(an_overlap(100, cpu=300), 500) == 450
    assert Credit(1.0, 0.75, 0.25, 0.5).tokens(an_overlap(100), 80) == 100


def test_a_fading_credit_fades_the_gpu_part_only() -> None:
    # 0.5 * 1 * 100 + 0.5 * 200
    assert Credit(1.0, 0.5, 0.0, 0.0).tokens(an_overlap(100, cpu=300), 0, gpu_share=0.5) == 150


def test_an_unknown_overlap_is_credited_with_the_mean_of_the_known() -> None:
    rows = [a_row("a", an_overlap(100)), a_row("b"), a_row("c", an_overlap(300))]
    assert fill_credits(rows, lambda _, overlap: overlap.gpu_tokens) == [100, 200, 300]
    assert fill_credits(rows[1:2], lambda _, overlap: overlap.gpu_tokens) == [0]


def test_the_longest_run_stands_in_for_an_unknown_length() -> None:
    a, b, c = a_row("a", an_overlap(100, disk=400)), a_row("b", an_overlap(0, expected=500)), a_row("c")
    assert whole_tokens(a_view(a, b, c, prompt_tokens=50)) == 50
    assert whole_tokens(a_view(a, c)) == 400
    assert whole_tokens(a_view(a, b, c)) == 500
    assert whole_tokens(a_view(a, b, c, pool=PoolHit(600, 0.1))) == 600
    assert whole_tokens(a_view(c)) == 0


@pytest.mark.parametrize(("pool", "tokens"), [(None, 0), (PoolHit(48, 0.1), 48)])
def test_an_unknown_pool_holds_nothing(pool: PoolHit | None, tokens: int) -> None:
    assert pooled_tokens(a_view(a_row("a"), pool=pool)) == tokens
